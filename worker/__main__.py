"""Entry point `python -m darkroom.worker`: serves with the environment's settings; with arguments it is `darkroom`."""

from __future__ import annotations

import sys


def main() -> int:
    """Serve with the settings of the environment; any argument makes this the command line of `darkroom`."""
    if len(sys.argv) == 1:
        from darkroom.worker.app.lean_imports import lean_imports  # each branch imports only what it needs

        with lean_imports():
            from darkroom.worker.app.serve import leave, serve
        leave(serve())
    from darkroom.worker.cli.main import main as command_line

    command_line()
    return 0


if __name__ == "__main__":
    from darkroom.start import settle

    settle("darkroom.worker", __package__)
    sys.exit(main())
