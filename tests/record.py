"""Lowers every generated module and remembers what it asked for, by the hash of its text.

`make record` writes `lowered.json`; `test_generated.py` then lowers only what has changed since.
"""

import hashlib
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from gdngen import lowering, write

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).parent / "lowered.json"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_text().encode()).hexdigest()


def asked(job: tuple[str, str]) -> tuple[str, str, dict[str, int]]:
    module, target = job
    path = ROOT / "generated" / module
    lowered = lowering.cached_lower(path, target)
    return digest(path), target, {"dynamic": lowered.dynamic_bytes, "static": lowered.static_bytes}


def main() -> None:
    manifest = json.loads((ROOT / "generated/manifest.json").read_text())
    jobs = [(m, t) for m in sorted(manifest) for t in sorted(manifest[m].get("targets", {}))]
    old = json.loads(write.read(RECORD) or "{}")
    known: dict[str, dict] = {}
    missing = []
    for module, target in jobs:
        key = digest(ROOT / "generated" / module)
        if target in old.get(key, {}):
            known.setdefault(key, {})[target] = old[key][target]
        else:
            missing.append((module, target))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for key, target, found in pool.map(asked, missing):
            known.setdefault(key, {})[target] = found
    write.replace(RECORD, json.dumps(known, indent=0, sort_keys=True) + "\n")
    print(f"{len(jobs)} lowerings known, {len(missing)} of them new")


if __name__ == "__main__":
    main()
