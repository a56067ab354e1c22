"""Text of a spec -> located tree.

Reads YAML's own events and nothing more: no tag is honoured and no scalar is converted, so the key
`on` stays a word and `1e3` is what the author typed. Anchors, aliases, tags, duplicate keys, keys
that are not words, and nesting deeper than `MAX_DEPTH` are refused, which leaves nothing to explode.
"""

from dataclasses import dataclass

import yaml

from gdngen.errors import Location, Report

MAX_DEPTH = 32
MAX_CHARS = 1_000_000

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Scalar:
    """A word or a line. `text` is what it says; `where` is where its first character stands."""

    text: str
    where: Location
    quoted: bool = False
    indent: int = 0  # of the second and later lines, in a `|` block

    def at(self, line: int, column: int, width: int = 1) -> Location:
        """Location of a character of `text`, given by line (from 0) and column (from 0)."""
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


class _Refused(Exception):
    """Reading cannot go on; the report says why."""


def parse(text: str, file: str, report: Report) -> Mapping | None:
    """The tree of a spec, or None after an error that ends the reading."""
    report.sources[file] = text
    start = Location(file, 1, 1)
    if len(text) > MAX_CHARS:
        report.error(start, f"a spec of {len(text):,} characters; at most {MAX_CHARS:,} are read")
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
            "see docs/spec.md, or start from specs/prepare.yaml",
        )
        return None
    return root


def _syntax_error(e: yaml.YAMLError, start: Location, text: str, report: Report) -> None:
    mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
    lines = text.splitlines() or [""]
    where = start
    if mark:
        where = Location(start.file, min(mark.line, len(lines) - 1) + 1, mark.column + 1)
    what = getattr(e, "problem", None) or getattr(e, "reason", None) or str(e)
    hint = None
    if "mapping values are not allowed" in what:
        what = "a ': ' breaks this line in two, so YAML reads a key where an expression was meant"
        hint = "quote the whole value, or write the colon without a space after it: c*BC:(c+1)*BC"
    elif "\t" in lines[where.line - 1][: where.column]:
        hint = "YAML takes no tabs for indentation; use spaces"
    elif "expected" in what or "could not find" in what or "unexpected end" in what:
        hint = "look for a bracket or a quote that is not closed"
    context = getattr(e, "context", None)
    report.error(where, f"not YAML: {what}" + (f" ({context})" if context else ""), hint)


class _Reader:
    """Builds the tree from events, keeping its own count of depth."""

    def __init__(self, text: str, file: str, report: Report):
        self.lines = text.splitlines()
        self.file, self.report = file, report
        self.events = yaml.parse(text, Loader=_Loader)
        self.folded: set[Location] = set()

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
        if depth > MAX_DEPTH:
            self.refuse(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            name = event.anchor
            self.refuse(event, f"anchors and aliases are not read ('{name}')", "write the value out")
        if event.tag and event.tag != "!":
            self.refuse(event, f"tags are not read ('{event.tag}')", "leave the tag out")
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

    def mapping(self, event, depth: int) -> Mapping:
        entries: list[tuple[Scalar, Node]] = []
        seen: dict[str, Scalar] = {}
        for e in self.events:
            if isinstance(e, yaml.MappingEndEvent):
                break
            if not isinstance(e, yaml.ScalarEvent):
                self.refuse(e, "a key must be a word", "quote a value that starts with [ or {")
            key = self.scalar(e)
            value = self.node(next(self.events), depth + 1)
            if key.text in seen:
                first = seen[key.text].where.line
                self.report.error(
                    key.where,
                    f"duplicate key '{key.text}'",
                    f"the first is on line {first}; keep one of them",
                )
                continue
            seen[key.text] = key
            entries.append((key, value))
        return Mapping(tuple(entries), self.where(event))

    def scalar(self, event) -> Scalar:
        if event.anchor:
            self.refuse(event, "anchors and aliases are not read", "write the value out")
        if event.tag and event.tag != "!":
            self.refuse(event, f"tags are not read ('{event.tag}')", "leave the tag out")
        style, text = event.style, event.value
        if style in ("|", ">"):
            return self.block(event, text)
        where = self.where(event, max(1, len(text.split("\n")[0])))
        if style in ("'", '"'):
            return Scalar(text, where.shifted(1, where.width), True)
        if event.end_mark.line > event.start_mark.line:
            self.folded.add(where)
        return Scalar(text, where)

    def block(self, event, text: str) -> Scalar:
        """A `|` block: its text starts on the first line that has any, at that line's indentation."""
        line = event.start_mark.line + 1
        while line < len(self.lines) and not self.lines[line].strip():
            line += 1
        body = self.lines[line] if line < len(self.lines) else ""
        indent = len(body) - len(body.lstrip(" "))
        where = Location(self.file, line + 1, indent + 1, max(1, len(body.strip())))
        return Scalar(text.strip("\n"), where, True, indent)
