"""Prints what a project needs, one requirement a line: `python misc/requirements.py pyproject.toml`.

It lets an image install the dependencies in a layer of their own, below the project's code.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    print("\n".join(project["dependencies"]))


if __name__ == "__main__":
    main()
