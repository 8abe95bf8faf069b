"""The `fusec` command."""

import sys


def main(argv: list[str] | None = None) -> int:
    """Entry point of the command; gives the exit code."""
    from fusec.cli.parser import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    raise SystemExit(main())
