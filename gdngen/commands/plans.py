"""`gdngen plan` and `gdngen explain`: who shares storage, and why."""

import dataclasses
import json
import tempfile
from pathlib import Path

from gdngen import driver
from gdngen.commands import given
from gdngen.devices import device, devices
from gdngen.driver import Checked, Loaded
from gdngen.plan import plan as planning
from gdngen.render import write
from gdngen.show import choice, tables


def add(commands) -> None:
    made = given.command(commands, "plan", _plan, "show who shares storage, in how many bytes")
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

    made = given.command(
        commands, "explain", _explain, "say why a plan is as it is, or why a buffer lies there", 1
    )
    made.add_argument("buffer", nargs="?", metavar="BUFFER", help="this one alone")
    made.add_argument("--variant", metavar="NAME", help="of a spec that has several")
    made.add_argument("--device", type=str, help="held against this device's limits")
    made.add_argument(
        "--target", action="append", default=[], help="plan for this target, not the spec's first"
    )
    made.add_argument("--json", action="store_true", help="the same as data")


def _plan(options) -> int:
    on = device(options.device) if options.device else None
    loaded, wish = choice.only(given.load(options), options.variant), given.wish(options)
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
            for target in given.targets(options) or v.kernel.targets:
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
        for target in given.targets(options)
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

    loaded = choice.only(given.load(options), options.variant)
    spec, v = choice.one(loaded, "an explanation")
    wish, target = (
        driver.wished(v, given.wish(options)),
        (given.targets(options) or v.kernel.targets)[0],
    )
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
        given.require("--compare-compiler, without --no-lower,")
    with tempfile.TemporaryDirectory() as folder:
        rows = compare.rows(
            variants, wish, given.targets(options), not options.no_lower, Path(folder)
        )
    if options.json:
        print(json.dumps([vars(r) for r in rows], indent=1))
    else:
        print(tables.comparison(rows))
    return 1 if any(r.below for r in rows) else 0


def _diff(options, loaded: list[Loaded], wish: planning.Wish) -> int:
    from gdngen.show import compare

    for v in _free(loaded):
        for target in given.targets(options) or v.kernel.targets:
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
