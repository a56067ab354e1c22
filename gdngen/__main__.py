"""`gdngen` and `python -m gdngen`."""

import sys


def main() -> int:
    """The command line; an interruption while it is still being imported ends as one later does."""
    try:
        from gdngen import cli

        return cli.main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
