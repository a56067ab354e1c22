"""Pieces of a spec, each checked and its mistakes reported: keys, words, names, expressions.

A reader goes on after a mistake as if the author had written what was likely meant, so that one
slip is reported once and not again by everything that rests on it.
"""

import keyword
from dataclasses import replace

from gdngen.errors import Location, Report, did_you_mean
from gdngen.language import source
from gdngen.language.source import Source
from gdngen.language.syntax import KEYS, NAME
from gdngen.language.tree import BROKEN, BROKEN_HINT, Mapping, Node, Scalar, Sequence


class Reader:
    table = KEYS  # level -> its keys

    def __init__(self, report: Report, file: str):
        self.report, self.file = report, file
        self.error = report.error

    def keys(self, node: Mapping, level: str, extra: str = "") -> Mapping:
        """The mapping with known keys only; a key with an obvious typo stands for what it means."""
        known = (self.table[level] + " " + extra).split()
        given = {key.text for key, _ in node.entries}
        missing = [k for k in known if k not in given]
        kept: list[tuple[Scalar, Node]] = []
        for key, value in node.entries:
            if key.text not in known:
                meant = did_you_mean(key.text, missing)
                self.unknown_key(key, level, known)
                if not meant:
                    continue
                key = replace(key, text=meant.split("'")[1])
                missing.remove(key.text)
            kept.append((key, value))
        return Mapping(tuple(kept), node.where)

    def unknown_key(self, key: Scalar, level: str, known: list[str]) -> None:
        if self.broken(key):
            return
        if self.comma(key, " )]"):
            return
        self.error(
            key.where,
            f"unknown key '{key.text[:40]}' in {level}{did_you_mean(key.text, known)}",
            f"keys: {' '.join(known)}",
        )

    def comma(self, key: Scalar, signs: str = ")]") -> bool:
        """Whether a key is the rest of a value that YAML broke at a comma; reported."""
        if any(c in key.text for c in signs):
            what = "a comma inside { } or [ ] starts a new entry here"
            self.error(key.where, what, "quote the value that holds the comma")
            return True
        return False

    def broken(self, key: Scalar) -> bool:
        """Whether a key is the first half of an expression that YAML broke at ': '; reported."""
        if any(c in key.text for c in "[(@") or "->" in key.text:
            self.error(key.where, BROKEN, BROKEN_HINT)
            return True
        return False

    def mapping(self, node: Node | None, what: str) -> Mapping:
        if isinstance(node, Mapping):
            return node
        if node is not None and not (isinstance(node, Scalar) and not node.text):
            self.error(node.where, f"{what} is a mapping")
        return Mapping((), node.where if node else Location(self.file, 1, 1))

    def items(self, node: Node | None, what: str) -> tuple[Node, ...]:
        if isinstance(node, Sequence):
            return node.items
        if node is not None:
            self.error(node.where, f"{what} is a list")
        return ()

    def scalar(self, node: Node | None, what: str) -> Scalar | None:
        """A word or a line. A mapping with an expression for a key is a line broken by ': '."""
        if isinstance(node, Scalar):
            return node
        if isinstance(node, Mapping) and node.entries and self.broken(node.entries[0][0]):
            return None
        if node is not None:
            self.error(node.where, f"{what} is one value, not a {type(node).__name__.lower()}")
        return None

    def word(self, node: Node | None, what: str, known: tuple[str, ...]) -> str | None:
        """One of the known words; None where there is none, or another."""
        word = self.scalar(node, what)
        if word is None or word.text in known:
            return word and word.text
        self.error(
            word.where,
            f"unknown {what} '{word.text[:40]}'{did_you_mean(word.text, known)}",
            f"one of: {' '.join(known)}",
        )
        return None

    def choice(self, node: Node | None, what: str, known: tuple[str, ...]) -> str | Source | None:
        """One of the known words, or an expression that gives one: where(DK > 128, 'a', 'b')."""
        if isinstance(node, Scalar) and "(" in node.text:
            return self.expr(node, what)
        return self.word(node, what, known)

    def name(self, scalar: Scalar, what: str) -> Scalar | None:
        if self.comma(scalar):
            return None
        if not NAME.match(scalar.text):
            hint = "a name is a letter, then letters, digits and _ (64 at most)"
        elif keyword.iskeyword(scalar.text):
            hint = "it is a word of Python, in whose grammar expressions are written"
        else:
            return scalar
        self.error(scalar.where, f"'{scalar.text[:40]}' can't name a {what}", hint)
        return None

    def names(self, node: Node | None, what: str) -> tuple[Scalar, ...]:
        scalars = [
            self.scalar(item, f"a {what}") for item in self.items(node, f"the list of {what}s")
        ]
        return tuple(n for s in scalars if s and (n := self.name(s, what)))

    def expr(self, node: Node | None, what: str) -> Source | None:
        scalar = self.scalar(node, what)
        return source.parse(scalar, self.report) if scalar and self.one_line(scalar) else None

    def one_line(self, scalar: Scalar) -> bool:
        """YAML joins the lines of a scalar that is no `|` block, so its columns would be wrong."""
        if scalar.folded:
            self.error(
                scalar.where,
                "an expression that goes on over the next line",
                "keep it on one line, or put it in a `|` block",
            )
        return not scalar.folded

    def doc(self, node: Mapping) -> str:
        text = self.scalar(node.get("doc"), "doc")
        return text.text.strip() if text else ""
