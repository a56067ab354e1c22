"""`gdngen` and `python -m gdngen`."""

import sys


def main() -> int:
    """The command line. An interruption while it is still being imported ends as one later does."""
    try:
        from gdngen import cli

        code = cli.main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        code = 130
    if code == 130:
        from gdngen import pools

        pools.leave()
    return code


if __name__ == "__main__":
    sys.exit(main())
