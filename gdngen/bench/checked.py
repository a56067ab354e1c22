"""What a GPU said of every kernel: its error, its bytes and registers, and what the checkers found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

HEADINGS = "kernel worst planned asked regs spills blocks/SM racecheck memcheck".split()
TOOLS = ("racecheck", "memcheck")


def rows(
    verified: Mapping[str, Mapping[str, Any]], sanitized: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A row a kernel, of what `benchmarks/gpu.py` writes to verify.json and sanitize.json.

    A number that is not known is None; `problems` are lines, none where all is well.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, r in verified.items():
        code = r.get("code") or {}
        known = {k: code.get(k) for k in ("planned", "asked", "registers", "spills", "blocks")}
        found[name] = {
            "kernel": name,
            "worst": r["worst"],
            **known,
            "problems": list(r["problems"]),
        }
    for r in sanitized:
        row = found.setdefault(r["kernel"], {"kernel": r["kernel"], "problems": []})
        row[r["tool"]] = r["hazards"]
        if not r["clean"]:
            row["problems"].append(f"{r['tool']}: {r['what']}")
    return [found[name] for name in sorted(found)]


def markdown(found: Iterable[Mapping[str, Any]]) -> str:
    """The rows as a table, and what is wrong below it."""
    found = list(found)
    keys = ("planned", "asked", "registers", "spills", "blocks", *TOOLS)
    lines = [HEADINGS, ["---", *["---:"] * (len(HEADINGS) - 1)]]
    for r in found:
        worst = "-" if r.get("worst") is None else f"{r['worst']:.1e}"
        numbers = ("-" if r.get(k) is None else f"{r[k]:,}" for k in keys)
        lines.append([r["kernel"].removesuffix(".py"), worst, *numbers])
    out = ["| " + " | ".join(cells) + " |" for cells in lines]
    wrong = [f"- {r['kernel']}: {line}" for r in found for line in r["problems"]]
    return "\n".join([*out, "", *wrong]).rstrip() + "\n"
