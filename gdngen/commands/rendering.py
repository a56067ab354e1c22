"""`gdngen render` and `gdngen check`: kernels written, and held against what the specs render."""

import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from gdngen import driver, resources
from gdngen.commands import given
from gdngen.devices import Device, device
from gdngen.driver import Loaded, Module
from gdngen.errors import GdngenError
from gdngen.plan import plan as planning
from gdngen.render import write
from gdngen.show import tables

GENERATED = "generated"


def add(commands) -> None:
    made = given.command(commands, "render", _render, "write the kernels of specs into generated/")
    given.add_templates(made)
    made.add_argument("-o", metavar="DIR", dest="out", help="write there instead; - prints")
    made.add_argument(
        "--target", action="append", default=[], help="plan for this target, not the spec's"
    )
    made.add_argument(
        "--device", type=str, help="plan for this device, and refuse what doesn't fit it"
    )

    made = given.command(
        commands, "check", _check, "is generated/ what the specs render? shows the difference"
    )
    given.add_templates(made)
    made.add_argument("-o", metavar="DIR", dest="out", help="look there instead of generated/")
    made.add_argument(
        "--full", action="store_true", help="render everything, whatever was remembered"
    )


def _home(options) -> Path:
    """The output folder: beside the `specs` folder of the first spec, or here."""
    if options.out:
        return Path(options.out)
    first = given.specs(options)[0]
    root = driver.spec_root(first)
    return (root.parent if root.name == "specs" else Path(".")) / GENERATED


def _pipelines(options) -> dict[str, str]:
    """Paths and texts of the modules of functions; a variant that --set names has none."""
    if options.set:
        return {}
    own = given.templates(options)
    return dict(driver.pipeline(p, own) for p in given.specs(options) if driver.is_pipeline(p))


def _modules(
    options, loaded: list[Loaded], targets: Iterable[str], own: Path | None
) -> list[Module]:
    """Every module with its final text."""
    found, over = [], options.progress.over
    for one in over(singly(loaded), "planning", variant):
        found += driver.modules(one, given.wish(options), targets, own)
    texts = driver.formatting(found)
    return list(over(texts, "formatting", lambda m: m.path, len(found)))


def singly(loaded: list[Loaded]) -> list[Loaded]:
    """The same, one variant at a time."""
    return [dataclasses.replace(one, variants=(v,)) for one in loaded for v in one.variants]


def variant(one: Loaded) -> str:
    return one.variants[0].kernel.module


def _tree(
    root: Path, found: list[Module], functions: dict[str, str], everything: bool
) -> dict[str, str]:
    """All files of the output folder that these modules determine."""
    files = {m.path: m.text for m in found} | driver.package_files(found) | functions
    entries = {m.path: driver.entry(m) for m in found}
    if not everything:
        folders = {m.path.rpartition("/")[0] for m in found}
        have = json.loads(write.read(root / driver.MANIFEST) or "{}")
        entries |= {p: e for p, e in have.items() if p.rpartition("/")[0] not in folders}
    files[driver.MANIFEST] = json.dumps(entries, indent=1, sort_keys=True) + "\n"
    files["__init__.py"] = f'{write.SIGNATURE}specs/; do not edit.\n"""Generated kernels."""\n'
    return files


def _render(options) -> int:
    settings, everything = given.settings(options), not options.specs and not options.set
    loaded, own = given.load(options, functions=True), given.templates(options)
    special = settings or given.wish(options) != planning.Wish() or options.target or options.device
    if (special or own) and not options.out:
        raise GdngenError(
            "error: generated/ holds what the specs say; these options would render something else\n"
            "  help: name a folder with -o DIR, or print with -o -"
        )
    if options.device and not fits(options, loaded, device(options.device)):
        return 1
    found = _modules(options, loaded, given.targets(options), own)
    if options.out == "-":
        print("\n\n".join([*(m.text for m in found), *_pipelines(options).values()]), end="")
        return 0
    root = _home(options)
    files = _tree(root, found, _pipelines(options), everything)
    folders = (
        [""]
        if everything
        else [] if settings else sorted({m.path.rpartition("/")[0] for m in found})
    )
    done = write.apply(root, write.changes(root, files, folders), files)
    for change in [] if options.quiet else done:
        print(f"{'deleted' if change.kind == 'orphan' else 'wrote'} {change.path}")
    print(f"{len(found)} kernels in {root}: {len(done)} files changed")
    if everything and not options.out:
        _remember(root)
    return 0


def fits(options, loaded: list[Loaded], on: Device) -> bool:
    wrong = []
    for one in loaded:
        for v in one.variants:
            p = planning.plan(v.kernel, v.found, driver.wished(v, given.wish(options)), on.target)
            if p.plan.asked > on.limit:
                first, *rest = tables.peak_lines(p, on, one, v, given.wish(options))
                wrong += ["error: " + first, *rest]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
    return not wrong


def _check(options) -> int:
    root = _home(options)
    narrowed = options.specs or options.set or options.out or options.templates
    plain = not narrowed and given.wish(options) == planning.Wish()
    if plain and not options.full and _remembered(root):
        print(f"{root} is what the specs render (unchanged since the last check)")
        return 0
    loaded, own = given.load(options, functions=True), given.templates(options)
    found = _modules(options, loaded, (), own)
    everything = not options.specs and not options.set
    files = _tree(root, found, _pipelines(options), everything)
    folders = (
        [""]
        if everything
        else [] if options.set else sorted({m.path.rpartition("/")[0] for m in found})
    )
    wrong = write.changes(root, files, folders)
    for change in wrong:
        print(f"{change.kind}: {change.path}\n{change.diff}", end="" if change.diff else "\n")
    if wrong:
        named = " ".join(map(str, options.specs))
        print(f"{root} is not what the specs render; to mend it: gdngen render {named}".rstrip())
        if any(c.kind == "orphan" for c in wrong):
            print("an orphan that does not bear gdngen's header stays until you delete it")
        return 1
    print(f"{root} is what the specs render: {len(found)} kernels")
    if plain:
        _remember(root)
    return 0


def _fingerprint(root: Path) -> str:
    """Everything that a render reads and writes: specs, gdngen itself, templates and the output."""
    package = Path(__file__).parent
    inputs = [p for p in package.rglob("*") if p.suffix in (".py", ".yaml")]
    inputs += resources.TEMPLATES.rglob("*.jinja")
    inputs += root.parent.joinpath("specs").rglob("*.yaml")
    outputs = [p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return driver.fingerprint([p.resolve() for p in [*inputs, *outputs]])


def _memory(root: Path) -> Path:
    return root.parent / ".cache" / "gdngen" / "check"


def _remembered(root: Path) -> bool:
    return write.read(_memory(root)) == _fingerprint(root)


def _remember(root: Path) -> None:
    write.replace(_memory(root), _fingerprint(root))
