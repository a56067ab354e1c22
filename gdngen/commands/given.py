"""What was given on the command line: options that commands share, and what they come to."""

import argparse
import importlib.util
import sys
from pathlib import Path

from gdngen import driver, resources
from gdngen.devices import device, devices
from gdngen.driver import Loaded
from gdngen.errors import GdngenError, show
from gdngen.plan import plan as planning
from gdngen.plan.lean import OBJECTIVES
from gdngen.show.progress import say


def command(commands, name: str, run, text: str, specs: str | int = "*") -> argparse.ArgumentParser:
    """A command on specs, with the options that say which variants and how they are planned."""
    made = commands.add_parser(name, help=text, description=text)
    made.set_defaults(run=run)
    made.add_argument(
        "specs", nargs=specs, type=Path, metavar="SPEC", help="default: all of specs/"
    )
    made.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", type=setting,
        help="pick the variants with this dim, dtype or option, or make one that the spec doesn't list",
    )  # fmt: skip
    made.add_argument(
        "--policy", choices=planning.POLICIES, default=planning.DEFAULT,
        help=f"how storage is shared (default: {planning.DEFAULT})",
    )  # fmt: skip
    made.add_argument(
        "--objective", choices=OBJECTIVES, default="blocks",
        help="what lean puts right after fitting the device: blocks per SM, or the fewest bytes",
    )  # fmt: skip
    made.add_argument(
        "--allow-reload",
        action="store_true",
        help="lean may read a tile from memory a second time",
    )
    made.add_argument(
        "--allow-views",
        action="store_true",
        help="lean may put a tile onto the bytes of a dead one of another float dtype",
    )
    how = made.add_mutually_exclusive_group()
    how.add_argument(
        "-q", dest="quiet", action="store_true",
        help="say what is wrong, and no more than a line if nothing is",
    )  # fmt: skip
    how.add_argument(
        "-v", dest="verbose", action="store_true",
        help="a line for everything done and how long it took, on the error stream",
    )  # fmt: skip
    return made


def add_templates(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--templates", type=Path, metavar="DIR",
        help="a template that lies there, say statements.jinja, stands for gdngen's own",
    )  # fmt: skip


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise argparse.ArgumentTypeError(f"'{text}': NAME=VALUE is meant, say BC=64")
    return name, value


def settings(options) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in options.set:
        if given.setdefault(name, value) != value:
            raise GdngenError(f"error: --set {name} is given twice, as {given[name]} and {value}")
    return given


def specs(options) -> list[Path]:
    found = options.specs or sorted(Path("specs").rglob("*.yaml"))
    if not found:
        raise GdngenError(
            "error: no spec given, and there is no specs/*.yaml here\n"
            "  help: name one; `gdngen new NAME` writes one to start from"
        )
    for path in found:
        if path.is_dir():
            raise GdngenError(
                f"error: {path} is a folder\n  help: name a spec, say {path}/prepare.yaml"
            )
    return found


def require(what: str) -> None:
    """Compiling and running need packages that rendering does without."""
    lacking = [name for name in ("torch", "tilelang") if not importlib.util.find_spec(name)]
    if lacking:
        raise GdngenError(
            f"error: {what} needs {' and '.join(lacking)}: pip install 'gdngen[run]'\n"
            "  help: gdngen verify --judge-only judges plans without"
        )


def templates(options) -> Path | None:
    """The folder of --templates: some file there must stand for one of gdngen's."""
    own, known = options.templates, sorted(p.name for p in resources.TEMPLATES.glob("*.jinja"))
    if own and not any((own / name).is_file() for name in known):
        raise GdngenError(
            f"error: --templates {own}: it has no template of gdngen's\n  help: {' '.join(known)}"
        )
    return own


def load(options, functions: bool = False) -> list[Loaded]:
    """Every kernel's spec, or one error that holds all specs' mistakes; `functions` says that specs of
    functions alone will do."""
    loaded, wrong = [], []
    kernels = [p for p in specs(options) if not driver.is_pipeline(p)]
    if not kernels and not functions:
        raise GdngenError(
            f"error: {options.specs[0]} is of functions, not of a kernel\n"
            "  help: name the specs of the kernels that its steps run"
        )
    for path in options.progress.over(kernels, "reading"):
        try:
            loaded.append(driver.load(path, settings(options)))
        except GdngenError as e:
            wrong.append(str(e))
    if wrong:
        raise GdngenError("\n".join(wrong))
    for one in loaded:
        # Who writes kernels anew is not warned of what he has chosen; who looks at one or runs it is.
        for warning in (*one.warnings, *(() if functions else one.cautions)):
            say(show(warning, one.sources), sys.stderr)
    return loaded


def wish(options) -> planning.Wish:
    on = getattr(options, "device", None)
    return planning.Wish(
        policy=options.policy,
        objective=options.objective,
        allow_reload=options.allow_reload,
        allow_views=options.allow_views,
        device=on if on in devices() else None,
    )


def targets(options) -> list[str]:
    given = list(options.target)
    if getattr(options, "device", None) and options.device in devices():
        given.append(device(options.device).target)
    for target in given:
        device(target)  # every target names a row
    return given
