"""Writes the list of built-in nodes from the catalogue, between the two marks of `docs/nodes.md`.

python tools/node_table.py            # the file is rewritten in place
python tools/node_table.py --check    # exit code 1 when the list is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from darkroom.engine.nodes.base import NodeClass
from darkroom.engine.nodes.built_in import built_in_nodes

if not __package__:  # run as a script, whose own folder alone is searched
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.marked_part import list_item, with_part

PAGE = Path(__file__).resolve().parent.parent / "docs" / "nodes.md"
BEGIN, END = "<!-- nodes: tools/node_table.py -->", "<!-- end of nodes -->"


class NoFiles:
    """An environment without files, samplers and schedules: lists of them are no part of the list."""

    def sampler_names(self) -> list[str]:
        return []

    def schedule_names(self) -> list[str]:
        return []

    def model_files(self, kind: str) -> list[str]:
        return []

    def model_problem(self, kind: str, name: str) -> None:
        return None

    def input_files(self, content: str) -> list[str]:
        return []

    def input_path(self, name: str) -> Path:
        return Path(name)

    def max_pixels(self) -> int:
        return 0

    def free_bytes(self) -> int:
        return 0


def node_table(classes: Iterable[NodeClass]) -> str:
    """Return an item for each category: its name, and its classes in alphabetical order."""
    by_category: dict[str, list[str]] = {}
    for node_class in classes:
        spec = node_class.spec(NoFiles())
        by_category.setdefault(spec.category, []).append(spec.class_type)
    return "\n".join(
        list_item(f"{category}: {', '.join(f'`{name}`' for name in sorted(names))}")
        for category, names in sorted(by_category.items())
    )


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args(given)
    old = PAGE.read_text()
    new = with_part(old, node_table(built_in_nodes()), BEGIN, END)
    if arguments.check:
        return int(new != old)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
