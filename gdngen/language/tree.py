"""Text of a spec -> located tree.

Reads YAML's own events and nothing more: no tag is honoured and no scalar is converted, so the key
`on` stays a word and `1e3` is what the author typed. Anchors, aliases, tags, duplicate keys, keys
that are not words, characters that don't print, and nesting deeper than `MAX_DEPTH` are refused,
which leaves nothing to explode.
"""

import re
from dataclasses import dataclass

import yaml

from gdngen.errors import Location, Report

MAX_DEPTH = 32
MAX_CHARS = 200_000
MAX_NODES = 20_000

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# A run of '- - -' or '? ? ?' opens a level each, which YAML's reader takes seconds over.
_LADDER = re.compile(rf"[ \t]*(?:[-?:][ \t]+){{{MAX_DEPTH + 1}}}")


@dataclass(frozen=True)
class Scalar:
    """A word or a line. `text` is what it says; `where` is where its first character stands."""

    text: str
    where: Location
    quoted: bool = False
    indent: int = 0  # of the second and later lines, in a `|` block
    folded: bool = False  # written over several lines that YAML joined
    exact: bool = True  # `text` is what stands in the file, so columns can be counted in it

    def at(self, line: int, column: int, width: int = 1) -> Location:
        """Location of a character of `text`, given by line (from 0) and column (from 0)."""
        if self.folded or not self.exact:
            return self.where
        first = self.where.column if line == 0 or not self.indent else self.indent + 1
        return Location(self.where.file, self.where.line + line, first + column, width)


@dataclass(frozen=True)
class Sequence:
    items: "tuple[Node, ...]"
    where: Location


@dataclass(frozen=True)
class Mapping:
    entries: "tuple[tuple[Scalar, Node], ...]"
    where: Location

    def get(self, key: str) -> "Node | None":
        return next((value for k, value in self.entries if k.text == key), None)

    def key(self, key: str) -> Scalar | None:
        return next((k for k, _ in self.entries if k.text == key), None)


Node = Scalar | Sequence | Mapping


def scalars(node: Node):
    """Every scalar below a node, keys included."""
    if isinstance(node, Scalar):
        yield node
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from scalars(item)
    else:
        for key, value in node.entries:
            yield key
            yield from scalars(value)


class _Refused(Exception):
    """Reading cannot go on; the report says why."""


def parse(text: str, file: str, report: Report) -> Mapping | None:
    """The tree of a spec, or None after an error that ends the reading."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")  # as Windows editors save it
    report.sources[file] = text
    start = Location(file, 1, 1)
    if not _readable(text, start, report):
        return None
    reader = _Reader(text, file, report)
    try:
        root = reader.document()
    except _Refused:
        return None
    except yaml.YAMLError as e:
        _syntax_error(e, start, text, report)
        return None
    except RecursionError:
        report.error(start, f"nested deeper than {MAX_DEPTH} levels")
        return None
    if not isinstance(root, Mapping):
        report.error(
            root.where if root else start,
            "a spec is a mapping, with keys such as kernel, dims, tensors, stages",
            "`gdngen new NAME` writes one to start from, `gdngen docs` has every key",
        )
        return None
    return root


def _readable(text: str, start: Location, report: Report) -> bool:
    """Whether the text is small, shallow and printable enough to be given to YAML."""
    if len(text) > MAX_CHARS:
        report.error(start, f"a spec of {len(text):,} characters; at most {MAX_CHARS:,} are read")
        return False
    for number, line in enumerate(text.split("\n"), 1):
        where = Location(start.file, number, 1)
        if not line.replace("\t", "").isprintable():
            at = next(i for i, c in enumerate(line) if not c.isprintable() and c != "\t")
            _unprintable(line[at], where.shifted(at), report)
            return False
        if _LADDER.match(line):
            report.error(where, f"nested deeper than {MAX_DEPTH} levels")
            return False
    return True


def _unprintable(c: str, where: Location, report: Report) -> None:
    report.error(
        where,
        f"the character U+{ord(c):04X} has no place in a spec: it does not print",
        "retype the line by hand; such characters come along when text is pasted",
    )


def _syntax_error(e: yaml.YAMLError, start: Location, text: str, report: Report) -> None:
    mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
    lines = text.splitlines() or [""]
    where = start
    if mark:
        where = Location(start.file, min(mark.line, len(lines) - 1) + 1, mark.column + 1)
    what = getattr(e, "problem", None) or getattr(e, "reason", None) or str(e)
    before = lines[where.line - 1][: where.column]
    if "mapping values are not allowed" in what:
        report.error(where, BROKEN, BROKEN_HINT)
        return
    hint = None
    if "\t" in before and not before.strip():
        hint = "YAML takes no tabs for indentation; use spaces"
    elif "cannot start any token" in what:
        hint = "quote the value: a plain one starts with a letter, a digit, - or ("
    elif "expected" in what or "could not find" in what or "unexpected end" in what:
        hint = "look for a bracket or a quote that is not closed, and for uneven indentation"
    context = getattr(e, "context", None)
    report.error(where, f"not YAML: {what}" + (f" ({context})" if context else ""), hint)


BROKEN = "a ': ' breaks this line in two, so YAML reads a key where an expression was meant"
BROKEN_HINT = "quote the whole value, or write the colon without a space after it: c*BC:(c+1)*BC"


class _Reader:
    """Builds the tree from events, keeping its own count of depth and of nodes."""

    def __init__(self, text: str, file: str, report: Report):
        self.lines = text.splitlines()
        self.file, self.report = file, report
        self.events = yaml.parse(text, Loader=_Loader)
        self.nodes = 0

    def document(self) -> "Node | None":
        root = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent) and root is not None:
                self.refuse(event, "a second document; a spec is one YAML document")
            if isinstance(event, yaml.NodeEvent):
                root = self.node(event, 0)
        return root

    def refuse(self, event, what: str, hint: str | None = None):
        self.report.error(self.where(event), what, hint)
        raise _Refused

    def where(self, event, width: int = 1) -> Location:
        return Location(self.file, event.start_mark.line + 1, event.start_mark.column + 1, width)

    def node(self, event, depth: int) -> Node:
        self.nodes += 1
        if depth > MAX_DEPTH:
            self.refuse(event, f"nested deeper than {MAX_DEPTH} levels")
        if self.nodes > MAX_NODES:
            self.refuse(event, f"more than {MAX_NODES:,} values in a spec")
        self.plain(event)
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            for e in self.events:
                if isinstance(e, yaml.SequenceEndEvent):
                    break
                items.append(self.node(e, depth + 1))
            return Sequence(tuple(items), self.where(event))
        return self.mapping(event, depth)

    def plain(self, event) -> None:
        """Refuses what makes YAML more than words, lists and mappings."""
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            name = event.anchor
            self.refuse(
                event, f"anchors and aliases are not read ('{name}')", "write the value out"
            )
        if event.tag and event.tag != "!":
            self.refuse(event, f"tags are not read ('{event.tag}')", "leave the tag out")

    def mapping(self, event, depth: int) -> Mapping:
        entries: list[tuple[Scalar, Node]] = []
        seen: dict[str, Scalar] = {}
        for e in self.events:
            if isinstance(e, yaml.MappingEndEvent):
                break
            if not isinstance(e, yaml.ScalarEvent):
                self.refuse(
                    e, "a key must be a word", "quote a value that starts with [, {, * or &"
                )
            self.plain(e)
            key = self.scalar(e)
            value = self.node(next(self.events), depth + 1)
            if key.text in seen:
                first = seen[key.text].where.line
                self.report.error(
                    key.where,
                    f"duplicate key '{key.text[:40]}'",
                    f"the first is on line {first}; keep one of them",
                )
                continue
            seen[key.text] = key
            entries.append((key, value))
        return Mapping(tuple(entries), self.where(event))

    def scalar(self, event) -> Scalar:
        style, text = event.style, event.value
        for line in text.split("\n"):
            if not line.replace("\t", "").isprintable():  # by an escape such as "\0"
                c = next(c for c in line if not c.isprintable() and c != "\t")
                _unprintable(c, self.where(event), self.report)
                raise _Refused
        if style in ("|", ">"):
            return self.block(event, text)
        quoted = style in ("'", '"')
        where = self.where(event, max(1, len(text.split("\n")[0])))
        where = where.shifted(1, where.width) if quoted else where
        folded = event.end_mark.line > event.start_mark.line
        line = self.lines[where.line - 1] if where.line <= len(self.lines) else ""
        exact = line[where.column - 1 :].startswith(text)
        return Scalar(text, where, quoted, folded=folded and not exact, exact=exact)

    def block(self, event, text: str) -> Scalar:
        """A `|` block: its text starts on the first line that has any, at that line's indentation."""
        line = event.start_mark.line + 1
        while line < len(self.lines) and not self.lines[line].strip():
            line += 1
        body = self.lines[line] if line < len(self.lines) else ""
        text = text.strip("\n")
        indent = len(body) - len(body.lstrip(" ")) - (len(text) - len(text.lstrip(" ")))
        where = Location(self.file, line + 1, indent + 1, max(1, len(body.strip())))
        folded = event.style == ">" and text != body.strip()
        return Scalar(text, where, True, indent, folded)
