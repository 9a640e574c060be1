"""Entry point `python -m worker`: serves with the settings of the environment; with arguments it is `darkroom`."""

from __future__ import annotations

import sys


def main() -> int:
    """Serve with the settings of the environment; any argument makes this the command line of `darkroom`."""
    if len(sys.argv) == 1:
        from worker.lean_imports import UNUSED_LIBRARIES, without_libraries  # each branch imports only what it needs

        with without_libraries(*UNUSED_LIBRARIES):
            from worker.serve import leave, serve
        leave(serve())
    from worker.cli import main as command_line

    command_line()
    return 0


if __name__ == "__main__":
    sys.exit(main())
