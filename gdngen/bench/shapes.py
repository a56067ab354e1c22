"""Runtime sizes on which kernels are timed, from the command line or the usual ones."""

from collections.abc import Iterable, Mapping

from gdngen.errors import GdngenError, did_you_mean
from gdngen.model.model import Kernel
from gdngen.verify import samples

BATCH, COUNT, LENGTH = 2, 32, 8192  # the first count, every other count, a length
PLAIN_LENGTH = 4096  # a length of a kernel that has no counts


def parse(text: str) -> dict[str, int]:
    """'B=2,H=32,T=8192' -> sizes. Raises GdngenError for anything else."""
    out: dict[str, int] = {}
    for item in text.split(","):
        name, equals, number = item.partition("=")
        if not (name and equals and number.isascii() and number.isdigit() and int(number)):
            raise GdngenError(
                f"error: --shape {text}: '{item}': NAME=SIZE is meant, say B=2,H=32,T=8192"
            )
        if out.setdefault(name, int(number)) != int(number):
            raise GdngenError(f"error: --shape {text}: {name} is given twice")
    return out


def check_names(given: Iterable[Mapping[str, int]], kernels: Iterable[Kernel]) -> None:
    """Every name of a shape is a runtime size of some kernel, or GdngenError."""
    known = {name for kernel in kernels for name in kernel.runtime}
    for name in (n for sizes in given for n in sizes):
        if name not in known:
            raise GdngenError(
                f"error: --shape: no kernel here has a runtime size '{name}'{did_you_mean(name, known)}\n"
                f"  help: there are {' '.join(sorted(known))}"
            )


def sizes(kernel: Kernel, given: Mapping[str, int]) -> dict[str, int]:
    """All runtime sizes: those given, and usual ones for the rest."""
    lengths = samples.tiles(kernel)
    counts = [name for name in kernel.runtime if name not in lengths]
    usual = {name: LENGTH if counts else PLAIN_LENGTH for name in lengths}
    usual |= {name: BATCH if name == counts[0] else COUNT for name in counts}
    return {name: given.get(name, usual[name]) for name in kernel.runtime}


def text(found: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in found.items())
