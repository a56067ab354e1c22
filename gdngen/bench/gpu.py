"""What only a GPU can say: its name and copy rate, how long calls take, how many blocks an SM holds.

Times are milliseconds between CUDA events. Everything runs on torch's current device and stream.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdngen.errors import GdngenError

WARM_UP = 5  # calls of each input set before the first is timed
BUDGET = 60.0  # ms of launches in a round, between LEAST and MOST of them
LEAST, MOST = 20, 200
LEAD = 60.0  # most ms that the GPU is kept busy while the host queues a round
CYCLES = 2_000_000  # a ms of the fastest clock in use; the lead may be longer on a slower one
COPY = 1 << 30  # bytes of the copy that the copy rate is measured with: 20 times an L2
CACHES = 3  # input sets together are so many times as large as the L2
FEWEST_SETS, MOST_SETS = 2, 64

# Of the CUDA driver's CUfunction_attribute.
LOCAL_BYTES, NUM_REGS, MAX_DYNAMIC_SHARED = 3, 4, 8


@dataclass(frozen=True)
class Resident:
    """What the driver says of a loaded kernel: blocks on an SM, registers and local bytes a thread."""

    blocks: int
    registers: int
    local_bytes: int


def require() -> None:
    """Raises GdngenError, with what to do instead, where there is no NVIDIA GPU to time on."""
    try:
        import torch
    except ImportError:
        raise GdngenError("error: bench needs torch: pip install 'gdngen[run]'") from None
    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise GdngenError(
            "error: bench times kernels on an NVIDIA GPU, and torch sees none here\n"
            "  help: `gdngen plan` and `gdngen verify` need none"
        )


def target() -> str:
    """The architecture of the current device, say 'sm_90'."""
    import torch

    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def machine() -> dict[str, str | int]:
    """The device and the versions of whatever runs on it."""
    import torch

    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    out: dict[str, str | int] = {
        "gpu": found.name,
        "sms": found.multi_processor_count,
        "l2": found.L2_cache_size,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
    }
    for package in ("triton", "tilelang", "fla-core", "flash-qla"):
        try:
            out[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return out


def copy_rate() -> float:
    """Bytes a second, read and written together, of the better of two large copies on the device."""
    import torch

    source = torch.empty(COPY, dtype=torch.uint8, device="cuda").random_(0, 256)
    target = torch.empty_like(source)
    rounds = [median([lambda: target.copy_(source)]) for _ in range(2)]
    return 2 * COPY / min(rounds) * 1e3


def sets(least: int, l2: int) -> int:
    """How many input sets of `least` bytes each exceed the L2 several times."""
    return min(MOST_SETS, max(FEWEST_SETS, -(-CACHES * l2 // max(1, least))))


def median(calls: Sequence[Callable[[], object]]) -> float:
    """The median time of a call, taking turns among `calls`, which do the same on other inputs.

    The GPU first idles for as long as the host needs to queue every launch, so that what is timed
    is the device's work and never the host's: peers that launch several kernels are not charged
    for Python between them.
    """
    import torch

    torch.cuda.synchronize()
    warm = [call for _ in range(WARM_UP) for call in calls[:4]]
    began = time.perf_counter()
    for call in warm:
        call()
    queued = time.perf_counter()
    torch.cuda.synchronize()
    host = (queued - began) / len(warm) * 1e3
    about = (time.perf_counter() - began) / len(warm) * 1e3
    launches = max(LEAST, min(MOST, int(BUDGET / about)))
    events = [
        tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(launches)
    ]
    torch.cuda._sleep(int(min(LEAD, 1.5 * host * launches) * CYCLES))
    for i, (start, end) in enumerate(events):
        start.record()
        calls[i % len(calls)]()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def resident(code: bytes, entry: str, threads: int, dynamic: int) -> Resident:
    """Loads machine code and asks the driver what an SM holds of it.

    entry     the kernel's name in the code
    threads   of a block; `dynamic` shared bytes of a block

    Raises RuntimeError where the driver refuses.
    """
    import torch

    torch.cuda.synchronize()  # makes the context current on this thread
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        if error := getattr(driver, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {error}")

    module, function, number = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()

    def attribute(which: int) -> int:
        call("cuFuncGetAttribute", ctypes.byref(number), which, function)
        return number.value

    call("cuModuleLoadData", ctypes.byref(module), code)
    try:
        call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, dynamic)
        query = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        call(query, ctypes.byref(number), function, threads, ctypes.c_size_t(dynamic))
        blocks = number.value
        return Resident(blocks, attribute(NUM_REGS), attribute(LOCAL_BYTES))
    finally:
        driver.cuModuleUnload(module)
