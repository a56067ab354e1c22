"""Statements of a spec, as written. Which names they use and whether shapes agree is resolved later."""

import ast
import re

from gdngen.errors import did_you_mean
from gdngen.language import expr
from gdngen.language.reading import Reader
from gdngen.language.source import Source, parse, place
from gdngen.language.syntax import (
    KINDS,
    MAX_AXES,
    MAX_STATEMENTS,
    REDUCTIONS,
    Stage,
    Statement,
)
from gdngen.language.tree import Mapping, Node, Scalar, scalars

ALL_KINDS = (*KINDS, "when")
_WORDS = re.compile(r"[A-Za-z]\w*")


class StatementReader(Reader):
    count = 0

    def stages(self, root: Mapping) -> tuple[Stage, ...]:
        out = []
        for key, value in self.mapping(root.get("stages"), "stages").entries:
            self.name(key, "stage")
            out.append(Stage(key.text, key.where, self.block(value)))
        return tuple(out)

    def block(self, node: Node | None) -> tuple[Statement, ...]:
        return tuple(self.statement(item) for item in self.items(node, "a group of statements"))

    def statement(self, node: Node) -> Statement:
        """The statement, or a 'broken' one that stands for it after a mistake."""
        self.count += 1
        if self.count == MAX_STATEMENTS + 1:
            self.error(node.where, f"more than {MAX_STATEMENTS:,} statements in a spec")
        read = self._statement(node) if self.count <= MAX_STATEMENTS else None
        return read or self.unread(node)

    def unread(self, node: Node) -> Statement:
        words = dict.fromkeys(w for s in scalars(node) for w in _WORDS.findall(s.text))
        return Statement("broken", node.where, words=tuple(words))

    def _statement(self, node: Node) -> Statement | None:
        kind = self.kind(node)
        if kind is None:
            return None
        if kind.text == "when":
            return self.when(self.keys(node, "when"), node)
        node = self.keys(node, kind.text, "when")
        made = getattr(self, f"_{kind.text}")(node, kind)
        if made is None:
            return None
        parts, body = made
        when = self.expr(node.get("when"), "when") if node.get("when") else None
        if node.get("when") and not when:
            return None
        return Statement(
            kind.text, kind.where, parts, body, when=when, words=self.unread(node).words
        )

    def kind(self, node: Node) -> Scalar | None:
        """The key that says what a statement is."""
        known = " ".join(ALL_KINDS)
        if not isinstance(node, Mapping) or not node.entries:
            hint = f"kinds: {known}; assignments stand under a map's do"
            self.error(node.where, "a statement is 'kind: what it does'", hint)
            return None
        kinds = [key for key, _ in node.entries if key.text in KINDS] or [
            key for key, _ in node.entries if key.text == "when"
        ]
        if not kinds:
            key = node.entries[0][0]
            if not self.broken(key):
                near = did_you_mean(key.text, ALL_KINDS)
                self.error(
                    key.where, f"unknown statement '{key.text[:40]}'{near}", f"kinds: {known}"
                )
            return None
        if len(kinds) > 1:
            self.error(
                kinds[1].where,
                f"'{kinds[1].text}' in a statement that is a {kinds[0].text}",
                "one statement an item: start a new line with '- '",
            )
            return None
        return kinds[0]

    def when(self, node: Mapping, written: Mapping) -> Statement | None:
        cond = self.expr(node.get("when"), "a condition")
        if node.get("do") is None:
            self.error(node.where, "a 'when' with nothing to do", "when: DK == DV, then do: [...]")
        body = self.block(node.get("do")) if node.get("do") else ()
        other = self.block(node.get("else")) if node.get("else") else ()
        if cond is None:
            return None
        words = self.unread(written).words
        return Statement("when", node.key("when").where, {"cond": cond}, body, other, words=words)

    # -- source -> target --------------------------------------------------------------------

    def arrow(
        self, scalar: Scalar | None, hint: str, arrows=("->",), start: int = 0
    ) -> dict | None:
        """`source -> target`: the two expressions and the arrow, or None; `source` from `start` on."""
        if scalar is None or not self.one_line(scalar):
            return None
        found = list(re.finditer(r"->|\+>", scalar.text))
        if len(found) != 1:
            self.error(scalar.where, f"one {' or '.join(arrows)} is meant here", hint)
            return None
        at = found[0]
        if at[0] not in arrows:
            spot = scalar.at(*place(scalar.text, at.start()), 2)
            self.error(spot, f"{at[0]} has no meaning here", hint)
            return None
        source = parse(scalar, self.report, start=start, end=at.start())
        target = parse(scalar, self.report, start=at.end())
        if not source or not target:
            return None
        return {"source": source, "target": target, "arrow": at[0]}

    def _move(self, node: Mapping, key: Scalar, hint: str, arrows=("->",)) -> dict | None:
        return self.arrow(self.scalar(node.get(key.text), key.text), hint, arrows)

    def _copy(self, node, key):
        parts = self._move(node, key, "copy: k[b, h, c*BC:(c+1)*BC, :] -> k_s")
        return parts and (parts, ())

    def _fill(self, node, key):
        parts = self._move(node, key, "fill: 0 -> acc")
        return parts and (parts, ())

    def _gemm(self, node, key):
        hint = "gemm: A @ B.T -> C overwrites, gemm: A @ B.T +> C accumulates"
        parts = self._move(node, key, hint, ("->", "+>"))
        if not parts:
            return None
        product = parts.pop("source")
        if not isinstance(product.node, ast.BinOp) or not isinstance(product.node.op, ast.MatMult):
            self.error(product.where(), "a product of two tiles is meant here", hint)
            return None
        a, b = product.of(product.node.left), product.of(product.node.right)
        return {"a": a, "b": b, **parts}, ()

    def _reduce(self, node, key):
        hint = f"reduce: max(x) -> m, with axis: 1; reductions: {' '.join(REDUCTIONS)}"
        scalar = self.scalar(node.get(key.text), key.text)
        if not scalar:
            return None
        found = re.match(r"([A-Za-z_]\w*)\s*(?=\()", scalar.text)
        if not found or found[1] not in REDUCTIONS:
            where = scalar.at(0, 0, found.end(1)) if found else scalar.where
            near = did_you_mean(found[1], REDUCTIONS) if found else ""
            self.error(where, f"a reduction of one tile is meant here{near}", hint)
            return None
        split = self.arrow(scalar, hint, ("->", "+>"), start=found.end())
        return self._with_axis(node, {"op": found[1], **split}) if split else None

    def _cumsum(self, node, key):
        parts = self._move(node, key, "cumsum: g_s -> g_sum, with axis: 0 and reverse: false")
        reverse = self.word(node.get("reverse"), "reverse", ("true", "false"))
        return self._with_axis(node, {**parts, "reverse": reverse == "true"}) if parts else None

    def _solve(self, node, key):
        parts = self._move(node, key, "solve: M -> D, with block: 16")
        if node.get("block") is None:
            self.error(
                key.where, "a solve has no block", "block: how many rows a diagonal block has"
            )
            return None
        block = self.expr(node.get("block"), "a block")
        return ({**parts, "block": block}, ()) if parts and block else None

    def _with_axis(self, node, parts: dict):
        axis = self.expr(node.get("axis"), "an axis") if node.get("axis") else None
        return None if node.get("axis") and not axis else ({**parts, "axis": axis}, ())

    # -- maps and loops ----------------------------------------------------------------------

    def _map(self, node, key):
        axes = self.axes(node.get("map"), "map: {i: BC, j: DK}")
        guard = self.expr(node.get("if"), "a condition") if node.get("if") else None
        body = [
            s for item in self.items(node.get("do"), "a map's do") for s in self.assignments(item)
        ]
        if not body and (node.get("do") is None or not self.items(node.get("do"), "a map's do")):
            self.error(key.where, "a map with nothing to do", "do: ['w[i, j] = k[i, j] * beta[i]']")
        if not axes or (node.get("if") and not guard):
            return None
        return {"axes": axes, "guard": guard}, tuple(body)

    def assignments(self, item: Node) -> list[Statement]:
        """The assignment, or a broken statement in its place."""
        source = None
        if isinstance(item, Mapping) and item.entries:
            key = item.entries[0][0]
            if key.text in ALL_KINDS:
                self.error(
                    key.where, f"a {key.text} can't stand inside a map", "end the map before it"
                )
            else:
                self.scalar(item, "an assignment")
        elif (line := self.scalar(item, "an assignment")) and self.one_line(line):
            source = parse(line, self.report, mode="exec")
        return (source and self.assignment(source)) or [self.unread(item)]

    def assignment(self, source: Source) -> list[Statement]:
        node = source.node
        if isinstance(node, ast.Assign):
            if len(node.targets) > 1:
                self.error(source.where(), "one target an assignment")
                return []
            target, value = node.targets[0], node.value
        else:  # x[i] += e is x[i] = x[i] + e
            if type(node.op) not in expr.BINARY:
                self.error(source.where(), "only + - * / // % ** may stand before =")
                return []
            target = node.target
            value = ast.copy_location(ast.BinOp(target, node.op, node.value), node.value)
        if not isinstance(target, ast.Subscript):
            self.error(source.where(target), "an element is meant here: name[i, j] = ...")
            return []
        parts = {"target": source.of(target), "value": source.of(value)}
        words = tuple(dict.fromkeys(n.id for n in expr.names(node)))
        return [Statement("assign", source.where(target), parts, words=words)]

    def axes(self, node: Node | None, hint: str) -> tuple[tuple[Scalar, Source], ...]:
        if not isinstance(node, Mapping) or not node.entries:
            self.error(node.where, "index names and their extents are meant here", hint)
            return ()
        if len(node.entries) > MAX_AXES:
            self.error(node.entries[MAX_AXES][0].where, f"at most {MAX_AXES} indices")
            return ()
        pairs = [
            (key, self.expr(value, "an extent"))
            for key, value in node.entries
            if self.name(key, "index")
        ]
        return tuple(pairs) if len(pairs) == len(node.entries) and all(s for _, s in pairs) else ()

    def _repeat(self, node, key):
        count = self.expr(node.get("repeat"), "a count")
        body = self.body(node, key)
        return ({"count": count}, body) if count else None

    def _loop(self, node, key):
        axes = self.axes(node.get(key.text), f"{key.text}: {{d: DK // BC}}")
        stages = self.expr(node.get("stages"), "stages") if node.get("stages") else None
        lets = self.lets(node)
        body = self.body(node, key)
        if len(axes) > 1:
            self.error(axes[1][0].where, "a loop has one index; put a second loop inside it")
            return None
        if not axes or lets is None or (node.get("stages") and not stages):
            return None
        return {"axis": axes[0], "stages": stages, "lets": lets}, body

    _pipelined = _loop

    def body(self, node: Mapping, key: Scalar) -> tuple[Statement, ...]:
        if node.get("do") is None:
            self.error(key.where, f"a {key.text} with nothing to do", "do: a list of statements")
        return self.block(node.get("do"))

    def _skip(self, node, key):
        tile = self.expr(node.get(key.text), "a tile")
        return ({"tile": tile}, ()) if tile else None

    _wait = _skip

    def lets(self, node: Mapping) -> tuple[tuple[Scalar, Source], ...] | None:
        """Names for expressions; None after a mistake."""
        entries = self.mapping(node.get("let"), "let").entries
        pairs = [(k, self.expr(v, "an expression")) for k, v in entries if self.name(k, "index")]
        return tuple(pairs) if len(pairs) == len(entries) and all(s for _, s in pairs) else None

    def _raw(self, node, key):
        lines = self.scalar(node.get("raw"), "raw")
        used = {
            part: self.names(node.get(part), "buffer") if node.get(part) else ()
            for part in ("reads", "writes")
        }
        return ({"lines": lines, **used}, ()) if lines else None
