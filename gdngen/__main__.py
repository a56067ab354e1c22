"""`gdngen` and `python -m gdngen`."""

import sys


def main() -> int:
    """The command line. An interruption while it is still being imported ends as one later does."""
    try:
        from gdngen import cli, pools
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    code = cli.main()
    pools.leave(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
