"""Limits on time that mean the same on any machine: what is timed stands beside a yardstick."""

import gc
import time
from contextlib import contextmanager

YARD = (
    0.017  # CPU seconds that the yardstick takes on a quiet core of the machine limits were set on
)


def yardstick() -> float:
    """CPU seconds that a fixed amount of work takes here and now: words made, kept, sorted, looked up."""
    began = time.process_time()
    words = [str(i * 7919 % 100_003) for i in range(40_000)]
    places = {word: at for at, word in enumerate(words)}
    assert sum(places[word] for word in sorted(words)) == 40_000 * 39_999 // 2
    return time.process_time() - began


def slowness() -> float:
    """How many times as long as the yardstick's own machine this one takes just now; at least 1."""
    return max(1.0, min(yardstick() for _ in range(3)) / YARD)


@contextmanager
def _own_garbage():
    """What earlier tests left in memory is not for the code timed here to collect."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def within(seconds: float):
    """Fails when its body takes over `seconds` of CPU time, stretched by how slow the machine is: a core
    that is shared, or slowed by its neighbours, is slow for the yardstick too."""
    with _own_garbage():
        began = time.process_time()
        yield
        took = time.process_time() - began
    if took >= seconds:
        limit = seconds * slowness()
        assert took < limit, f"took {took:.3f} s of CPU time, where {limit:.3f} s were allowed"


def quickest(work, times: int = 9) -> float:
    """CPU seconds of the quickest of several runs, each in those of a quiet machine: the yardstick is
    timed right behind it."""
    took = []
    with _own_garbage():
        for _ in range(times):
            began = time.process_time()
            work()
            took.append((time.process_time() - began) / max(1.0, yardstick() / YARD))
    return min(took)
