"""gdngen: from a short description of a Gated DeltaNet kernel to TileLang source.

`kernel("prepare", BC=64, DK=64, DV=64, io="float16")` finds a generated kernel, ready to compile;
everything else is on the command line: `gdngen --help`.
"""

import os

__version__ = "0.1.0"
__all__ = ["kernel"]


def kernel(
    spec: str,
    policy: str | None = None,
    target: str | None = None,
    folder: "str | os.PathLike | None" = None,
    **values: int | str,
):
    """The generated kernel of a spec (say 'prepare' or 'examples/matmul') with these dims and dtypes.

    Returns the module's `@tilelang.jit` factory: call it for a compiled kernel. Values left out match
    anything; without `policy` it is the default one's, without `target` (say 'sm_90') that of this
    machine's GPU. `folder` is where `gdngen render` wrote kernels of your own; left out, they are those
    that gdngen comes with. LookupError says what there is unless exactly one kernel fits.
    """
    from pathlib import Path

    from gdngen.catalog import find
    from gdngen.resources import GENERATED

    root = GENERATED if folder is None else Path(folder).resolve()
    return find(spec, policy, target, values, root)
