"""Kernels of specs as files, compiled side by side before any of them is timed.

The checked-in file is taken where it is what was asked for; anything else is rendered anew, and is
left unformatted. Compiled kernels stay in TileLang's cache on disk, where the caller finds them.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gdngen import catalog, driver
from gdngen.driver import Loaded, Module
from gdngen.errors import GdngenError
from gdngen.model.model import Kernel
from gdngen.plan.plan import Plan, Wish
from gdngen.pools import processes
from gdngen.verify import lowering

ENTRY = re.compile(r"__global__ void __launch_bounds__\((\d+)[^)]*\) (\w+)\(")
FAST_MATH = "tl.enable_fast_math"


@dataclass(frozen=True)
class Job:
    """A module on disk for one target, the author's kernel that it is of, and the bytes planned."""

    kernel: Kernel
    path: Path
    target: str
    dynamic: int
    static: int

    @property
    def planned(self) -> int:
        return self.dynamic + self.static

    def plan(self) -> Plan:
        """The plan as far as a manifest tells it: its bytes."""
        return Plan("", self.target, (), self.dynamic, self.static, False, 0)


@dataclass(frozen=True)
class Built:
    """A compiled kernel; bytes of a block, registers and spilled bytes of a thread.

    `refusal` says why there is none. `code` is machine code of the same source, None without nvcc.
    """

    path: Path
    seconds: float
    refusal: str = ""
    dynamic: int = 0
    static: int = 0
    entry: str = ""
    threads: int = 0
    registers: int | None = None
    spills: int | None = None
    code: bytes | None = None


def jobs(
    loaded: Iterable[Loaded], wish: Wish, target: str, folder: Path, root: Path = catalog.GENERATED
) -> list[Job]:
    """The module of every variant for a target: from `root` where it is there, else in `folder`."""
    return [job for one in loaded for job in _jobs(one, wish, target, folder, root)]


def _jobs(one: Loaded, wish: Wish, target: str, folder: Path, root: Path) -> list[Job]:
    known = _known(driver.spec_name(one.path), wish, target, root)
    out, missing = {}, []
    for v in one.variants:
        path = known.get(_values(v.kernel))
        if path is None:
            missing.append(v)
        else:
            sizes = catalog.manifest(root)[path]["targets"][target]
            out[v.kernel.module] = Job(v.kernel, root / path, target, **sizes)
    authors = {v.kernel.module: v.kernel for v in missing}
    rest = Loaded(one.path, tuple(missing), (), {})
    for m in driver.modules(rest, wish, (target,)):
        kernel, plan = authors[m.planned.kernel.module], m.planned.plan
        path = _write(folder, m)
        out[kernel.module] = Job(kernel, path, target, plan.dynamic, plan.static)
    return [out[v.kernel.module] for v in one.variants]


def _known(spec: str, wish: Wish, target: str, root: Path) -> dict[tuple, str]:
    """Values of a variant -> its checked-in file for a target; none where `wish` is out of the way."""
    if wish != Wish(wish.policy) or not (root / driver.MANIFEST).exists():
        return {}
    return {
        tuple(sorted(e["values"].items())): path
        for path, e in catalog.manifest(root).items()
        if e["spec"] == spec and e["policy"] == wish.policy and target in e["targets"]
    }


def checked_in(select: str, target: str, root: Path = catalog.GENERATED) -> list[Job]:
    """Files of `root` that are for a target and whose path below it fits a glob, as they lie there.

    Raises GdngenError where the specs beside `root` no longer have such a variant.
    """
    loaded: dict[str, dict[tuple, Kernel]] = {}
    out = []
    for path, e in catalog.manifest(root).items():
        if target not in e["targets"] or not fnmatch.fnmatchcase(path, select):
            continue
        if e["spec"] not in loaded:
            variants = driver.load(root.parent / e["spec"]).variants
            loaded[e["spec"]] = {_values(v.kernel): v.kernel for v in variants}
        kernel = loaded[e["spec"]].get(tuple(sorted(e["values"].items())))
        if kernel is None:
            raise GdngenError(f"error: {e['spec']} has no variant for {path}: run gdngen render")
        out.append(Job(kernel, root / path, target, **e["targets"][target]))
    return out


def _values(kernel: Kernel) -> tuple:
    return tuple(sorted((dict(kernel.values) | dict(kernel.dtypes)).items()))


def _write(folder: Path, m: Module) -> Path:
    path = folder / m.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(m.text, encoding="utf-8")
    return path


# -- compiling -------------------------------------------------------------------------------------


def build_all(paths: Iterable[Path], target: str, workers: int | None = None) -> dict[Path, Built]:
    """Compiles every module for the GPU at hand, each in one of some processes of their own."""
    wanted = list(dict.fromkeys(paths))
    if not wanted:
        return {}
    workers = min(len(wanted), workers or len(os.sched_getaffinity(0)))
    with processes(workers) as pool:
        waiting = {path: pool.submit(build, path, target) for path in wanted}
        out = {}
        for path, future in waiting.items():
            try:
                out[path] = future.result()
            except Exception as e:  # the process died, and with it what it had to say
                out[path] = Built(path, 0.0, f"its compiler stopped: {type(e).__name__}: {e}")
        return out


def build(path: Path, target: str) -> Built:
    """Compiles one module as TileLang does, and once more to keep the machine code and its report."""
    began = time.perf_counter()
    try:
        factory = lowering.load(path)
        kernel = factory()
        source, attributes = kernel.get_kernel_source(), kernel.target.attrs
        arch = str(attributes["arch"]) if "arch" in attributes else target
        lowered = lowering.cached_lower(path, arch)
        found = ENTRY.findall(source)
        fast = bool((factory.pass_configs or {}).get(FAST_MATH))
        made = lowering.cubin(source, arch, ("--use_fast_math",) if fast else ())
    except Exception as e:  # the compiler's errors are of many types
        why = f"{type(e).__name__}: {str(e).strip() or 'no message'}"
        return Built(path, time.perf_counter() - began, why)
    threads, entry = found[-1] if found else ("0", "")
    report = made.registers if made else None
    return Built(
        path,
        time.perf_counter() - began,
        dynamic=lowered.dynamic_bytes,
        static=lowered.static_bytes,
        entry=entry,
        threads=int(threads),
        registers=report.registers if report else None,
        spills=report.spill_stores + report.spill_loads if report else None,
        code=made.code if made else None,
    )
