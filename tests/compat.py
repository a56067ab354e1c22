"""Kernels under every TileLang version that they are claimed for: `make compat`.

    python tests/compat.py [--all] [VERSION ...]

Each version has an environment of its own, in .cache/compat/VERSION. There a kernel is lowered for its
targets, its bytes are compared with the plan's, and its text is run on the CPU (target `c`) and compared
with the right answer. Every kernel has a process of its own: some versions end it in the middle.
What is found goes into `compat.json`, and from there into the README; what is known there of a text is
not found out again. --all takes every kernel of specs/ and not the sample, and records nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).parent / "compat.json"
README = ROOT / "README.md"
TORCH = "torch==2.13.0"
# What an environment needs beside torch; torch is named in the same call, as tilelang names none.
VERSIONS = {
    "0.1.9": ("tilelang==0.1.9", "apache-tvm-ffi<0.1.10"),
    "0.1.12": ("tilelang==0.1.12",),
    "0.1.15": ("tilelang==0.1.15",),
}
# Versions that can't turn off their own merging: kernels are rendered as for a device without the switch.
NO_SWITCH = ("0.1.9",)
SAMPLE = {
    "specs/prepare.yaml": (
        "prepare_c64_k64_v64_float16",
        "prepare_c64_k64_v64_float16_match",
        "prepare_c64_k128_v128_bfloat16",
        "prepare_c32_k64_v64_float32",
    ),
    "specs/prepare_blocked.yaml": (
        "prepare_blocked_c64_k128_v128_bfloat16",
        "prepare_blocked_c64_k64_v64_float16",
        "prepare_blocked_c64_k64_v64_bfloat16_layout_bthd_sum_inside_outputs_wu_scores_true_varlen_true",
    ),
    "specs/forward.yaml": ("forward_bc64_dk64_dv64_bv32_bfloat16",),
    "specs/decode.yaml": ("decode_dk128_dv128_bv8_bfloat16",),
    "specs/l2norm.yaml": ("l2norm_r32_d128_bfloat16",),
    "specs/examples/matmul.yaml": ("matmul_m64_n64_k32_float16",),
    "specs/examples/softmax.yaml": ("softmax_r32_n128_float16",),
    "specs/examples/two_pass.yaml": ("two_pass_bt32_bd64_d128_bfloat16",),
}
OLD = "sm_80 of old"  # a device as sm_80, whose TileLang has no switch
PATIENCE = 600  # seconds for one kernel in one version


# -- environments ----------------------------------------------------------------------------------


def python(version: str) -> Path:
    """The interpreter of a version's environment, which is made where there is none."""
    folder = ROOT / ".cache" / "compat" / version
    ready = folder / ".ready"
    if not ready.exists():
        print(f"{version}: making {folder.relative_to(ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q"]
        needs = ["jinja2", "pyyaml", "numpy", "rich", "black"]
        subprocess.run([*pip, TORCH, *VERSIONS[version], *needs], check=True)
        ready.touch()
    return folder / "bin/python"


# -- kernels ---------------------------------------------------------------------------------------


def jobs(folder: Path, everything: bool, switch: bool) -> Iterator[tuple[str, Path]]:
    """Each kernel's name and the file that holds all that is needed to check it."""
    from gdngen import devices, driver
    from gdngen.plan.plan import Wish
    from gdngen.verify import sweep

    wish = Wish()
    if not switch:
        old = replace(devices.device("sm_80"), name=OLD, switch=False)
        devices.devices().setdefault(OLD, old)
        wish = Wish(device=OLD)
    specs = {str(p.relative_to(ROOT)): () for p in sorted((ROOT / "specs").rglob("*.yaml"))}
    for spec, names in (specs if everything else SAMPLE).items():
        if driver.is_pipeline(ROOT / spec):
            continue
        loaded = driver.load(ROOT / spec, {})
        if names:
            variants = [v for v in loaded.variants if _of(v, names)]
            loaded = replace(loaded, variants=tuple(variants))
        for job in sweep.jobs([loaded], wish, (), folder):
            path = folder / f"{job.path.stem}.job"
            path.write_bytes(pickle.dumps(job))
            yield job.path.stem, path


def _of(variant, names: tuple[str, ...]) -> bool:
    policy = variant.kernel.policy
    return f"{variant.kernel.module}{f'_{policy}' if policy else ''}" in names


def digest(job: Path) -> str:
    """What a kernel's text is, with what it is compared with."""
    made = pickle.loads(job.read_bytes())
    planned = [(target, plan.asked) for target, plan in made.plans]
    return hashlib.sha256(f"{made.path.read_text()}{planned}".encode()).hexdigest()[:16]


# -- in a version's environment --------------------------------------------------------------------


def check(job_file: str, done: list[str]) -> None:
    """Prints a line of JSON for each thing that was found out about a kernel, but those `done`."""
    job = pickle.loads(Path(job_file).read_bytes())
    from gdngen.verify import lowering, samples, verify

    for target, plan in job.plans:
        if target in done:
            continue
        print(json.dumps({"try": target}), flush=True)
        found = {"planned": plan.asked}
        try:
            found["asked"] = lowering.lower(job.path, target).bytes
        except Exception as e:
            found["refused"] = reason(e)
        print(json.dumps({"of": target, **found}), flush=True)
    if "c" not in done:
        print(json.dumps({"try": "c"}), flush=True)
        verdict = verify.verify(job.kernel, job.path, {}, trials=samples.trials(job.kernel)[:2])
        found = {"right": True} if verdict.ok else {"refused": shortened(verdict.problems()[0])}
        print(json.dumps({"of": "c", **found}), flush=True)


def reason(error: Exception) -> str:
    return shortened(f"{type(error).__name__}: {error}")


def shortened(text: str) -> str:
    """One line, with no places of this machine in it."""
    text = re.sub(r"\S*/\S*", "...", " ".join(text.split()))
    return text[:160]


def found_of(version: str, job: Path, wanted: list[str]) -> dict[str, dict]:
    """What a version makes of a kernel, target by target. A process that dies is told, and the rest is
    found out by another."""
    out: dict[str, dict] = {}
    while set(wanted) - set(out):
        command = [str(python(version)), __file__, "--check", str(job), *out]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE,
                env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(job.parent)},
            )  # fmt: skip
            text, died = done.stdout, (done.stderr.strip().splitlines() or ["no word"])[-1]
        except subprocess.TimeoutExpired as e:
            text, died = (e.stdout or b"").decode(), f"no answer in {PATIENCE} s"
        rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        tried = [r["try"] for r in rows if "try" in r]
        out |= {r.pop("of"): r for r in rows if "of" in r}
        lost = [t for t in tried if t not in out] or sorted(set(wanted) - set(out))[:1]
        out |= {t: {"refused": shortened(f"the compiler died: {died}")} for t in lost}
    return {t: out[t] for t in wanted}


# -- all of it -------------------------------------------------------------------------------------


def run(versions: list[str], everything: bool) -> dict:
    known = {} if everything else json.loads(RECORD.read_text()) if RECORD.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for version in versions:
            here = Path(folder, version)
            here.mkdir()
            old, new = known.get(version, {}), {}
            for name, job in jobs(here, everything, version not in NO_SWITCH):
                key = digest(job)
                if old.get(name, {}).get("digest") == key:
                    new[name] = old[name]
                    continue
                targets = [t for t, _ in pickle.loads(job.read_bytes()).plans]
                new[name] = {"digest": key, **found_of(version, job, [*targets, "c"])}
                print(version, name, said(new[name]), flush=True)
            known[version] = new
            if not everything:
                RECORD.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return known


def said(row: dict) -> str:
    words = []
    for target, found in row.items():
        if target == "digest":
            continue
        word = found.get("refused") or "right"
        if "asked" in found:
            word = f"{found['asked']:,} of {found['planned']:,}"
        words.append(f"{target}: {word}")
    return "; ".join(words)


def table(known: dict) -> str:
    """The README's: versions by targets, and what was refused."""
    order = sorted(known, key=lambda v: [int(n) for n in v.split(".")])
    targets = sorted(
        {t for rows in known.values() for r in rows.values() for t in r} - {"digest", "c"}
    )
    lines = [f"| TileLang | {' | '.join(targets)} | run on the CPU |"]
    lines.append(f"|{' --- |' * (len(targets) + 2)}")
    for version in order:
        cells = [_cell(version, known[version], t) for t in (*targets, "c")]
        lines.append(f"| {version} | {' | '.join(cells)} |")
    notes = []
    for version in order:
        failed: dict[str, list[str]] = {}
        for name, row in sorted(known[version].items()):
            for target in (*targets, "c"):
                if why := row.get(target, {}).get("refused"):
                    failed.setdefault(f"{target}: {why}", []).append(name)
        notes += [
            f"- {version}, {why.replace('|', ' ')} ({', '.join(names)})"
            for why, names in failed.items()
        ]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _cell(version: str, rows: dict, target: str) -> str:
    here = [r[target] for r in rows.values() if target in r]
    if target == "c":
        return f"{sum('right' in r for r in here)} of {len(here)} right"
    lowered = [r for r in here if "asked" in r]
    equal = sum(r["asked"] == r["planned"] for r in lowered)
    if version in NO_SWITCH:
        below = sum(r["asked"] <= r["planned"] for r in lowered)
        return f"{len(lowered)} of {len(here)} lowered, {below} in what is planned or less"
    return f"{len(lowered)} of {len(here)} lowered, {equal} in just what is planned"


def write_readme(known: dict) -> None:
    text = README.read_text()
    new = re.sub(
        r"(<!-- compat -->\n).*?(\n<!-- end -->)",
        lambda m: m[1] + table(known) + m[2],
        text,
        flags=re.S,
    )
    README.write_text(new)


def main() -> int:
    if sys.argv[1:2] == ["--check"]:
        check(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description="Kernels under every TileLang that is claimed.")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=" ".join(VERSIONS))
    parser.add_argument(
        "--all", action="store_true", help="every kernel of specs/; records nothing"
    )
    options = parser.parse_args()
    if unknown := set(options.versions) - VERSIONS.keys():
        parser.error(f"no such version here: {', '.join(sorted(unknown))}")
    known = run(options.versions or list(VERSIONS), options.all)
    print(table(known))
    if not options.all:
        write_readme(known)
    newest = known.get(list(VERSIONS)[-1], {})
    return (
        1
        if any("refused" in f for r in newest.values() for f in r.values() if isinstance(f, dict))
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
