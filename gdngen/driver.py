"""The one way that data flows, end to end: spec files -> kernels -> plans -> modules' text.

`generated/` mirrors `specs/`: specs/prepare.yaml gives generated/prepare/*.py, one file a variant, and
one a target where plans differ so much that the text does. `manifest.json` lists them all.
"""

import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gdngen import checks
from gdngen.errors import Diagnostic, GdngenError, Report, did_you_mean
from gdngen.language import spec, syntax
from gdngen.model import pipelines
from gdngen.model.analysis import Analysis
from gdngen.model.model import Kernel
from gdngen.plan import plan as planning
from gdngen.plan.plan import Planned, Wish
from gdngen.pools import processes
from gdngen.render import format, functions, render

MANIFEST = "manifest.json"
FEW = 4  # files that one process formats faster than two


@dataclass(frozen=True)
class Checked:
    """A variant that passed every check, with its analysis in the author's order."""

    kernel: Kernel
    found: Analysis


@dataclass(frozen=True)
class Loaded:
    """A spec's variants, the warnings found on the way, and what its author warns of."""

    path: Path
    variants: tuple[Checked, ...]
    warnings: tuple[Diagnostic, ...]
    sources: Mapping[str, str]
    cautions: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class Module:
    """A file to be: its path below the output folder, its text, and what it is of."""

    path: str
    planned: Planned
    text: str


def load(path: Path, settings: Mapping[str, str] = {}) -> Loaded:
    """Reads and checks a spec; raises `SpecError` with every mistake in it."""
    return _load(_read(path), path, tuple(sorted(settings.items())))


@functools.lru_cache(maxsize=32)  # roles take seconds to prove
def _load(text: str, path: Path, settings: tuple[tuple[str, str], ...]) -> Loaded:
    report = Report()
    parsed = spec.parse(text, path.as_posix(), report)
    if parsed is None:
        report.stop()
    known = {d.text for d in parsed.dims} | {k.text for k, _ in (*parsed.dtypes, *parsed.options)}
    for name, _ in settings:
        if name not in known:
            raise GdngenError(
                f"error: --set {name}: {path} has no such dim, dtype or option{did_you_mean(name, known)}\n"
                f"  help: it has {' '.join(sorted(known))}"
            )
    checked = tuple(Checked(*found) for found in checks.check(parsed, report, dict(settings)))
    report.stop()
    own = (
        (Diagnostic("warning", parsed.warn.where, " ".join(parsed.warn.text.split())),)
        if parsed.warn
        else ()
    )
    return Loaded(path, checked, tuple(report.warnings()), report.sources, own)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise GdngenError(f"error: {path} is not UTF-8 text") from None
    except OSError as e:
        raise GdngenError(f"error: {path}: {e.strerror.lower()}") from None


def is_pipeline(path: Path) -> bool:
    """Whether a spec is of functions made of kernels, rather than of a kernel."""
    return pipelines.is_pipeline(_read(path))


def pipeline(path: Path, own: Path | None = None) -> tuple[str, str]:
    """The module of a pipeline spec: its path below the output folder, and its final text.

    Raises `SpecError` with every mistake in the spec.
    """
    report = Report()
    parsed = pipelines.parse(_read(path), path.as_posix(), report)
    report.stop()
    name = f"{output_folder(path)}.py"
    return name, format.formatted(functions.text(parsed, spec_name(path), own), name)


def wished(v: Checked, wish: Wish) -> Wish:
    """The wish for one variant, which may name a policy of its own."""
    return replace(wish, policy=v.kernel.policy or wish.policy)


def plans(v: Checked, wish: Wish, targets: Iterable[str] = ()) -> tuple[Planned, ...]:
    """The variant's plans; targets whose plans make the same text stand together."""
    groups: dict[tuple, list[Planned]] = {}
    for target in targets or v.kernel.targets:
        p = planning.plan(v.kernel, v.found, wished(v, wish), target)
        alike = (
            p.plan.slots,
            p.plan.merged,
            p.plan.switch,
            p.plan.changes,
            p.plan.blocking,
            p.plan.resident,
            p.plan.bulk,
        )
        groups.setdefault(alike, []).append(p)
    return tuple(replace(g[0], plans=tuple(p.plan for p in g)) for g in groups.values())


def module_names(v: Checked, groups: tuple[Planned, ...], wish: Wish) -> list[str]:
    """File names without suffix: the policy is named where it is not the default, and the targets of
    every text but the first."""
    policy = wished(v, wish).policy
    base = v.kernel.module + (f"_{policy}" if policy != planning.DEFAULT else "")
    return [
        base if i == 0 else "_".join([base, *(p.target for p in g.plans)])
        for i, g in enumerate(groups)
    ]


def modules(
    loaded: Loaded, wish: Wish, targets: Iterable[str] = (), own: Path | None = None
) -> list[Module]:
    """Every file that a spec renders, unformatted; `own` is a folder of templates to try first."""
    folder = output_folder(loaded.path)
    out = []
    for v in loaded.variants:
        groups = plans(v, wish, targets)
        for name, planned in zip(module_names(v, groups, wish), groups):
            named = replace(planned, kernel=replace(planned.kernel, spec=spec_name(loaded.path)))
            out.append(Module(f"{folder}/{name}.py", named, render.render(named, own)))
    return out


def formatted(found: list[Module]) -> list[Module]:
    """The modules with their final text; several are formatted side by side."""
    return list(formatting(found))


def formatting(found: list[Module]) -> Iterator[Module]:
    """The same, one after the other as they come."""
    if len(found) <= FEW:
        yield from (replace(m, text=format.formatted(m.text, m.path)) for m in found)
        return
    texts, paths = [m.text for m in found], [m.path for m in found]
    workers = min(os.cpu_count() or 1, -(-len(found) // FEW))
    with processes(workers, how="fork") as pool:
        for m, text in zip(found, pool.map(format.formatted, texts, paths, chunksize=FEW)):
            yield replace(m, text=text)


def spec_root(path: Path) -> Path:
    """The folder `specs` that holds a spec, or the spec's own folder."""
    parents = path.resolve().parents
    return next((p for p in parents if p.name == "specs"), parents[0])


def spec_name(path: Path) -> str:
    """The spec as files name it: from the folder that holds `specs`, so the same on every machine."""
    root = spec_root(path)
    inside = path.resolve().relative_to(root).as_posix()
    return f"specs/{inside}" if root.name == "specs" else inside


def output_folder(path: Path) -> str:
    """Where a spec's files go, below the output folder: 'prepare', 'examples/matmul'."""
    inside = path.resolve().relative_to(spec_root(path)).with_suffix("").as_posix()
    parts = [p.replace("-", "_").replace(".", "_") for p in inside.split("/")]
    for part in parts:
        if not syntax.NAME.match(part):
            raise GdngenError(
                f"error: {path}: '{part}' can't name a folder of modules\n"
                "  help: a spec's file name is a letter, then letters, digits and _"
            )
    return "/".join(parts)


def package_files(found: list[Module]) -> dict[str, str]:
    """The `__init__.py` of every folder."""
    out = {}
    for m in found:
        folder = m.path.rpartition("/")[0]
        spec = m.planned.kernel.spec
        out[f"{folder}/__init__.py"] = f'{render.header(spec, "# ")}\n"""Kernels of {spec}."""\n'
    return out


def entry(m: Module) -> dict:
    """What the manifest says of a module."""
    kernel = m.planned.kernel
    return {
        "spec": kernel.spec,
        "kernel": kernel.name,
        "variant": kernel.module,
        "policy": m.planned.plan.policy,
        "targets": {p.target: {"dynamic": p.dynamic, "static": p.static} for p in m.planned.plans},
        "tensors": [t.name for t in kernel.tensors],
        "outputs": [t.name for t in kernel.tensors if t.role != "in"],
        "values": dict(kernel.values) | dict(kernel.dtypes),
    }


def fingerprint(paths: Iterable[Path]) -> str:
    """A hash of files' names and contents."""
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(paths):
        digest.update(path.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
