"""Which variants a spec asks for, each resolved and named.

A variant's name comes from what it is: dims, the dtypes that a spec leaves open, and any other
value that differs from the spec's default. So a name is the same wherever it is rendered from.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath

from gdngen.errors import Report, did_you_mean
from gdngen.language.expr import ExprError, evaluate, names
from gdngen.language.source import Source
from gdngen.language.syntax import DTYPES, POLICY, Choice, Spec
from gdngen.model import model
from gdngen.model.chosen import default_dtypes, typed
from gdngen.model.resolve import resolve

ENOUGH = 1000  # statements looked at; after a mistake, further variants are not


def kernels(
    spec: Spec, report: Report, settings: Mapping[str, str] = {}
) -> tuple[model.Kernel, ...]:
    """Every variant, or those that `settings` (name -> value, as with --set) ask for.

    A setting picks among the spec's variants; where none has it, it is put into all of them.
    """
    seen: dict[str, Choice] = {}
    out, work = [], 0
    for choice in chosen(spec, report, settings):
        module = module_name(spec, choice)
        policy = dict(choice.values).get(POLICY)
        name = f"{module} under {policy}" if policy else module
        if name in seen:
            report.error(
                choice.where,
                f"two variants of one name, {name}",
                f"the first is on line {seen[name].where.line}; take one of them out",
            )
            continue
        if work > ENOUGH and report.errors():
            return tuple(out)
        seen[name] = choice
        kernel = resolve(spec, choice, report)
        if kernel is None:
            continue
        work += sum(1 for _ in kernel.leaves())
        if not kernel.stages and spec.stages:
            what = f"variant {name} has nothing to do: every statement is left out by its 'when'"
            report.error(choice.where, what, "exclude it under variants, with where")
        out.append(replace(kernel, module=module, policy=policy))
    if spec.stages and not any(s.body for s in spec.stages):
        report.error(
            spec.stages[0].where, "no stage has a statement", "stages: {load: [{copy: x -> y}]}"
        )
    if (
        len(out) == len(seen) and not settings
    ):  # a part of the variants may leave out what others use
        _check_used(spec, out, report)
    return tuple(out)


def chosen(spec: Spec, report: Report, settings: Mapping[str, str]) -> list[Choice]:
    """The combinations asked for, filtered by `where`; those listed under `also` need no filter."""
    kept = [c for c in spec.choices if not c.filtered or _passes(spec, c, report)]
    if settings:
        picked = [c for c in kept if settings.items() <= _complete(spec, c.values).items()]
        if picked:
            return picked
        declared = {d.text for d in spec.dims} | {k.text for k, _ in (*spec.dtypes, *spec.options)}
        changed: dict[tuple, Choice] = {}
        for c in kept or spec.choices:
            values = {k: v for k, v in c.values if k in declared} | dict(settings)
            same = tuple(sorted(_complete(spec, values.items()).items()))
            changed.setdefault(same, replace(c, values=tuple(values.items())))
        return list(changed.values())
    if not kept and spec.choices:
        where = spec.filters[0].where() if spec.filters else spec.where
        report.error(
            where, "no variant passes 'where'", "widen the lists under forall, or the filter"
        )
    return kept


def _complete(spec: Spec, values: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The values with the options' defaults, which a variant need not name."""
    return {k.text: words[0] for k, words in spec.options} | dict(values)


def _passes(spec: Spec, choice: Choice, report: Report) -> bool:
    values = {d: d for d in DTYPES}
    values |= {k.text: typed(words[0]) for k, words in spec.options}
    values |= {k: typed(v) for k, v in choice.values}
    values |= _default_dtypes(spec, choice)
    return all(_holds(source, values, report) for source in spec.filters)


def _default_dtypes(spec: Spec, choice: Choice) -> dict[str, str]:
    """None where they have a mistake, which `chosen.values` reports."""
    try:
        return default_dtypes(spec, dict(choice.values))
    except ExprError:
        return {}


def _holds(source: Source, values: Mapping, report: Report) -> bool:
    """The filter's value; a filter with a mistake keeps every variant."""
    unknown = [
        n for n in names(source.node) if n.id not in values and n.id not in ("true", "false")
    ]
    for n in unknown:
        near = did_you_mean(n.id, values)
        report.error(
            source.where(n),
            f"unknown name '{n.id[:40]}' in the filter of variants{near}",
            "a filter is made of the dims, dtypes and options that variants name",
        )
    if unknown:
        return True
    try:
        return bool(evaluate(source.node, values))
    except ExprError as e:
        report.error(source.where(e.node), f"in the filter of variants: {e.what}", e.hint)
        return True


def module_name(spec: Spec, choice: Choice) -> str:
    """For example prepare_c64_k128_v128_float16 of prepare.yaml: letters, digits and _ only."""
    values = dict(choice.values)
    dims = [d.text for d in spec.dims]
    stem = PurePath(spec.file).stem
    parts = [f"spec_{stem}" if stem[:1].isdigit() else stem]
    parts += [f"{short}{values.get(d, '')}" for d, short in zip(dims, short_names(dims))]
    parts += [values.get(k.text, "") for k, default in spec.dtypes if default is None]
    usual = _default_dtypes(spec, Choice(_without(choice, spec), choice.where))
    for key, default in spec.dtypes:
        if default is not None and values.get(key.text) not in (None, usual.get(key.text)):
            parts += [key.text, values[key.text]]
    for key, words in spec.options:
        if values.get(key.text, words[0]) != words[0]:
            parts += [key.text, values[key.text]]
    return re.sub(r"[^a-z0-9]+", "_", "_".join(p for p in parts if p).lower()).strip("_")


def _without(choice: Choice, spec: Spec) -> tuple[tuple[str, str], ...]:
    """The choice without the dtypes that have defaults."""
    named = {k.text for k, default in spec.dtypes if default is not None}
    return tuple((k, v) for k, v in choice.values if k not in named)


def short_names(dims: list[str]) -> list[str]:
    """BC, DK, DV -> c, k, v where that stays unique; other names are written out."""
    short = [d[-1].lower() if len(d) == 2 and d.isupper() else d.lower() for d in dims]
    return short if len(set(short)) == len(short) else [d.lower() for d in dims]


def _check_used(spec: Spec, kernels: list[model.Kernel], report: Report) -> None:
    """A buffer or tensor that no variant touches is a mistake, and so is a size that nothing gives."""
    used = {name for k in kernels for s in k.statements() for name in model.touched(s)}
    used |= {n.id for k in kernels for s in k.scalars for part in s.parts() for n in names(part)}
    broken: set[str] = set()
    if report.errors():  # whatever a mistake mentions counts as used
        broken = {w for stage in spec.stages for s in stage.body for w in s.words}
    for kind, declared in (("buffer", spec.buffers), ("tensor", spec.tensors)):
        for d in declared:
            if d.name not in used and not d.faulty and d.name not in broken:
                report.error(d.where, f"{kind} '{d.name}' is never used", "use it, or take it out")
    sides = {getattr(s.node, "id", "") for t in spec.tensors for s in t.shape}
    sides |= {getattr(s, "id", "") for k in kernels for t in k.tensors for s in t.shape}
    for size in spec.runtime:
        if size.text not in sides and not any(t.faulty for t in spec.tensors):
            report.error(
                size.where,
                f"nothing says how large '{size.text}' is: it is the side of no tensor",
                "use it as a side of a tensor, or make it a dim",
            )
