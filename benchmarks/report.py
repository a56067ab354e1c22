"""Writes the measured tables of docs/performance.md and docs/numerics.md from benchmark JSON: no figure is copied by hand.

    python benchmarks/report.py            write
    python benchmarks/report.py --check    exit code 1 where a page is not what the JSON says

Columns that nothing was measured for are left out. A table stands between `<!-- measured: FILE -->` and `<!-- end -->`; FILE is one of
benchmarks/results/, written by `gdngen bench --json` and the scripts beside this one, and may be followed by a glob of variants, or,
for hard numbers, by what was measured and in which dtype: prepare/bfloat16.
"""

import argparse
import fnmatch
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gdngen.bench import checked, numerics, timings

PAGES = tuple(ROOT / "docs" / name for name in ("performance.md", "numerics.md"))
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- measured: (\S+)(?: (\S+))? -->\n).*?(<!-- end -->)", re.S)
NOTHING = "Not measured yet.\n"


def rendered(page: str, results: Path) -> str:
    """The page with every measured table as the JSON in `results` has it."""

    def block(found: re.Match) -> str:
        head, name, select, end = found.groups()
        path = results / name
        return head + (table(path.read_text(), select or "*") if path.exists() else NOTHING) + end

    return BLOCK.sub(block, page)


def table(text: str, select: str) -> str:
    """A Markdown table of the variants that fit a glob, and where they were measured."""
    found = json.loads(text)
    if "numerics" in found:
        return numerics.markdown(found, *select.split("/"))
    if isinstance(found, list):
        return checked.markdown(r for r in found if fnmatch.fnmatchcase(r["kernel"], select))
    run = timings.loads(text)
    rows = [r for r in run.rows if fnmatch.fnmatchcase(r.variant, select)]
    if not rows:
        return NOTHING
    right = ["---"] * timings.TEXTS + ["---:"] * (len(timings.HEADINGS) - timings.TEXTS)
    body = [timings.cells(r, same) for same in timings.groups(rows).values() for r in same]
    told = [i for i in range(len(right)) if i < timings.TEXTS or any(r[i] != "-" for r in body)]
    lines = [[cells[i] for i in told] for cells in (timings.HEADINGS, right, *body)]
    machine = ", ".join(f"{k} {v}" for k, v in run.machine.items())
    out = ["| " + " | ".join(cells) + " |" for cells in lines]
    out += ["", f"{machine}; copies at {run.copy_rate / 1e12:.2f} TB/s.", ""]
    out += [f"- {r.variant} at {r.shape}, {r.who}: {r.wrong}" for r in rows if r.wrong]
    skipped = timings.told(s for s in run.skipped if fnmatch.fnmatchcase(s.variant, select))
    out += [f"- {s.who} is not timed beside {', '.join(names)}: {s.why}" for s, names in skipped]
    return "\n".join(out).rstrip() + "\n"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument(
        "--check", action="store_true", help="write nothing, say whether it is right"
    )
    check = options.parse_args().check
    wrong = 0
    for page in PAGES:
        name, have = page.relative_to(ROOT), page.read_text(encoding="utf-8")
        want = rendered(have, RESULTS)
        if check and have != want:
            print(f"{name} is not what benchmarks/results says; run benchmarks/report.py")
            wrong = 1
        elif have != want:
            page.write_text(want, encoding="utf-8", newline="\n")
            print(f"wrote {name}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
