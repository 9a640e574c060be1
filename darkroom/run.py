"""Run Darkroom's modules by the names they import each other by: `python -m darkroom.run MODULE [ARGUMENT…]`.

The command `darkroom` starts here, and so does every process that it starts from another working directory.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def packages_folder() -> Path:
    """Return the folder of `worker` and `engine`: this package's own when installed, its parent in a checkout."""
    return HERE if (HERE / "worker").is_dir() else HERE.parent


def make_importable() -> None:
    """Put the packages' folder on the import path, behind the script's own folder."""
    folder = str(packages_folder())
    if folder not in sys.path:
        sys.path.insert(1, folder)


def main() -> None:
    """Run the command `darkroom`."""
    make_importable()
    if sys.argv[1:] == ["serve"]:  # a container's command: it starts without the libraries of the command line
        del sys.argv[1:]
        from darkroom.worker.__main__ import main as serve  # importable only now

        sys.exit(serve())
    from darkroom.worker.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m darkroom.run MODULE [ARGUMENT…]")
    make_importable()
    module = sys.argv[1]
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
