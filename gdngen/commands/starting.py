"""`gdngen new`, `docs`, `schema` and `inspect`: what someone begins with."""

from pathlib import Path

from gdngen import new, resources
from gdngen.commands import given
from gdngen.inspect import command as inspecting
from gdngen.render import write


def add(commands) -> None:
    text = "write a small spec to start from, which renders and verifies as it is"
    made = commands.add_parser("new", help=text, description=text)
    made.set_defaults(run=_new)
    made.add_argument("name", metavar="NAME", help="of the kernel, and of its file NAME.yaml")
    made.add_argument("-o", metavar="DIR", dest="out", type=Path, default=Path("."), help="where")
    made.add_argument(
        "--like", metavar="SPEC", help="start from a spec that comes along, say softmax"
    )

    text = "print the reference of the spec language"
    made = commands.add_parser("docs", help=text, description=text)
    made.set_defaults(run=_docs)

    text = "print the JSON Schema of specs, from which editors complete and explain them"
    made = commands.add_parser("schema", help=text, description=text)
    made.set_defaults(run=_schema)
    made.add_argument("-o", metavar="FILE", dest="out", type=Path, help="write it there instead")

    inspecting.add(commands, given.setting).set_defaults(run=_inspect)


def _new(options) -> int:
    made = new.files(options.name, options.out, options.like)
    for path, text in made.items():
        write.replace(path, text)
        print(f"wrote {path}")
    spec = next(iter(made))
    print(f"next: gdngen plan {spec}, gdngen verify {spec}, gdngen render {spec} -o kernels")
    return 0


def _docs(options) -> int:
    print(resources.REFERENCE.read_text(encoding="utf-8"), end="")
    return 0


def _schema(options) -> int:
    from gdngen.language import schema

    text = schema.dumps(resources.REFERENCE.read_text(encoding="utf-8"))
    if options.out:
        write.replace(options.out, text)
    else:
        print(text, end="")
    return 0


def _inspect(options) -> int:
    outcome = inspecting.run(options, given.settings(options))
    print(outcome.text)
    return outcome.code
