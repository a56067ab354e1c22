"""`gdngen`: the only place that prints or exits.

Exit codes: 0 fine, 1 a check failed, 2 a mistake in a spec or on the command line, 130 stopped by Ctrl-C.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gdngen import __version__, driver, new, resources
from gdngen.devices import Device, device, devices
from gdngen.driver import Checked, Loaded, Module
from gdngen.errors import GdngenError, show
from gdngen.inspect import command as inspecting
from gdngen.plan import plan as planning
from gdngen.plan.lean import OBJECTIVES
from gdngen.render import write
from gdngen.show import choice, tables
from gdngen.show.progress import Progress, say

GENERATED = "generated"


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    options = _parser().parse_args(argv)
    quiet, verbose = (getattr(options, name, False) for name in ("quiet", "verbose"))
    options.progress = Progress(sys.stderr, quiet, verbose)
    if not verbose:
        os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")
    try:
        return options.run(options)
    except GdngenError as e:
        options.progress.close()
        say(e, sys.stderr)
        return 2
    except OSError as e:
        if isinstance(e, BrokenPipeError):  # the reader, say `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        options.progress.close()
        say(f"error: {e.filename or ''}: {e.strerror}".replace(": :", ":"), sys.stderr)
        return 2
    except KeyboardInterrupt:
        options.progress.close()
        print("stopped", file=sys.stderr)
        return 130
    finally:
        options.progress.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gdngen",
        description="Specs of Gated DeltaNet kernels -> planned, checked TileLang source.",
        epilog="To start with: gdngen new mine, then gdngen plan mine.yaml and gdngen verify mine.yaml",
    )
    parser.add_argument("--version", action="version", version=f"gdngen {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run, text: str, specs: str | int = "*") -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        made.add_argument(
            "specs", nargs=specs, type=Path, metavar="SPEC", help="default: all of specs/"
        )
        made.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", type=_setting,
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

    def templates(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--templates", type=Path, metavar="DIR",
            help="a template that lies there, say statements.jinja, stands for gdngen's own",
        )  # fmt: skip

    made = command("render", _render, "write the kernels of specs into generated/")
    templates(made)
    made.add_argument("-o", metavar="DIR", dest="out", help="write there instead; - prints")
    made.add_argument(
        "--target", action="append", default=[], help="plan for this target, not the spec's"
    )
    made.add_argument(
        "--device", type=str, help="plan for this device, and refuse what doesn't fit it"
    )

    made = command("plan", _plan, "show who shares storage, in how many bytes")
    made.add_argument("--device", type=str, help=f"one of: {' '.join(devices())}")
    made.add_argument(
        "--target", action="append", default=[], help="plan for this target, not the spec's"
    )
    made.add_argument("--json", action="store_true", help="the same as data")

    made.add_argument(
        "--all-devices", action="store_true", help="blocks per SM on every known device"
    )
    made.add_argument(
        "--compare-compiler", action="store_true",
        help="beside the compiler's own merging, default and (lowered here, slow) aggressive",
    )  # fmt: skip
    made.add_argument(
        "--no-lower", action="store_true", help="with it: leave the aggressive column out"
    )
    made.add_argument(
        "--diff",
        nargs=2,
        choices=planning.POLICIES,
        metavar="POLICY",
        help="what the second does that the first doesn't",
    )
    made.add_argument("--variant", metavar="NAME", help="no other variant than this one")
    made.add_argument("--map", action="store_true", help="draw who lives where and when, as text")
    made.add_argument("--svg", type=Path, metavar="FILE", help="write the map of one variant")
    made.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page of all variants' maps"
    )

    made = command("explain", _explain, "say why a plan is as it is, or why a buffer lies there", 1)
    made.add_argument("buffer", nargs="?", metavar="BUFFER", help="this one alone")
    made.add_argument("--variant", metavar="NAME", help="of a spec that has several")
    made.add_argument("--device", type=str, help="held against this device's limits")
    made.add_argument(
        "--target", action="append", default=[], help="plan for this target, not the spec's first"
    )
    made.add_argument("--json", action="store_true", help="the same as data")

    made = command("check", _check, "is generated/ what the specs render? shows the difference")
    templates(made)
    made.add_argument("-o", metavar="DIR", dest="out", help="look there instead of generated/")
    made.add_argument(
        "--full", action="store_true", help="render everything, whatever was remembered"
    )

    made = command(
        "verify", _verify, "run the kernels, compare with the right answer and the planned bytes"
    )
    templates(made)
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument(
        "--target", action="append", default=[], help="lower for this target, not the spec's"
    )
    made.add_argument(
        "--judge-only", action="store_true",
        help="replay the plans on the storage they name, and no more: needs neither torch nor tilelang",
    )  # fmt: skip
    made.add_argument(
        "--emulate", action="store_true",
        help="run the CUDA for sm_80 and sm_90 on the CPU: races, barriers, stray accesses; needs a C++ compiler",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="the same as data")

    made = command(
        "mutate", _mutate, "delete each barrier of the emulated CUDA in turn: is it missed?"
    )
    made.add_argument(
        "--plans",
        action="store_true",
        help="break plans instead, in every way that the judge must see",
    )
    made.add_argument(
        "--random", type=int, default=0, metavar="N", help="with --plans: of N random specs too"
    )
    made.add_argument("--json", action="store_true", help="the same as data")

    made = command("bench", _bench, "time kernels on a GPU, beside others and the memory floor")
    made.add_argument(
        "--shape", action="append", default=[], metavar="NAME=SIZE,...",
        help="runtime sizes, usual ones for those left out; several are timed one after the other",
    )  # fmt: skip
    made.add_argument(
        "--peers",
        default="all",
        help="a list such as fla,flashqla,neumann; all or none (default: all)",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the same as data")
    made.add_argument("--svg", type=Path, metavar="FILE", help="write a bar chart")
    made.add_argument("--jobs", type=int, metavar="N", help="compile so many kernels at once")

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

    inspecting.add(commands, _setting).set_defaults(run=_inspect)
    return parser


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise argparse.ArgumentTypeError(f"'{text}': NAME=VALUE is meant, say BC=64")
    return name, value


def _settings(options) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in options.set:
        if given.setdefault(name, value) != value:
            raise GdngenError(f"error: --set {name} is given twice, as {given[name]} and {value}")
    return given


def _specs(options) -> list[Path]:
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


def _require(what: str) -> None:
    """Compiling and running need packages that rendering does without."""
    lacking = [name for name in ("torch", "tilelang") if not importlib.util.find_spec(name)]
    if lacking:
        raise GdngenError(
            f"error: {what} needs {' and '.join(lacking)}: pip install 'gdngen[run]'\n"
            "  help: gdngen verify --judge-only judges plans without"
        )


def _templates(options) -> Path | None:
    """The folder of --templates: some file there must stand for one of gdngen's."""
    own, known = options.templates, sorted(p.name for p in resources.TEMPLATES.glob("*.jinja"))
    if own and not any((own / name).is_file() for name in known):
        raise GdngenError(
            f"error: --templates {own}: it has no template of gdngen's\n  help: {' '.join(known)}"
        )
    return own


def _load(options) -> list[Loaded]:
    """Every spec, or one error that holds all specs' mistakes."""
    loaded, wrong = [], []
    kernels = [p for p in _specs(options) if not driver.is_pipeline(p)]
    if not kernels and options.run not in (_render, _check):
        raise GdngenError(
            f"error: {options.specs[0]} is of functions, not of a kernel\n"
            "  help: name the specs of the kernels that its steps run"
        )
    for path in options.progress.over(kernels, "reading"):
        try:
            loaded.append(driver.load(path, _settings(options)))
        except GdngenError as e:
            wrong.append(str(e))
    if wrong:
        raise GdngenError("\n".join(wrong))
    for one in loaded:
        for warning in one.warnings:
            say(show(warning, one.sources), sys.stderr)
    return loaded


def _wish(options) -> planning.Wish:
    on = getattr(options, "device", None)
    return planning.Wish(
        policy=options.policy,
        objective=options.objective,
        allow_reload=options.allow_reload,
        allow_views=options.allow_views,
        device=on if on in devices() else None,
    )


def _targets(options) -> list[str]:
    given = list(options.target)
    if getattr(options, "device", None) and options.device in devices():
        given.append(device(options.device).target)
    for target in given:
        device(target)  # every target names a row
    return given


# -- render and check ------------------------------------------------------------------------------


def _home(options) -> Path:
    """The output folder: beside the `specs` folder of the first spec, or here."""
    if options.out:
        return Path(options.out)
    first = _specs(options)[0]
    root = driver.spec_root(first)
    return (root.parent if root.name == "specs" else Path(".")) / GENERATED


def _pipelines(options) -> dict[str, str]:
    """Paths and texts of the modules of functions; a variant that --set names has none."""
    if options.set:
        return {}
    own = _templates(options)
    return dict(driver.pipeline(p, own) for p in _specs(options) if driver.is_pipeline(p))


def _modules(
    options, loaded: list[Loaded], targets: Iterable[str], own: Path | None
) -> list[Module]:
    """Every module with its final text."""
    found, over = [], options.progress.over
    for one in over(_singly(loaded), "planning", _variant):
        found += driver.modules(one, _wish(options), targets, own)
    texts = driver.formatting(found)
    return list(over(texts, "formatting", lambda m: m.path, len(found)))


def _singly(loaded: list[Loaded]) -> list[Loaded]:
    """The same, one variant at a time."""
    return [dataclasses.replace(one, variants=(v,)) for one in loaded for v in one.variants]


def _variant(one: Loaded) -> str:
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
    settings, everything = _settings(options), not options.specs and not options.set
    loaded, own = _load(options), _templates(options)
    special = settings or _wish(options) != planning.Wish() or options.target or options.device
    if (special or own) and not options.out:
        raise GdngenError(
            "error: generated/ holds what the specs say; these options would render something else\n"
            "  help: name a folder with -o DIR, or print with -o -"
        )
    if options.device and not _fits(options, loaded, device(options.device)):
        return 1
    found = _modules(options, loaded, _targets(options), own)
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


def _fits(options, loaded: list[Loaded], on: Device) -> bool:
    wrong = []
    for one in loaded:
        for v in one.variants:
            p = planning.plan(v.kernel, v.found, driver.wished(v, _wish(options)), on.target)
            if p.plan.asked > on.limit:
                first, *rest = tables.peak_lines(p, on, one, v, _wish(options))
                wrong += ["error: " + first, *rest]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
    return not wrong


def _check(options) -> int:
    root = _home(options)
    given = options.specs or options.set or options.out or options.templates
    plain = not given and _wish(options) == planning.Wish()
    if plain and not options.full and _remembered(root):
        print(f"{root} is what the specs render (unchanged since the last check)")
        return 0
    loaded, own = _load(options), _templates(options)
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


# -- plan ------------------------------------------------------------------------------------------


def _plan(options) -> int:
    on = device(options.device) if options.device else None
    loaded, wish = choice.only(_load(options), options.variant), _wish(options)
    if options.map or options.svg or options.html:
        return _maps(options, loaded, wish)
    if options.compare_compiler:
        return _compare(options, loaded, wish)
    if options.diff:
        return _diff(options, loaded, wish)
    if options.all_devices:
        print(tables.all_devices([v for one in loaded for v in one.variants], wish))
        return 0
    rows, lines = [], []
    for one in loaded:
        for v in options.progress.over(one.variants, "planning", lambda v: v.kernel.module):
            for target in _targets(options) or v.kernel.targets:
                where = on or device(target)
                own, plans = driver.wished(v, wish), tables.overview(v, wish, target)
                rows.append(tables.plan_row(v, plans, own, where))
                if on and not rows[-1]["fits"]:
                    lines += tables.peak_lines(plans[own.policy], on, one, v, own)
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        _print_plan(options, rows)
        if lines:
            print("\n" + "\n".join(lines))
    return 1 if lines else 0


def _maps(options, loaded: list[Loaded], wish: planning.Wish) -> int:
    from gdngen.show import drawing, maps, maptext

    if options.svg:
        choice.one(loaded, "--svg", "; --html has them all")
    found = [
        maps.storage_map(v, driver.wished(v, wish), target, device(options.device or target))
        for one in loaded
        for v in one.variants
        for target in _targets(options)
        or (v.kernel.targets if options.html else v.kernel.targets[:1])
    ]
    if options.svg:
        write.replace(options.svg, drawing.svg(found[0]))
    if options.html:
        title = ", ".join(one.path.as_posix() for one in loaded)
        write.replace(options.html, drawing.html(title, found))
    if options.json:
        print(json.dumps([dataclasses.asdict(m) for m in found], indent=1))
    elif options.map:
        print("\n\n".join("\n".join(maptext.lines(m)) for m in found))
    return 1 if options.device and not all(m.fits for m in found) else 0


def _explain(options) -> int:
    from gdngen.show import explain

    loaded = choice.only(_load(options), options.variant)
    spec, v = choice.one(loaded, "an explanation")
    wish, target = driver.wished(v, _wish(options)), (_targets(options) or v.kernel.targets)[0]
    on = device(options.device or target)
    if options.buffer:
        told = explain.story(v, wish, target, on, options.buffer)
        lines = explain.story_lines(told)
    else:
        told = explain.explained(spec, v, wish, target, on)
        lines = explain.lines(told)
    print(json.dumps(dataclasses.asdict(told), indent=1) if options.json else "\n".join(lines))
    return 0


def _compare(options, loaded: list[Loaded], wish: planning.Wish) -> int:
    from gdngen.show import compare

    variants = _free(loaded)
    if not options.no_lower:
        _require("--compare-compiler, without --no-lower,")
    with tempfile.TemporaryDirectory() as folder:
        rows = compare.rows(variants, wish, _targets(options), not options.no_lower, Path(folder))
    if options.json:
        print(json.dumps([vars(r) for r in rows], indent=1))
    else:
        print(tables.comparison(rows))
    return 1 if any(r.below for r in rows) else 0


def _diff(options, loaded: list[Loaded], wish: planning.Wish) -> int:
    from gdngen.show import compare

    for v in _free(loaded):
        for target in _targets(options) or v.kernel.targets:
            both = [
                planning.plan(v.kernel, v.found, dataclasses.replace(wish, policy=p), target)
                for p in options.diff
            ]
            print("\n".join(compare.differences(v, *both, wish)))
    return 0


def _free(loaded: list[Loaded]) -> list[Checked]:
    """Variants that leave the policy to the command line; all of them where none does."""
    every = [v for one in loaded for v in one.variants]
    return [v for v in every if v.kernel.policy is None] or every


def _print_plan(options, rows: list[dict]) -> None:
    headings = [
        "variant",
        "target",
        *planning.POLICIES,
        "asked",
        "lower bound",
        "fits",
        "registers",
        "blocks/SM",
    ]
    limits = sorted({f"{r['device']} {r['limit']:,}" for r in rows})
    body = []
    for r in rows:
        storage = [f"{r['storage'][p]:,}" for p in planning.POLICIES]
        asked = f"{r['asked']:,}" + ("*" if r["compiler_merging"] == "on" else " ")
        fits = "yes" if r["fits"] else "no"
        registers = str(r["registers"]) + (" " if r["registers_recorded"] else "~")
        held = [registers, str(r["blocks_per_sm"])]
        body.append(
            [r["variant"], r["target"], *storage, asked, f"{r['lower_bound']:,}", fits, *held]
        )
    print(tables.table(headings, body, left=2))
    print(
        f"\nBytes of shared memory a block; asked under --policy {options.policy}. Limits: {', '.join(limits)}."
    )
    if any(r["compiler_merging"] == "on" for r in rows):
        print("* the compiler's own merging stays on: it asks for less than the slots would")
    if not all(r["registers_recorded"] for r in rows):
        print("~ registers are estimated: no compiler has reported this variant on this target")
    for line in tables.sentences(rows):
        print(line)


# -- verify ----------------------------------------------------------------------------------------


def _verify(options) -> int:
    from gdngen.verify import sweep

    if not options.judge_only:
        _require("verify")
    if options.emulate:
        return _emulate(options)
    loaded, wrong = _load(options), 0
    over, judged, targets = options.progress.over, [], _targets(options)
    for one in over(_singly(loaded), "judging", _variant):
        judged += sweep.judged([one], _wish(options), targets)
    faulty = [(name, faults) for name, faults in judged if faults]
    if options.judge_only and options.json:
        print(json.dumps([{"plan": name, "faults": faults} for name, faults in judged], indent=1))
    elif not options.json:
        for name, faults in faulty:
            print(f"WRONG  {name}\n    " + "\n    ".join(faults))
        if not options.quiet or options.judge_only or faulty:
            print(f"{len(judged) - len(faulty)} of {len(judged)} plans are right, says the judge")
    if options.judge_only or faulty:
        return 1 if faulty else 0
    with tempfile.TemporaryDirectory() as folder:
        own = _templates(options)
        jobs, verdicts = [], []
        for one in over(_singly(loaded), "rendering", _variant):
            jobs += sweep.jobs([one], _wish(options), targets, Path(folder), own)
        done = over(sweep.run(jobs, options.device), "running", lambda d: d[0].path.stem, len(jobs))
        for n, (job, verdict) in enumerate(done, 1):
            verdicts.append(verdict)
            wrong += not verdict.ok
            if not options.json and not (options.quiet and verdict.ok):
                print(f"[{n}/{len(jobs)}] {sweep.line(job, verdict)}", flush=True)
                for problem in verdict.problems():
                    print(f"    {problem}")
    if options.json:
        print(json.dumps([v.json() for v in verdicts], indent=1))
    elif verdicts:
        notes = [] if options.quiet else [note for v in verdicts for note in v.notes]
        for note in dict.fromkeys(notes):
            print(f"note: {note}")
        print(f"{len(jobs) - wrong} of {len(jobs)} kernels are right on {options.device}")
    return 1 if wrong else 0


def _emulate(options) -> int:
    from gdngen.verify import emulate, sweep

    if options.device != "cpu":
        raise GdngenError("error: --emulate runs on the CPU\n  help: leave --device out")
    emulate.ready()
    loaded, done = _load(options), []
    with tempfile.TemporaryDirectory() as folder:
        own = _templates(options)
        jobs = sweep.jobs(loaded, _wish(options), _targets(options), Path(folder), own)
        tasks = emulate.tasks(jobs)
        found = options.progress.over(
            emulate.sweep(tasks), "emulating", lambda e: e.module, len(tasks)
        )
        for one in found:
            done.append(one)
            if not options.json and not (options.quiet and one.ok):
                lines = [emulate.line(one), *(f"    {problem}" for problem in one.problems())]
                print(f"[{len(done)}/{len(tasks)}]", "\n".join(lines), flush=True)
    if options.json:
        print(json.dumps([one.json() for one in done], indent=1))
    else:
        print(emulate.total(done))
    return 0 if all(one.ok for one in done) else 1


# -- mutate ----------------------------------------------------------------------------------------


def _mutate(options) -> int:
    from gdngen.verify import emulate, waits

    if options.plans:
        return _mutate_plans(options)
    _require("mutate")
    emulate.ready()
    loaded, done = waits.chosen(_load(options)), []
    with tempfile.TemporaryDirectory() as folder:
        jobs = waits.jobs(loaded, _wish(options), Path(folder))
        found = options.progress.over(waits.sweep(jobs), "mutating", lambda w: w.module, len(jobs))
        for one in found:
            done.append(one)
            if not options.json and not (options.quiet and one.ok):
                print("\n".join(waits.lines(one)), flush=True)
    if options.json:
        print(json.dumps([one.json() for one in done], indent=1))
    else:
        print(waits.total(done))
    return 0 if all(one.ok for one in done) else 1


def _mutate_plans(options) -> int:
    from gdngen.judge import planted

    found = [
        p
        for one in _load(options)
        for v in one.variants
        if not v.kernel.roles
        for p in planted.planted(v, v.kernel.module)
    ]
    found += planted.in_random(range(options.random))
    missed = [p for p in found if not p.caught]
    if options.json:
        print(json.dumps([vars(p) for p in found], indent=1))
    else:
        for p in missed:
            print(f"MISSED  {p.kernel}: {p.kind} {', '.join(p.names)}")
        print(tables.table(["fault", "", "planted", "caught"], planted.rows(found), left=2))
    return 1 if missed else 0


# -- bench -----------------------------------------------------------------------------------------


def _bench(options) -> int:
    from gdngen.bench import bench, building, chart, gpu, peers, shapes, timings

    def tell(line: str) -> None:
        if not options.quiet:
            print(line, file=sys.stderr, flush=True)

    wanted = [shapes.parse(text) for text in options.shape] or [{}]
    asked = peers.chosen(options.peers)
    specs = _specs(options)
    functions = [p for p in specs if driver.is_pipeline(p)]
    cases = _cases(options, functions, wanted)
    kernels = len(functions) < len(specs)
    gpu.require()
    loaded = _load(options) if kernels else []
    with tempfile.TemporaryDirectory() as folder:
        jobs = building.jobs(loaded, _wish(options), gpu.target(), Path(folder))
        found = bench.run(jobs, wanted if kernels else [], asked, tell, options.jobs)
    if cases:
        from gdngen.bench import whole

        names = ",".join(p.name for p in asked) if options.peers != "all" else "all"
        found = timings.joined(found, whole.run(cases, names, tell))
    if options.json:
        write.replace(options.json, timings.dumps(found))
    if options.svg:
        write.replace(options.svg, chart.svg(found))
    print(timings.table(found))
    return 1 if bench.failed(found) else 0


def _cases(options, functions: list[Path], wanted: list[dict[str, int]]) -> list:
    """What to time of pipelines: a forward and a step of decoding on each shape. With kernels' specs
    beside them, whose runtime sizes --shape names, on the usual ones."""
    if not functions:
        return []
    from gdngen.bench import whole

    for path in functions:
        if path.stem != whole.PIPELINE:
            raise GdngenError(
                f"error: {path}: only functions of {whole.PIPELINE} are timed\n"
                "  help: name the specs of its kernels"
            )
    settings = _settings(options)
    io = settings.pop("io", "bfloat16")
    alone = len(functions) == len(_specs(options))
    if settings and alone:
        raise GdngenError(
            f"error: --set {next(iter(settings))}: functions have no such setting\n"
            "  help: --set io=float16; sizes are a --shape, say B=2,H=32,T=8192,DK=128"
        )
    return [
        whole.case(kind, sizes, io)
        for sizes in (wanted if alone else [{}])
        for kind in whole.FUNCTIONS
        if kind == "forward" or "T" not in sizes
    ]


# -- to start with ---------------------------------------------------------------------------------


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


# -- inspect ---------------------------------------------------------------------------------------


def _inspect(options) -> int:
    outcome = inspecting.run(options, _settings(options))
    print(outcome.text)
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
