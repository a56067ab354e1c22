"""Which variants a spec asks for, each resolved and named.

A variant's name comes from what it is: dims, the dtypes that a spec leaves open, and any other
value that differs from the spec's default. So a name is the same wherever it is rendered from.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath

from gdngen import model, spec as syntax
from gdngen.errors import Report
from gdngen.expr import ExprError, evaluate
from gdngen.resolve import resolve, typed


def kernels(spec: syntax.Spec, report: Report, settings: Mapping[str, str] = {}) -> tuple[model.Kernel, ...]:
    """Every variant, or those that `settings` (name -> value, as with --set) ask for.

    A setting picks among the spec's variants; where none has it, it is put into all of them.
    """
    choices = chosen(spec, report, settings)
    found = [(choice, resolve(spec, choice, report)) for choice in choices]
    seen: dict[str, syntax.Choice] = {}
    out = []
    for choice, kernel in found:
        if kernel is None:
            continue
        named = replace(kernel, module=module_name(spec, choice))
        if named.module in seen:
            report.error(
                choice.where,
                f"two variants of one name, {named.module}",
                f"the first is on line {seen[named.module].where.line}; take one of them out",
            )
            continue
        seen[named.module] = choice
        out.append(named)
    if out and not any(k.stages for k in out):
        report.error(spec.where, "no variant has a statement to render")
    _unused(spec, out, report)
    return tuple(out)


def chosen(spec: syntax.Spec, report: Report, settings: Mapping[str, str]) -> list[syntax.Choice]:
    """The combinations asked for, filtered by `where`; those listed under `also` need no filter."""
    kept = [c for c in spec.choices if _passes(spec, c, report)]
    if settings:
        picked = [c for c in kept if all(dict(c.values).get(k) == v for k, v in settings.items())]
        if picked:
            return picked
        names = {d.text for d in spec.dims} | {k.text for k, _ in (*spec.dtypes, *spec.options)}
        changed: dict[tuple, syntax.Choice] = {}
        for c in kept or spec.choices:
            values = {k: v for k, v in c.values if k in names} | dict(settings)
            key = tuple(sorted(values.items()))
            changed.setdefault(key, replace(c, values=tuple(values.items())))
        return list(changed.values())
    if not kept and not report.errors():
        where = spec.filters[0].where() if spec.filters else spec.where
        report.error(where, "no variant passes 'where'", "widen the lists under forall, or the filter")
    return kept


def _passes(spec: syntax.Spec, choice: syntax.Choice, report: Report) -> bool:
    values = {k: typed(v) for k, v in choice.values}
    if "" not in values:
        return True
    for source in spec.filters:
        try:
            if not evaluate(source.node, values):
                return False
        except ExprError as e:
            report.error(source.where(e.node), f"in the filter of variants: {e.what}")
            return True
    return True


def module_name(spec: syntax.Spec, choice: syntax.Choice) -> str:
    """For example prepare_c64_k128_v128_float16 of prepare.yaml."""
    values = dict(choice.values)
    dims = [d.text for d in spec.dims]
    parts = [PurePath(spec.file).stem.replace("-", "_").replace(".", "_")]
    parts += [f"{short}{values.get(d, '')}" for d, short in zip(dims, short_names(dims))]
    parts += [values.get(k.text, "") for k, default in spec.dtypes if default is None]
    for key, default in spec.dtypes:
        if default is not None and values.get(key.text, default) != default:
            parts += [key.text, values[key.text]]
    for key, words in spec.options:
        if values.get(key.text, words[0]) != words[0]:
            parts += [key.text, values[key.text]]
    return "_".join(p.lower() for p in parts if p)


def short_names(dims: list[str]) -> list[str]:
    """BC, DK, DV -> c, k, v where that stays unique; other names are written out."""
    short = [d[-1].lower() if len(d) == 2 and d.isupper() else d.lower() for d in dims]
    return short if len(set(short)) == len(short) else [d.lower() for d in dims]


def _unused(spec: syntax.Spec, kernels: list[model.Kernel], report: Report) -> None:
    """A buffer or tensor that no variant touches is a mistake in the spec."""
    if report.errors() or not kernels:
        return
    used = {name for k in kernels for s in k.statements() for name in model.touched(s)}
    for kind, declared in (("buffer", spec.buffers), ("tensor", spec.tensors)):
        for d in declared:
            if d.name not in used:
                report.error(d.where, f"{kind} '{d.name}' is never used", "use it, or take it out")
