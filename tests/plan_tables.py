"""Tables of plans in README.md and docs/, as gdngen prints them today.

    python tests/plan_tables.py [--lower]

writes them anew; --lower also asks the compiler for its aggressive merging, which takes minutes once.
`test_plan_tables.py` fails where a table is not what gdngen says.
"""

import contextlib
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

from gdngen import cli, driver
from gdngen.plan import plan as planning
from gdngen.plan.plan import Wish

ROOT = Path(__file__).parent.parent
README, PLANNER, MAPS = ROOT / "README.md", ROOT / "docs/planner.md", ROOT / "docs/maps.md"
INSPECT = ROOT / "docs/inspect.md"
SAMPLE = (
    "plan specs/prepare.yaml --objective bytes --set BC=64 --set DK=64 --set DV=64 --set io=float16 "
    "--target sm_80"
)
NAMED = "specs/prepare.yaml{} --variant prepare_c64_k64_v64_float16 --objective bytes"
COMPARED = "plan specs/prepare.yaml --compare-compiler --objective bytes"
INSPECTED = "inspect tests/inspect/prepare_apart.py --device metax-c500"
FAULTS = "mutate --plans specs/prepare.yaml tests/specs/forty.yaml --random 20"
WISHES = {
    "`blocks`, the default": Wish(),
    "`bytes`": Wish("lean", "bytes"),
    "`--allow-reload`": Wish("lean", "bytes", allow_reload=True),
    "`--allow-reload --allow-views`": Wish("lean", "bytes", allow_reload=True, allow_views=True),
}


def printed(command: str) -> str:
    """A command with what it prints, as a block of code."""
    out = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(out):
        assert cli.main(command.split()) == 0
    return f"```\n$ gdngen {command}\n{out.getvalue()}```"


def least() -> str:
    """Bytes of every variant, with more and more allowed."""
    rows = [["variant", "`separate`", *WISHES], ["---", *["---:"] * (len(WISHES) + 1)]]
    for v in driver.load(ROOT / "specs/prepare.yaml").variants:
        if v.kernel.policy is None:
            plans = [
                planning.plan(v.kernel, v.found, w, "sm_80").plan
                for w in (Wish("separate"), *WISHES.values())
            ]
            apart, *rest = plans
            asked = [sum(s.bytes for s in apart.slots), *(p.asked for p in rest)]
            rows.append([v.kernel.module, *(f"{n:,}" for n in asked)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


Block = tuple[Path, str, Callable[[], str]]
QUICK: tuple[Block, ...] = (
    (README, "plan", lambda: printed(SAMPLE)),
    (PLANNER, "least", least),
    (PLANNER, "planted", lambda: printed(FAULTS)),
    (MAPS, "map", lambda: printed(f"plan {NAMED.format('')} --map")),
    (MAPS, "explained", lambda: printed(f"explain {NAMED.format('')}")),
    (MAPS, "story", lambda: printed(f"explain {NAMED.format(' k_beta')}")),
    (INSPECT, "inspected", lambda: printed(INSPECTED)),
)
SLOW: tuple[Block, ...] = ((README, "compared", lambda: printed(COMPARED)),)


def place(page: Path, name: str) -> tuple[int, int]:
    """Where a page has what stands between `<!-- name -->` and `<!-- end -->`."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", page.read_text(), re.S)
    assert found, f"{page.name} has no place for '{name}'"
    return found.span(1)


def block(page: Path, name: str) -> str:
    start, end = place(page, name)
    return page.read_text()[start:end]


def main() -> None:
    for page, name, text in QUICK + (SLOW if "--lower" in sys.argv else ()):
        old, new = block(page, name), text()
        start, end = place(page, name)
        page.write_text(page.read_text()[:start] + new + page.read_text()[end:])
        print(f"{page.name}: {name}: {'as it was' if old == new else 'written'}")


if __name__ == "__main__":
    main()
