"""Values of one variant: what its choice names, and defaults for the rest."""

from collections.abc import Iterator, Mapping

from gdngen.errors import Location, Report, did_you_mean
from gdngen.language.expr import ExprError, evaluate
from gdngen.language.source import Source
from gdngen.language.syntax import DTYPES, POLICIES, POLICY, Choice, Spec

MAX_DIM = 65536


def values(spec: Spec, choice: Choice, report: Report) -> dict[str, int | str] | None:
    """dims -> int, options -> word, dtypes -> dtype; None if anything is missing or unknown."""
    dims = {d.text for d in spec.dims}
    defaults = {k.text for k, _ in spec.dtypes}
    options = {k.text: v for k, v in spec.options}
    out: dict[str, int | str] = {k: words[0] for k, words in options.items()}
    wrong: set[str] = set()
    for name, text in choice.values:
        problem, hint = None, None
        if name == POLICY:
            if text not in POLICIES:
                near = did_you_mean(text, POLICIES)
                report.error(
                    choice.where,
                    f"policy={text[:40]}: no such policy{near}",
                    f"one of: {' '.join(POLICIES)}",
                )
            continue
        if name in dims:
            if text.isdecimal() and text.isascii() and 1 <= int(text[:9]) == int(text) <= MAX_DIM:
                out[name] = int(text)
                continue
            problem = f"a dim is a whole number from 1 to {MAX_DIM}"
        elif name in defaults and text not in DTYPES:
            problem, hint = (
                f"not a dtype{did_you_mean(text, DTYPES)}",
                f"one of: {' '.join(DTYPES)}",
            )
        elif name in options and text not in options[name]:
            problem, hint = "not a choice", f"choices: {' '.join(options[name])}"
        elif name not in defaults and name not in options:
            known = [*dims, *defaults, *options]
            report.error(
                choice.where,
                f"unknown name '{name[:40]}' in variants{did_you_mean(name, known)}",
                f"dims, dtypes and options: {' '.join(sorted(known))}",
            )
            continue
        if problem:
            report.error(choice.where, f"{name}={text[:40]}: {problem}", hint)
            wrong.add(name)
        else:
            out[name] = text
    try:
        out = default_dtypes(spec, dict(choice.values)) | out
    except ExprError as e:
        report.error(next(_at(spec, e.node), choice.where), f"in a dtype: {e.what}", e.hint)
        return None
    for name in [d.text for d in spec.dims] + [k.text for k, _ in spec.dtypes]:
        if name not in out and name not in wrong:
            report.error(
                choice.where, f"no value for '{name}'", "name it under variants, or with --set"
            )
            wrong.add(name)
    return None if wrong else out


def typed(word: str) -> int | str | bool:
    """A choice of an option, as expressions see it."""
    if word in ("true", "false"):
        return word == "true"
    return int(word) if word.isdecimal() and word.isascii() and len(word) < 10 else word


def default_dtypes(spec: Spec, given: Mapping[str, str]) -> dict[str, str]:
    """Dtype name -> dtype, for every name that the spec has a default for and `given` does not name.

    A default may be an expression of dims, options and other dtypes. Raises ExprError.
    """
    known = {d: d for d in DTYPES} | {k.text: v for k, v in spec.dtypes if isinstance(v, str)}
    known |= {k.text: typed(words[0]) for k, words in spec.options}
    known |= {k: typed(v) for k, v in given.items()}
    out = {}
    for key, default in spec.dtypes:
        if default is None or key.text in given:
            continue
        found = evaluate(default.node, known) if isinstance(default, Source) else default
        if found not in DTYPES:
            raise ExprError(default.node, f"'{found}' is no dtype", f"one of: {' '.join(DTYPES)}")
        out[key.text] = known[key.text] = found
    return out


def _at(spec: Spec, node) -> Iterator[Location]:
    """Where a part of a dtype's expression stands."""
    return (s.where(node) for _, s in spec.dtypes if isinstance(s, Source))
