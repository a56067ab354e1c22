"""An inspection as text for people, and as data."""

from __future__ import annotations

from collections.abc import Iterable

from gdngen.devices import Device
from gdngen.errors import Diagnostic, show
from gdngen.inspect.asked import VERSION
from gdngen.inspect.inspection import Inspection, Row
from gdngen.inspect.sharing import Share
from gdngen.show.tables import table


def text(
    one: Inspection, sources: dict[str, str], rows: Iterable[Device], lowered: int | None
) -> str:
    """The whole report of one kernel."""
    kernel = one.kernel
    given = ", ".join(f"{name}={value}" for name, value in kernel.settings.items())
    threads = f"{kernel.threads} threads" if kernel.threads else "threads not known"
    out = [
        f"{kernel.where.file}:{kernel.where.line}: {kernel.name}, {threads}"
        + f" ({given})" * bool(given)
    ]
    out += ["", *_tiles(one), "", *_bytes(one, lowered), *_fits(one, rows, lowered)]
    if one.shares or (one.peak and one.peak.later):
        out.append("")
    if one.shares:
        out += _shares(one)
    for x in one.peak.later if one.peak else ():
        out.append(
            f"later: {x.tile.name} is loaded on line {x.line} and first read on line {x.use}: loaded there, it "
            f"takes {x.tile.bytes:,} bytes less at the peak"
        )
    for d in one.diagnostics:
        out += ["", show(d, sources)]
    for n in kernel.notes:
        out += ["", show(Diagnostic("note", n.where, n.what), sources)]
    return "\n".join(out)


def _tiles(one: Inspection) -> list[str]:
    body = []
    for row in one.rows:
        t = row.tile
        also = f"also {', '.join(t.names[1:])}" if len(t.names) > 1 else ""
        also += f"{row.copies} copies, by num_stages" if row.copies > 1 else ""
        shape = f"{t.dtype}[{', '.join(map(str, t.shape))}]"
        body.append([t.name, shape, f"{t.bytes * row.copies:,}", _lines(row), also])
    if not body:
        return ["no shared memory"]
    rows = table(["shared tile", "", "bytes", "lives on lines", ""], body, left=2)
    return [line.rstrip() for line in rows.splitlines()]


def _lines(row: Row) -> str:
    return "never used" if row.lines is None else f"{row.lines[0]} .. {row.lines[1]}"


def _bytes(one: Inspection, lowered: int | None) -> list[str]:
    a = one.asked
    beside = f", with {a.static:,} of them static" if a.static else ""
    out = [f"side by side      {a.plain + a.static:>9,}{beside}" + _why(a.unsure)]
    merged = "as TileLang " + VERSION + " merges"
    out.append(f"merged            {a.merged + a.static:>9,}  {merged}" + _why(a.estimated))
    if one.peak is not None:
        names = ", ".join(t.name for t in one.peak.tiles)
        alone = ", whichever thread runs it" if one.kernel.side_by_side else ""
        out.append(f"live at the peak  {one.peak.bytes:>9,}  line {one.peak.line}: {names}{alone}")
    switch = "off by its pass_configs" if a.reuse == "off" else "on"
    out.append(f"asks for          {a.bytes:>9,}  on {one.device.target}; merging is {switch}")
    if lowered is not None:
        said = (
            "as predicted"
            if lowered == a.bytes
            else f"{lowered - a.bytes:+,} beside what is predicted"
        )
        out.append(f"lowered           {lowered:>9,}  {said}")
    return out


def _why(reasons: tuple[str, ...]) -> str:
    return f"\n  an estimate: {'; '.join(reasons)}" if reasons else ""


def _fits(one: Inspection, rows: Iterable[Device], lowered: int | None) -> list[str]:
    asks = one.asked.bytes if lowered is None else lowered
    beside = one.asked.plain + one.asked.static
    fits, merged, none = [], [], []
    for d in rows:
        which = fits if max(asks, beside) <= d.limit else merged if asks <= d.limit else none
        which.append(d.name)
    out = [f"fits              {' '.join(fits) or 'nothing known'}"]
    if merged:
        out.append(f"  only merged     {' '.join(merged)}")
    if none:
        out.append(f"  too large for   {' '.join(none)}")
    return out


def _shares(one: Inspection) -> list[str]:
    out = []
    for s in one.shares:
        out += _share(s, {r.tile.id: r for r in one.rows})
    a, then = one.asked, one.then
    out.append(
        f"together: side by side {a.plain + a.static:,} -> {then.plain + then.static:,} bytes, "
        f"merged {a.merged + a.static:,} -> {then.merged + then.static:,}"
    )
    if then.merged >= a.merged:
        out.append(
            f"  the merging of TileLang {VERSION} reaches as much by itself; that of other versions and forks "
            "may not, and names hold everywhere"
        )
    return out


def _share(s: Share, rows: dict[str, Row]) -> list[str]:
    guests = " and ".join(g.name for g in s.guests)
    spans = [f"{t.names[-1]} {_lines(rows[t.id])}" for t in (s.host, *s.guests)]
    out = [
        f"share: {guests} can lie on {s.host.name}: their lives never meet ({', '.join(spans)}); "
        f"{s.saved:,} bytes less"
    ]
    sides = list(map(str, s.host.shape))
    if s.columns is not None:
        wide = ", ".join([*sides[:-1], str(s.columns)])
        out.append(f"  line {s.host.where.line}: {s.host.name} = T.alloc_shared([{wide}], ...)")
    width = s.columns or s.host.shape[-1]
    for t in (s.host, *s.guests):
        if t is not s.host:
            out.append(f"  line {t.where.line}: {t.name} = {s.host.name}")
        if t.shape[-1] != width and len(t.shape) > 1:
            out.append(f"    and where it is used whole: {t.name}[:, :{t.shape[-1]}]")
        elif t.shape[-1] != width:
            out.append(f"    and where it is used whole: {t.name}[:{t.shape[-1]}]")
    return out


def data(one: Inspection, rows: Iterable[Device], lowered: int | None) -> dict:
    """The same as data."""
    a = one.asked
    return {
        "file": one.kernel.where.file,
        "line": one.kernel.where.line,
        "kernel": one.kernel.name,
        "settings": dict(one.kernel.settings),
        "threads": one.kernel.threads,
        "target": one.device.target,
        "device": one.device.name,
        "tiles": [
            {
                "name": r.tile.name,
                "names": list(r.tile.names),
                "dtype": r.tile.dtype,
                "shape": list(r.tile.shape),
                "bytes": r.tile.bytes,
                "copies": r.copies,
                "line": r.tile.where.line,
                "lives": list(r.lines) if r.lines else None,
            }
            for r in one.rows
        ],
        "side_by_side": a.plain + a.static,
        "merged": a.merged + a.static,
        "static": a.static,
        "merging": a.reuse,
        "asked": a.bytes,
        "exact": a.exact,
        "estimated": list(a.estimated),
        "lowered": lowered,
        "peak": one.peak
        and {
            "line": one.peak.line,
            "bytes": one.peak.bytes,
            "tiles": [t.name for t in one.peak.tiles],
            "later": [{"tile": x.tile.name, "line": x.line, "use": x.use} for x in one.peak.later],
        },
        "shares": [
            {
                "host": s.host.name,
                "guests": [g.name for g in s.guests],
                "columns": s.columns,
                "saved": s.saved,
            }
            for s in one.shares
        ],
        "then": one.then
        and {
            "side_by_side": one.then.plain + one.then.static,
            "merged": one.then.merged + one.then.static,
        },
        "fits": {d.name: (a.bytes if lowered is None else lowered) <= d.limit for d in rows},
        "diagnostics": [
            {
                "severity": d.severity,
                "line": d.where.line,
                "column": d.where.column,
                "what": d.what,
                "hint": d.hint,
            }
            for d in one.diagnostics
        ],
        "notes": [{"line": n.where.line, "what": n.what} for n in one.kernel.notes],
    }
