"""Roles as text: a branch on the thread for each, and a macro for one that runs in several copies."""

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

from gdngen.model import model, roles
from gdngen.model.model import Buffer, Kernel, Role, Statement
from gdngen.render.text import Text, safe
from gdngen.roles import handover
from gdngen.roles.sync import (
    AsyncLoad,
    AsyncStore,
    Barrier,
    BarrierArrive,
    BarrierWait,
    Drain,
    Fence,
    Meet,
    Settle,
    Together,
)

View = dict[str, Any]
THREAD = "thread"  # what the module calls a thread's number


def view(s: Statement, text: Text) -> View | None:
    """What a template needs of a statement that roles alone have; None for any other."""
    match s:
        case AsyncLoad():
            barrier = _slot(s.barrier, s.round, text)
            tiles = {"src": text.region(s.copy.src), "dst": text.region(s.copy.dst)}
            return {"kind": "load_async", **tiles, "barrier": barrier}
        case AsyncStore():
            tiles = {"src": text.region(s.copy.src), "dst": text.region(s.copy.dst)}
            return {"kind": "store_async", **tiles}
        case BarrierWait():
            barrier = _slot(s.barrier, s.round, text)
            return {"kind": "barrier_wait", "barrier": barrier, "parity": _parity(s, text)}
        case BarrierArrive():
            return {"kind": "barrier_arrive", "barrier": _slot(s.barrier, s.round, text)}
        case Settle():
            return {"kind": "settle", "pending": s.pending}
        case Drain():
            return {"kind": "drain"}
        case Together():
            return {"kind": "together"}
        case Fence():
            return {"kind": "fence"}
        case Meet():
            number = f"{s.first} + {safe(s.each)}" if s.each else str(s.first)
            return {"kind": "meet", "number": number, "threads": s.threads}
    return None


def _slot(b: Barrier, at: ast.expr, text: Text) -> str:
    if b.slots == 1 and (isinstance(at, ast.Constant) or not text.kernel.roles):
        return safe(b.name)
    place = ast.BinOp(at, ast.Mod(), ast.Constant(b.slots))
    return f"{safe(b.name)}[{text.expr(place)}]"


def _parity(s: BarrierWait, text: Text) -> str:
    """Of the phase that a wait is for."""
    if isinstance(s.round, ast.Constant):
        return str((s.round.value // s.barrier.slots + s.behind) % 2)
    phase = ast.BinOp(s.round, ast.FloorDiv(), ast.Constant(s.barrier.slots))
    if s.behind:
        phase = ast.BinOp(phase, ast.Add(), ast.Constant(s.behind))
    return text.expr(ast.BinOp(_plain(phase), ast.Mod(), ast.Constant(2)))


def _plain(node: ast.expr) -> ast.expr:
    """x // 1 + 1 as x + 1."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        return node.left if node.right.value == 1 else node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return ast.BinOp(_plain(node.left), node.op, node.right)
    return node


def page(
    kernel: Kernel, text: Text, views: Callable[[Sequence[Statement]], list[View]], render
) -> View:
    """What the kernel's template needs of its roles.

    views   of a group of statements
    render  text of a group of views
    """
    parted = handover.of(kernel)
    programs = {role.name: views(body) for role, body in parted.programs}
    target = kernel.targets[0]
    shared = [safe(n) for n in _shared_names(kernel, parted)]
    rows, macros = [], []
    for role in kernel.roles:
        own = fragments(kernel, role)
        allocations = [text.allocation(b) for b in own]
        given: list[str] = []
        if role.copies > 1:
            words = set(re.findall(r"[A-Za-z_]\w*", render(programs[role.name])))
            given = [n for n in shared if n in words]
            macros.append(
                {
                    "name": safe(role.name),
                    "parameters": [safe(role.each), *given],
                    "fragments": allocations,
                    "body": programs[role.name],
                    "doc": role.doc,
                }
            )
        for copy in range(role.copies):
            first = role.first + copy * roles.groups(role) * roles.GROUP
            title = role.name.replace("_", " ")
            rows.append(
                {
                    "title": f"{title}, {role.each} = {copy}" if role.each else title,
                    "end": first + roles.groups(role) * roles.GROUP,
                    "registers": role.registers,
                    "more": int(role.registers >= roles.launched(kernel, target)),
                    "threads": 0 if role.threads % roles.GROUP == 0 else first + role.threads,
                    "fragments": [] if role.copies > 1 else allocations,
                    "body": programs[role.name],
                    "call": (
                        f"{safe(role.name)}({', '.join([str(copy), *given])})"
                        if role.copies > 1
                        else ""
                    ),
                }
            )
    return {
        "rows": rows,
        "macros": macros,
        "thread": THREAD,
    }


def barriers(allocated: Sequence[Barrier]) -> list[str]:
    """Lines that allocate them."""
    return [
        f"{safe(b.name)} = T.alloc_barrier(arrive_count=[{b.arrivals}]{f' * {b.slots}' if b.slots > 1 else ''})"
        for b in allocated
    ]


def fragments(kernel: Kernel, role: Role) -> list[Buffer]:
    """Registers that a role uses."""
    used = {n for s in roles.statements(kernel, role) for n in model.touched(s)}
    return [b for b in kernel.buffers if b.scope != "shared" and b.name in used]


def _shared_names(kernel: Kernel, parted: handover.Parted) -> list[str]:
    """Names of the kernel's body that a macro must be given to see."""
    names = [name for name, _ in kernel.grid] + [s.name for s in kernel.scalars]
    names += [t.name for t in kernel.tensors] + [b.name for b in kernel.shared()]
    return names + [b.name for b in parted.barriers]
