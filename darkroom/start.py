"""Start a program of Darkroom in a process of its own: `python -P …/darkroom/start.py MODULE [ARGUMENT…]`.

The program runs from the files of the process that starts it, in any working directory, and without a folder on the
import path that holds this package's rooms, whose names node packs use for modules of their own.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent


def command_of(module: str) -> tuple[str, ...]:
    """Return the command that runs a module as a program. Its arguments follow."""
    return (sys.executable, "-P", str(HERE / "start.py"), module)


def settle(module: str, package: str | None) -> None:
    """Keep the rooms of a checkout off the import path of this program, `module`, however it was started.

    `package` is its `__package__`: outside `darkroom` (`python -m engine`) the program is started anew, under its own
    name. `python -m darkroom.engine` within a checkout has the checkout first on the import path.
    """
    if not (package or "").startswith("darkroom"):
        os.execv(sys.executable, [*command_of(module), *sys.argv[1:]])
    if not sys.flags.safe_path and sys.path[:1] == [str(HERE.parent)]:
        del sys.path[0]


def main() -> None:
    """Run the module that the first argument names, with the others as its own."""
    del sys.argv[0]
    sys.path.insert(0, str(HERE.parent))
    import darkroom  # noqa: F401 - from here on its modules are found by its own path

    sys.path.remove(str(HERE.parent))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
