"""Lowers every generated module and remembers what the compiler said of it.

`make record` writes `tests/lowered.json`, bytes by the hash of a text, so that `test_generated.py`
lowers only what has changed since, and `tests/lowered_elsewhere.json`, the same of kernels that are not
checked in; and, where nvcc is at hand, `gdngen/registers.json`, registers a thread by variant and
target, by which the planner knows how many blocks can be resident.
"""

import hashlib
import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import elsewhere

from gdngen.render import write
from gdngen.verify import lowering

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).parent / "lowered.json"
REGISTERS = ROOT / "gdngen/registers.json"

Job = tuple[str, str]  # a module, a target


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_text().encode()).hexdigest()


def asked(job: Job) -> tuple[Job, dict[str, int] | str, int | dict[str, int] | None]:
    """Bytes that a module asks for on a target, or why it is refused; and the registers that it takes
    there if nvcc says."""
    module, target = job
    try:
        lowered = lowering.cached_lower(ROOT / "generated" / module, target)
    except lowering.LoweringError as error:
        return job, str(error), None
    found = lowering.cached_registers(lowered.source, target) if target.startswith("sm_") else None
    bytes_ = {"dynamic": lowered.dynamic_bytes, "static": lowered.static_bytes}
    if found and found.spills:
        return job, bytes_, {"registers": found.registers, "spills": found.spills}
    return job, bytes_, found and found.registers


def main() -> int:
    manifest = json.loads((ROOT / "generated/manifest.json").read_text())
    jobs = [(m, t) for m in sorted(manifest) for t in sorted(manifest[m].get("targets", {}))]
    old = json.loads(write.read(RECORD) or "{}")
    registers = json.loads(REGISTERS.read_text())
    keys = {m: digest(ROOT / "generated" / m) for m, _ in jobs}
    missing = [(m, t) for m, t in jobs if t not in old.get(keys[m], {})]
    known: dict[str, dict] = {}
    refused = []
    for m, t in jobs:
        if (m, t) not in missing:
            known.setdefault(keys[m], {})[t] = old[keys[m]][t]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for (m, t), bytes_, count in pool.map(asked, missing):
            if isinstance(bytes_, str):
                refused.append(bytes_)
                continue
            known.setdefault(keys[m], {})[t] = bytes_
            if count and manifest[m]["policy"] == "lean":
                # Kept once known: a plan made for other registers may take others again.
                registers.setdefault(manifest[m]["variant"], {}).setdefault(t, count)
    write.replace(RECORD, json.dumps(known, indent=0, sort_keys=True) + "\n")
    write.replace(REGISTERS, json.dumps(registers, indent=1, sort_keys=True) + "\n")
    print("\n".join(refused + [f"{len(jobs)} lowerings known, {len(missing)} of them new"]))
    print("{} of kernels elsewhere, {} of them new".format(*_elsewhere()))
    return 1 if refused else 0


def _elsewhere() -> tuple[int, int]:
    """Records kernels that are not checked in; how many there are, and how many are new."""
    old = json.loads(write.read(elsewhere.RECORD) or "{}")
    cases = [c for way in elsewhere.WAYS for c in elsewhere.cases(way)]
    known: dict[str, dict] = {}
    new = [c for c in cases if c.target not in old.get(c.digest, {})]
    for c in cases:
        if c not in new:
            known.setdefault(c.digest, {})[c.target] = old[c.digest][c.target]
    with tempfile.TemporaryDirectory() as folder:
        for c in new:
            low = lowering.cached_lower(c.written(Path(folder)), c.target)
            bytes_ = {"dynamic": low.dynamic_bytes, "static": low.static_bytes}
            known.setdefault(c.digest, {})[c.target] = bytes_
    write.replace(elsewhere.RECORD, json.dumps(known, indent=0, sort_keys=True) + "\n")
    return len(cases), len(new)


if __name__ == "__main__":
    sys.exit(main())
