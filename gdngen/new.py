"""A spec to start from, as `gdngen new` writes it: `new.yaml`, or one that gdngen comes with."""

import keyword
import os
import re
from pathlib import Path

from gdngen import resources
from gdngen.errors import GdngenError, Report, did_you_mean
from gdngen.language import spec, syntax
from gdngen.model import pipelines

SCHEMA = "schema.json"


def shipped() -> dict[str, Path]:
    """Specs of kernels that gdngen comes with, by the name of their file."""
    found = sorted(resources.SPECS.rglob("*.yaml"))
    return {p.stem: p for p in found if not pipelines.is_pipeline(p.read_text(encoding="utf-8"))}


def files(name: str, folder: Path, like: str | None = None) -> dict[Path, str]:
    """What a new spec needs in a folder: itself, and the schema for editors where none is near.

    Raises GdngenError for what can't name a kernel, and where the file is there already.
    """
    _refuse(name)
    path = folder / f"{name}.yaml"
    if path.exists():
        raise GdngenError(f"error: {path} is there already\n  help: choose another name")
    given = (resources.SPECS / SCHEMA).read_text(encoding="utf-8")
    title = given.splitlines()[1]  # says whose it is
    here = [p / SCHEMA for p in (folder, folder.resolve().parent) if (p / SCHEMA).is_file()]
    ours = next((p for p in here if title in p.read_text(encoding="utf-8")), None)
    taken = folder / SCHEMA in here
    schema = ours or folder / (f"gdngen-{SCHEMA}" if taken else SCHEMA)
    out = {path: text(name, like, os.path.relpath(schema, folder))}
    return out if ours else out | {schema: given}


def text(name: str, like: str | None, schema: str) -> str:
    """The spec's text. A kernel can't have the name of something in it: that is refused."""
    known = shipped()
    if like is not None and like not in known:
        raise GdngenError(
            f"error: --like {like}: there is no such spec{did_you_mean(like, known)}\n"
            f"  help: one of {' '.join(known)}"
        )
    found = known[like] if like else resources.PACKAGE / "new.yaml"
    made = found.read_text(encoding="utf-8")
    made = re.sub(r"^kernel: .*$", f"kernel: {name}", made, count=1, flags=re.M)
    made = re.sub(r"(?<=\$schema=).*$", schema, made, count=1, flags=re.M)
    report = Report()
    spec.parse(made, f"{name}.yaml", report)
    for wrong in report.errors():
        raise GdngenError(f"error: {wrong.what}\n  help: choose another name")
    return made


def _refuse(name: str) -> None:
    if name.endswith(".yaml"):
        raise GdngenError(f"error: '{name}': a name is meant\n  help: {name[:-5]}, without .yaml")
    if not syntax.NAME.match(name) or keyword.iskeyword(name):
        raise GdngenError(
            f"error: '{name[:40]}' can't name a kernel\n"
            "  help: a name is a letter, then letters, digits and _ (64 at most), and no word of"
            " Python; -o DIR says where"
        )
