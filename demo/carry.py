"""Files of training cut into parts under 15 MiB, and put together again, to be carried between lent machines.

`python -m demo.carry split FILE` writes `FILE.000`, `FILE.001`...; `python -m demo.carry join FILE` reads them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

PART_BYTES = 14 * 1024 * 1024


def split(path: Path) -> list[Path]:
    """Writes the parts; those of a longer file before are removed."""
    for old in path.parent.glob(path.name + ".[0-9][0-9][0-9]"):
        old.unlink()
    parts: list[Path] = []
    with path.open("rb") as file:
        while piece := file.read(PART_BYTES):
            part = path.with_name(f"{path.name}.{len(parts):03}")
            part.write_bytes(piece)
            parts.append(part)
    return parts


def join(path: Path) -> None:
    """Writes the file from its parts. Raises FileNotFoundError when there are none."""
    parts = sorted(path.parent.glob(path.name + ".[0-9][0-9][0-9]"))
    if not parts:
        raise FileNotFoundError(f"no parts of {path}")
    whole = path.with_name(path.name + ".part")
    with whole.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
    whole.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["split", "join"])
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "split":
        split(arguments.file)
    else:
        join(arguments.file)


if __name__ == "__main__":
    main()
