"""Processes that work side by side, and that stop when gdngen is stopped.

Ctrl-C reaches every process of a terminal. Here it means something to the first one alone, which then
ends the others: were they to end by themselves, their executor would report that before the first one
has even heard of it.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

CTRL_C = {signal.SIGINT}
LEFT = "ignore:resource_tracker"  # it tidies up after `leave`, and need not say so


@contextmanager
def processes(workers: int, how: str = "spawn") -> Iterator[ProcessPoolExecutor]:
    """An executor. Whoever is stopped, or wants no more results, does not wait for what others are at."""
    given = os.environ.get("PYTHONWARNINGS", "")
    if LEFT not in given:
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (given, LEFT)))
    context = multiprocessing.get_context(how)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_deaf)
    try:
        with _undisturbed():
            for _ in range(workers):
                pool.submit(int)  # starts one
        yield pool
    except (KeyboardInterrupt, GeneratorExit):
        pool.shutdown(wait=False, cancel_futures=True)
        _ABANDONED.append(pool)
        raise
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Puts Ctrl-C off, here and in the processes that start: they would say at length where they were."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C is the main thread's
        return
    typed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: typed.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, CTRL_C)  # what starts inherits it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
    if typed:
        raise KeyboardInterrupt


def _deaf() -> None:
    """Nothing happens at Ctrl-C. What this process starts, say a compiler, ends at it as usual."""
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CTRL_C)


_ABANDONED: list[ProcessPoolExecutor] = []


def leave(code: int) -> None:
    """Ends this process where others are still at what nobody wants, and those: Python would wait."""
    if not _ABANDONED:
        return
    for process in multiprocessing.active_children():
        process.kill()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # nobody reads it any more
            pass
    os._exit(code)
