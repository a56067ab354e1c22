"""The language as a JSON Schema, from which editors complete a spec, explain it and mark mistakes.

Keys and words are those of the reader's own tables (`syntax.py`, `pipelines.py`); what is said of them,
and which of them are needed, is what the reference says (`docs/spec.md`), in whose tables each has a
row. A key without a form here, or without a row there, is a KeyError, so neither can be forgotten.

A schema sees the shape of a spec. What names mean, and whether sizes agree, only `gdngen plan` says.
"""

import json
import re

from gdngen import references
from gdngen.devices import devices
from gdngen.language import syntax
from gdngen.language.syntax import KEYS, KINDS
from gdngen.model.pipelines import OWN_KEYS, SPEC

Schema = dict[str, object]
Rows = dict[str, str]  # a key or a word -> what the reference says of it

# level of pipelines -> what the reference calls it
PIPELINES = {
    "pipeline": "a pipeline",
    "argument": "an argument",
    "check": "a check",
    "value": "a value",
    "made": "a tensor",
    "step": "a step",
}
SECTIONS = {  # level -> the section of the reference whose table of keys is its own
    "spec": "Keys of a spec",
    "variants": "Variants",
    "tensor": "Tensors",
    "layout": "Layouts",
    "walk": "Scalars",
    "role": "Roles",
    "buffer": "Buffers",
}
NEEDED = "(needed)"


def dumps(reference: str) -> str:
    return json.dumps(schema(reference), indent=1, ensure_ascii=False) + "\n"


def schema(reference: str) -> Schema:
    """The whole schema; `reference` is the text of docs/spec.md."""
    says = Reference(reference)
    levels = {level: _level(level, says) for level in (*SECTIONS, *OWN_KEYS)}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "gdngen spec",
        "type": "object",
        "if": {"required": ["pipeline"]},
        "then": _ref("pipeline"),
        "else": _ref("spec"),
        "definitions": {
            "expression": {
                "type": ["string", "number", "boolean"],
                "description": says.expressions(),
            },
            "name": {"type": "string", "pattern": _ecma(syntax.NAME)},
            "statement": {
                "description": "One key says what a statement is.",
                "anyOf": [_statement(kind, says) for kind in (*KINDS, "when")],
            },
            **levels,
        },
    }


# -- the reference -----------------------------------------------------------------------------------


class Reference:
    """Tables and sections of the reference, as the schema quotes them."""

    def __init__(self, text: str):
        self.parts = dict(
            re.findall(r"^#{2,3} (.+)\n((?:(?!#{2,3} ).*\n)*)", text.replace("\\|", "|"), re.M)
        )

    def table(self, section: str, header: str) -> Rows:
        """The table of a section whose first line is `header`: first cells -> last cells."""
        (body,) = re.findall(
            rf"^\| {re.escape(header)} \|\n\|[-|]+\|\n((?:\|.*\n)+)", self.parts[section], re.M
        )
        rows = [[c.strip() for c in line.strip("|").split("|")] for line in body.splitlines()]
        return {cells[0].strip("`"): cells[-1] for cells in rows}

    def expressions(self) -> str:
        """What expressions are made of: a section's first paragraph, and its functions."""
        first = " ".join(self.parts["Expressions"].strip().split("\n\n")[0].split())
        functions = self.table("Expressions", "function | gives")
        return "\n".join([first, *(f"- `{call}`: {text}" for call, text in functions.items())])

    def pipelines(self, level: str) -> Rows:
        """The rows of a level in the table of pipelines' keys."""
        if level == "function":
            return self.table("Functions made of kernels", "key of a function | holds")
        (body,) = re.findall(
            r"^\| of \| key \| holds \|\n\|[-|]+\|\n((?:\|.*\n)+)",
            self.parts["Functions made of kernels"],
            re.M,
        )
        of, out = "", {}
        for line in body.splitlines():
            owner, key, text = (c.strip() for c in line.strip("|").split("|"))
            of = owner or of
            if of == PIPELINES[level]:
                out[key.strip("`")] = text
        return out

    def keys(self, level: str) -> Rows:
        if level in OWN_KEYS:
            return self.pipelines(level)
        return self.table(SECTIONS[level], "key | holds")

    def example(self, kind: str) -> str:
        """The first lines of code of a statement's section."""
        part = next((self.parts[name] for name in self.parts if kind in name.split(", ")), "")
        found = re.search(r"^```yaml\n(.*?)^```", part, re.M | re.S)
        return found[1].strip() if found else ""


# -- forms -------------------------------------------------------------------------------------------


def _ecma(pattern: re.Pattern) -> str:
    """The pattern as JavaScript writes it."""
    return "^" + pattern.pattern.replace(r"\Z", "$")


def _ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _named(values: Schema, **more) -> Schema:
    """A mapping of names that the author chooses."""
    return {
        "type": "object",
        "propertyNames": _ref("name"),
        "additionalProperties": values,
        **more,
    }


EXPR, NAME = _ref("expression"), _ref("name")
TEXT: Schema = {"type": ["string", "number", "boolean"]}
NAMES, EXPRS = _list(NAME), _list(EXPR)
YES: Schema = {"type": "boolean"}
WORD: Schema = {"type": ["string", "number", "boolean"], "pattern": _ecma(syntax.WORD)}
CHOICES: Schema = {"anyOf": [WORD, {"type": "array", "items": WORD, "minItems": 1}]}
SHAPE: Schema = {"type": "array", "items": EXPR, "minItems": 1, "maxItems": 6}
DTYPE: Schema = {"enum": list(syntax.DTYPES)}


def _words(words: Rows) -> Schema:
    return {"enum": list(words), "enumDescriptions": list(words.values())}


def _or_expression(words: Schema) -> Schema:
    """One of some words, or an expression that gives one."""
    return {"anyOf": [words, {"type": "string", "pattern": "\\("}]}


def _forms(level: str, says: Reference) -> dict[str, Schema]:
    """What each key of a level may hold."""
    dtype: Schema = {"anyOf": [DTYPE, NAME]}
    doc, when = TEXT, EXPR
    match level:
        case "spec":
            targets = [name for name, d in devices().items() if d.target == name]
            return {
                "kernel": NAME,
                "doc": doc,
                "dims": NAMES,
                "runtime": NAMES,
                "dtypes": _named({"anyOf": [_or_expression(DTYPE), {"type": "null"}]}),
                "options": _named(CHOICES),
                "variants": _ref("variants"),
                "tensors": _named(_ref("tensor")),
                "grid": _named(EXPR, minProperties=1, maxProperties=syntax.MAX_GRID),
                "threads": EXPR,
                "resident": EXPR,
                "async": EXPR,
                "rounds": _named(EXPR, minProperties=1, maxProperties=1),
                "fast_math": EXPR,
                "warn": doc,
                "targets": {"type": "array", "items": {"enum": targets}, "uniqueItems": True},
                "buffers": _named(_ref("buffer")),
                "stages": _named(_list(_ref("statement"))),
                "layouts": _list(_ref("layout")),
                "scalars": _named({"if": {"type": "object"}, "then": _ref("walk"), "else": EXPR}),
                "roles": _named(_ref("role")),
                "require": EXPRS,
                "reference": {"enum": list(references.names())},
            }
        case "variants":
            policy: Schema = {"enum": list(syntax.POLICIES)}
            policies: Schema = {syntax.POLICY: {"anyOf": [policy, _list(policy)]}}
            chosen = _named(CHOICES, properties=policies)
            return {"forall": chosen, "where": EXPR, "also": _list(chosen)}
        case "tensor":
            roles = _words(says.table("Tensors", "role | the kernel"))
            samples = _words(says.table("Tensors", "sample | values"))
            return {
                "role": roles,
                "shape": SHAPE,
                "dtype": dtype,
                "doc": doc,
                "sample": _or_expression(samples),
                "partly": EXPR,
                "when": when,
            }
        case "buffer":
            scopes = _words(says.table("Buffers", "scope | where it is"))
            live = r"^\s*[^\s.]+(\s*\.\.\s*[^\s.]+)?\s*$"
            return {
                "scope": _or_expression(scopes),
                "shape": SHAPE,
                "dtype": dtype,
                "live": {"type": "string", "pattern": live},
                "reuse": NAME,
                "stages": EXPR,
                "doc": doc,
                "when": when,
            }
        case "layout":
            axis: Schema = {"type": "integer", "minimum": 0, "maximum": 5}
            swap = {"type": "array", "items": axis, "minItems": 2, "maxItems": 2}
            return {"when": when, "swap": swap, "tensors": NAMES, "grid": NAMES}
        case "walk":
            return {"sum": EXPR, "over": NAME, "until": EXPR, "most": EXPR}
        case "role":
            return {
                "warps": EXPR,
                "warpgroups": EXPR,
                "each": NAME,
                "registers": EXPR,
                "runs": {"anyOf": [NAME, NAMES]},
                "doc": doc,
            }
        case "pipeline":
            return {
                "pipeline": NAME,
                "doc": doc,
                "dtypes": _named({"anyOf": [DTYPE, _list(DTYPE)]}),
                "functions": _named(_ref("function"), minProperties=1),
            }
        case "function":
            value: Schema = {"if": {"type": "object"}, "then": _ref("value"), "else": EXPR}
            return {
                "doc": doc,
                "arguments": _named(_ref("argument")),
                "checks": _list(_ref("check")),
                "values": _named(value),
                "tensors": _named(_ref("made")),
                "steps": _list(_ref("step")),
                "returns": NAMES,
                "keep": NAMES,
            }
        case "argument":
            return {
                "shape": EXPRS,
                "dtype": dtype,
                "convert": YES,
                "optional": YES,
                "splits": NAME,
                "number": EXPR,
                "flag": YES,
                "doc": doc,
            }
        case "check":
            return {"that": EXPR, "else": TEXT}
        case "value":
            return {"of": EXPRS, "fits": {"type": "string"}, "all": _list(_ref("check"))}
        case "made":
            return {
                "shape": EXPRS,
                "dtype": dtype,
                "when": when,
                "pieces": NAME,
                "of": EXPR,
                "number": EXPR,
                "doc": doc,
            }
        case "step":
            return {
                "kernel": {"type": "string", "pattern": _ecma(SPEC)},
                "when": when,
                "set": _named(EXPR),
                "choose": _list(_named(EXPR)),
                "tensors": _named(EXPR),
            }
    raise KeyError(level)


# One of some keys, and no more, beside those that a level needs.
ONE_OF = {
    "role": ("warps", "warpgroups"),
    "argument": ("shape", "number", "flag"),
    "value": ("of", "all"),
}
TOGETHER = {"value": {"of": ["fits"]}}  # what one key asks of a mapping beside itself


def _level(level: str, says: Reference) -> Schema:
    """A mapping with the keys of a level, each with its form and with what the reference says."""
    forms, rows = _forms(level, says), says.keys(level)
    keys = (KEYS | OWN_KEYS)[level].split()
    made: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: _said(forms[key], rows[key]) for key in keys},
        "required": [key for key in keys if NEEDED in rows[key]],
    }
    if level in ONE_OF:
        made["oneOf"] = [{"required": [key]} for key in ONE_OF[level]]
    if level in TOGETHER:
        made["dependencies"] = TOGETHER[level]
    return made


def _said(form: Schema, text: str) -> Schema:
    """A form with a description; beside a `$ref` nothing else counts, so that is wrapped."""
    text = text.replace(NEEDED, "").strip()
    return {"description": text, **({"allOf": [form]} if "$ref" in form else form)}


# -- statements --------------------------------------------------------------------------------------

ARROW, SUM = r"^(?:(?!->|\+>)[\s\S])+->(?:(?!->|\+>)[\s\S])+$", r"(?:->|\+>)"


def _statement(kind: str, says: Reference) -> Schema:
    """A statement of one kind: its own key, those beside it, and a condition."""
    keys = KEYS[kind].split()
    keys += [] if "when" in keys else ["when"]
    kinds = says.table("Stages and statements", "kind | keys | does")
    beside = says.table("Stages and statements", "key beside it | holds")
    example = says.example(kind)
    own = kinds[kind] + (f"\n\n```yaml\n{example}\n```" if example else "")
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            key: _said(_part(kind, key), own if key == kind else beside[key]) for key in keys
        },
        "required": [kind, *(k for k in keys if k != kind and NEEDED in beside[k])],
    }


def _part(kind: str, key: str) -> Schema:
    """What a key of a statement may hold."""
    lines: Schema = {"type": "string"}
    match kind, key:
        case ("copy" | "fill" | "cumsum" | "solve"), _ if key == kind:
            return {**lines, "pattern": ARROW}
        case "gemm", "gemm":
            return {**lines, "pattern": f"@[\\s\\S]*{SUM}"}
        case "reduce", "reduce":
            return {**lines, "pattern": rf"^\s*(?:{'|'.join(syntax.REDUCTIONS)})\s*\([\s\S]*{SUM}"}
        case "map", "map":
            return _named(EXPR, minProperties=1, maxProperties=syntax.MAX_AXES)
        case "map", "do":
            return {"type": "array", "items": {**lines, "pattern": "="}, "minItems": 1}
        case ("loop" | "pipelined"), _ if key == kind:
            return _named(EXPR, minProperties=1, maxProperties=1)
        case "raw", "raw":
            return lines
        case _, ("do" | "else"):
            return _list(_ref("statement"))
        case _, "let":
            return _named(EXPR)
        case _, "reverse":
            return YES
        case _, ("reads" | "writes"):
            return NAMES
    return EXPR  # a count, a condition, a tile
