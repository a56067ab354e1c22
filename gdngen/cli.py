"""`gdngen`: the only place that prints or exits.

Exit codes: 0 fine, 1 a check failed, 2 a mistake in a spec or on the command line, 130 stopped by Ctrl-C.
"""

import argparse
import os
import sys

from gdngen import __version__
from gdngen.commands import benching, plans, rendering, starting, verifying
from gdngen.errors import GdngenError
from gdngen.show.progress import Progress, say


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    options = _parser().parse_args(argv)
    quiet, verbose = (getattr(options, name, False) for name in ("quiet", "verbose"))
    options.progress = Progress(sys.stderr, quiet, verbose)
    if not verbose:
        os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")
    try:
        return options.run(options)
    except GdngenError as e:
        options.progress.close()
        say(e, sys.stderr)
        return 2
    except OSError as e:
        if isinstance(e, BrokenPipeError):  # the reader, say `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        options.progress.close()
        say(f"error: {e.filename or ''}: {e.strerror}".replace(": :", ":"), sys.stderr)
        return 2
    except KeyboardInterrupt:
        options.progress.close()
        print("stopped", file=sys.stderr)
        return 130
    finally:
        options.progress.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gdngen",
        description="Specs of Gated DeltaNet kernels -> planned, checked TileLang source.",
        epilog="To start with: gdngen new mine, then gdngen plan mine.yaml and gdngen verify mine.yaml",
    )
    parser.add_argument("--version", action="version", version=f"gdngen {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    rendering.add(commands)
    plans.add(commands)
    verifying.add(commands)
    benching.add(commands)
    starting.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
