"""The command `darkroom`, also as `python -m darkroom`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command `darkroom`."""
    if sys.argv[1:] == ["serve"]:  # a container's command: it starts without the libraries of the command line
        del sys.argv[1:]
        from darkroom.worker.__main__ import main as serve  # importable only now

        sys.exit(serve())
    from darkroom.worker.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
