"""Hard numbers: how far off the prepare kernels and the whole forward are, beside FLA, on the same inputs.

    python benchmarks/numerics.py [--cpu] [--dtypes bfloat16,float16] [--dims 64,128] [--out DIR]

On a GPU beside FLA, where it is installed; with --cpu, or where there is no GPU, through TileLang's `c`
target, at a minute or two a dtype and width. Writes numerics.json to DIR (default: $OUT, else .).
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gdngen.bench import gpu, numerics
from gdngen.bench.whole import DTYPES
from gdngen.verify import verify


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    options.add_argument("--dtypes", default=",".join(DTYPES))
    options.add_argument("--dims", default="64,128")
    options.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    asked = options.parse_args()
    on_gpu = verify.on_gpu() and not asked.cpu
    machine = gpu.machine() if on_gpu else {"cpu": "TileLang's target c"}
    dims = [int(text) for text in asked.dims.split(",")]
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in numerics.measured(asked.dtypes.split(","), dims, on_gpu):
        rows.append(row)
        worst = ", ".join(f"{name} {error:.1e}" for name, error in row.errors) or row.why
        print(f"{row.what} {row.dtype} {row.dim} {row.case}: {row.who}: {worst}", flush=True)
        (asked.out / "numerics.json").write_text(numerics.dumps(rows, machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
