"""What is being done, and how many are left: on a terminal, where it takes longer than a second.

Everything goes to the error stream, so that what a command prints can be piped. The one who reads a
log gets nothing, or with `verbose` a line for each thing done.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TextIO, TypeVar

Item = TypeVar("Item")
SOON = 1.0  # seconds; what is done by then needs no telling


class Progress:
    """The progress of one command."""

    def __init__(self, stream: TextIO, quiet: bool = False, verbose: bool = False):
        self.stream, self.quiet, self.verbose = stream, quiet, verbose
        self.shown: _Bar | None = None

    def over(
        self,
        items: Iterable[Item],
        what: str,
        name: Callable[[Item], object] = str,
        total: int | None = None,
    ) -> Iterator[Item]:
        """The items one by one, as `what` is done to them; `name` says which one it is.

        Items of a list are about to be worked on; others are results, `total` of them, that come.
        """
        results = not isinstance(items, Sized)
        total = total if results else len(items)
        self.close()
        unseen = self.quiet or self.verbose or not self.stream.isatty()
        bar = None if unseen else _Bar(self.stream, what, total)
        self.shown, began = bar, time.perf_counter()
        try:
            if bar:
                bar.wait()
            for done, item in enumerate(items):
                if bar and results:
                    bar.update(f"{what}; last was {name(item)}", done + 1)
                elif bar:
                    bar.update(f"{what} {name(item)}", done)
                yield item
                if self.verbose:
                    took, began = time.perf_counter() - began, time.perf_counter()
                    of = f"/{total}" if total is not None else ""
                    line = f"{what} {name(item)}: {took:.1f} s ({done + 1}{of})"
                    print(line, file=self.stream, flush=True)
        finally:
            if bar:
                bar.close()

    def close(self) -> None:
        """Takes what is shown off the screen."""
        if self.shown:
            self.shown.close()


class _Bar:
    """A line at the bottom of a terminal; it comes after a while, by itself, and goes when all is done."""

    def __init__(self, stream: TextIO, what: str, total: int | None):
        from rich import progress as rich
        from rich.console import Console

        self.lock, self.shown, self.over = threading.Lock(), False, False
        self.bar = rich.Progress(
            rich.SpinnerColumn(),
            rich.MofNCompleteColumn(),
            rich.BarColumn(20),
            rich.TextColumn("{task.description}", markup=False),
            rich.TimeElapsedColumn(),
            console=Console(file=stream),
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # lines that a pipe gets are none of a terminal's
        )
        self.task = self.bar.add_task(what, total=total)
        self.timer = threading.Timer(SOON, self._start)
        self.timer.daemon = True

    def wait(self) -> None:
        """From now on: whoever stops gdngen knows of the bar by then, and takes it away."""
        self.timer.start()

    def _start(self) -> None:
        with self.lock:
            if not self.over and self.bar.console.is_interactive:
                self.bar.start()
                self.shown = True

    def update(self, text: str, done: int) -> None:
        self.bar.update(self.task, description=text, completed=done)

    def close(self) -> None:
        with self.lock:
            self.timer.cancel()
            if self.shown and not self.over:
                self.bar.stop()
            self.over = True


_COLOURS = (
    (re.compile(r"(?:^|(?<=: ))error: ", re.M), "bold red"),
    (re.compile(r"(?:^|(?<=: ))warning: ", re.M), "bold yellow"),
    (re.compile(r"^ *\^+$", re.M), "red"),
    (re.compile(r"^  help: ", re.M), "cyan"),
)


def say(text: object, stream: TextIO) -> None:
    """Prints a diagnostic; on a terminal its parts are told apart by colours, unless NO_COLOR is set."""
    if not stream.isatty():
        print(text, file=stream)
        return
    from rich.console import Console
    from rich.text import Text

    shown = Text(str(text))
    for pattern, style in _COLOURS:
        shown.highlight_regex(pattern, style)
    Console(file=stream, highlight=False).print(shown, soft_wrap=True)
