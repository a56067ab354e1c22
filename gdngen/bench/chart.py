"""A bar chart of a benchmark as SVG text: one group a variant and shape, the floor across its bars.

Colours follow the reader's light or dark scheme. The same run gives the same text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from gdngen.bench.timings import OURS, Row, Run, groups

WIDTH, LEFT, RIGHT = 960, 120, 210  # room for names on the left, for figures on the right
BAR, GAP, TITLE, SPACE = 20, 6, 26, 20  # heights, and what lies between groups
TOP, BOTTOM = 62, 40
LETTER = 7.0  # px, about, of a 13 px letter
STYLE = """\
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 12px; fill: #59636e }
  .title { font-weight: 600 }
  .page { fill: #ffffff }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .ours { fill: #0969da }
  .peer { fill: #9a6700; fill-opacity: .75 }
  .floor { stroke: #cf222e; stroke-width: 2; stroke-dasharray: 4 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .small { fill: #9198a1 }
    .page { fill: #0d1117 }
    .grid { stroke: #3d444d }
    .ours { fill: #4493f8 }
    .peer { fill: #d29922 }
    .floor { stroke: #f85149 }
  }"""


def svg(run: Run) -> str:
    """The chart of every row that has a time; says so where none has."""
    shown = {key: [r for r in rows if r.rounds] for key, rows in groups(run.rows).items()}
    shown = {key: rows for key, rows in shown.items() if rows}
    most = max((max(r.ms, r.floor) for rows in shown.values() for r in rows), default=1.0)
    step = _step(most)
    scale = (WIDTH - LEFT - RIGHT) / most
    body: list[str] = []
    y = TOP
    for (variant, shape), rows in shown.items():
        body.append(
            _text(LEFT, y + 14, f"{variant}  ", "title")
            + _text(WIDTH - 12, y + 14, shape, "small", "end")
        )
        y += TITLE
        top = y
        for row in rows:
            body += _bar(row, y, scale)
            y += BAR + GAP
        x = LEFT + rows[0].floor * scale
        body.append(
            f'<line class="floor" x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{y - GAP + 4}"/>'
        )
        y += SPACE
    if not shown:
        body.append(_text(LEFT, y + 14, "nothing was timed"))
        y += TITLE
    height = y + BOTTOM
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" aria-labelledby="t">',
            f'<title id="t">{escape(_caption(run))}</title>',
            f"<style>\n{STYLE}\n</style>",
            f'<rect class="page" width="{WIDTH}" height="{height}"/>',
            _text(12, 24, _caption(run), "title"),
            _text(12, 44, _legend(run), "small"),
            *_grid(step, most, scale, y),
            *body,
            "</svg>\n",
        ]
    )


def _caption(run: Run) -> str:
    return f"Kernel times on {run.machine.get('gpu', 'a GPU')}, milliseconds"


def _legend(run: Run) -> str:
    rate = run.copy_rate / 1e12
    return f"dashed: the memory floor, what the kernel must move at {rate:.2f} TB/s; a figure's x is times it"


def _bar(row: Row, y: int, scale: float) -> list[str]:
    length = max(1.0, row.ms * scale)
    kind = "ours" if row.who == OURS else "peer"
    figure = f"{row.ms:.3f} ms, {row.over_floor:.2f}x" + (" (wrong)" if row.wrong else "")
    after = max(length, row.floor * scale) + 8
    return [
        _text(LEFT - 8, y + 15, _short(row.who, LEFT - 20), anchor="end"),
        f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>',
        _text(LEFT + after, y + 15, figure),
    ]


def _grid(step: float, most: float, scale: float, bottom: int) -> list[str]:
    """Lines at round times, and their figures below."""
    out = []
    for i in range(int(most / step * (1 + 1e-9)) + 1):
        x = LEFT + i * step * scale
        out.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>')
        out.append(_text(x, bottom + 16, f"{i * step:g}", "small", "middle"))
    return out


def _step(most: float) -> float:
    """A round distance, 1, 2 or 5 times a power of ten, with four to ten lines up to `most`."""
    power = 10.0 ** math.floor(math.log10(most / 4))
    fits: Sequence[float] = [m * power for m in (1, 2, 5) if m * power <= most / 4]
    return round(fits[-1], 12)


def _short(text: str, room: float) -> str:
    letters = int(room / LETTER)
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (
        f' text-anchor="{anchor}"' if anchor else ""
    )
    return f'<text x="{x:g}" y="{y:g}"{attributes}>{escape(text.strip())}</text>'
