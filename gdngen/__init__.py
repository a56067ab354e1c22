"""gdngen: from a short description of a Gated DeltaNet kernel to TileLang source.

`kernel("prepare", BC=64, DK=64, DV=64, io="float16")` finds a generated kernel, ready to compile;
everything else is on the command line: `gdngen --help`.
"""

__version__ = "0.1.0"
__all__ = ["kernel"]


def kernel(spec: str, policy: str | None = None, target: str | None = None, **values: int | str):
    """The generated kernel of a spec (say 'prepare' or 'examples/matmul') with these dims and dtypes.

    Returns the module's `@tilelang.jit` factory: call it for a compiled kernel. Values left out match
    anything; without `policy` it is the default one's, without `target` (say 'sm_90') that of this
    machine's GPU. LookupError says what there is unless exactly one kernel fits.
    """
    from gdngen.catalog import find

    return find(spec, policy, target, values)
