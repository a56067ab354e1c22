"""Which variant a user names: by its module's name, with its policy behind it where it has one."""

from collections.abc import Iterable
from dataclasses import replace

from gdngen.driver import Checked, Loaded
from gdngen.errors import GdngenError, did_you_mean
from gdngen.show.tables import named

SHOWN = 12  # names that an error lists


def only(loaded: Iterable[Loaded], name: str | None) -> list[Loaded]:
    """Specs with no other variant than the one of that name; all of them where none is given.

    `GdngenError` if no variant is called so.
    """
    specs = list(loaded)
    if name is None:
        return specs
    known = {said: v for one in specs for v in one.variants for said in _names(v)}
    plain = [v for one in specs for v in one.variants if v.kernel.module == name]
    chosen = next(
        (v for v in plain if v.kernel.policy is None), known.get(name) or next(iter(plain), None)
    )
    if chosen is None:
        where = ", ".join(str(one.path) for one in specs)
        raise GdngenError(
            f"error: {where}: no variant is called '{name[:80]}'{did_you_mean(name, known)}\n"
            f"  help: {_listed([_names(v)[0] for one in specs for v in one.variants])}"
        )
    return [
        replace(one, variants=tuple(v for v in one.variants if v is chosen))
        for one in specs
        if any(v is chosen for v in one.variants)
    ]


def one(loaded: Iterable[Loaded], what: str, otherwise: str = "") -> tuple[Loaded, Checked]:
    """The spec's one variant; `GdngenError` where there are several, for `what` can be of one alone."""
    every = [(spec, v) for spec in loaded for v in spec.variants]
    if len(every) != 1:
        raise GdngenError(
            f"error: {what} is of one variant, and there are {len(every)}{otherwise}\n"
            f"  help: name one by --variant: {_listed([_names(v)[0] for _, v in every])}"
        )
    return every[0]


def _names(v: Checked) -> list[str]:
    policy = v.kernel.policy
    return [f"{v.kernel.module}_{policy}", named(v)] if policy else [v.kernel.module]


def _listed(names: list[str]) -> str:
    more = len(names) - SHOWN
    return " ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
