"""Reduce ComfyUI's `/object_info` to what this engine's nodes are compared with, and write it as the reference.

    python -m tests.reference.declarations DUMP.json    # writes object_info.json and shortens those beside it

`DUMP.json` is `/object_info` of a ComfyUI without custom and partner nodes and with an empty models folder.

Left out: texts for people (tooltips, descriptions, words to search by), the module, flags that are not set, and empty
option objects. A hidden input is its type alone, which newer nodes put into a list.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from darkroom.contract.graph.facts import FACTS_KEY
from tests.reference import REFERENCE

MAIN = REFERENCE / "object_info.json"
LEFT_OUT = {"python_module", "description", "output_tooltips", "search_aliases", "comfyui_version", FACTS_KEY}
FLAGS = {
    "api_node",
    "deprecated",
    "dev_only",
    "essentials_category",
    "experimental",
    "has_intermediate_output",
    "is_input_list",
    "output_matchtypes",
    "price_badge",
}


def normalised(info: Mapping[str, Any], file_inputs: Collection[str] = ()) -> dict[str, Any]:
    """Return one class's entry reduced. Lists of the files that `file_inputs` offer depend on the machine: left out."""
    kept = {key: value for key, value in info.items() if key not in LEFT_OUT and (key not in FLAGS or value)}
    sections: Mapping[str, Mapping[str, Any]] = info["input"]
    kept["input"] = {
        section: {
            name: _hidden(item) if section == "hidden" else _input(item, is_file=name in file_inputs)
            for name, item in inputs.items()
        }
        for section, inputs in sections.items()
        if inputs
    }
    kept["input_order"] = {section: names for section, names in info["input_order"].items() if names}
    return kept


def _hidden(item: Any) -> Any:
    return item if isinstance(item, str) else item[0]


def _input(item: Any, *, is_file: bool) -> Any:
    kind = [] if is_file and isinstance(item[0], list) else item[0]
    options = _without_tooltips(item[1]) if len(item) > 1 else {}
    if is_file:
        options.pop("options", None)
    return [kind, options] if options else [kind]


def _without_tooltips(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_tooltips(item) for key, item in value.items() if key != "tooltip"}
    return [_without_tooltips(item) for item in value] if isinstance(value, list) else value


def read_reference() -> dict[str, Any]:
    """Return ComfyUI's declarations by class, of every recording: `object_info.json` and those beside it."""
    found: dict[str, Any] = {}
    for path in sorted(REFERENCE.glob("object_info*.json")):
        found |= json.loads(path.read_text("utf-8"))
    return found


def write(path: Path, declared: Mapping[str, Any]) -> None:
    """Write declarations compactly, a class a line in order of names."""
    lines = [
        f"{json.dumps(name)}:{json.dumps(declared[name], separators=(',', ':'), ensure_ascii=False)}"
        for name in sorted(declared)
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("dump", type=Path)
    dump = json.loads(parser.parse_args().dump.read_text("utf-8"))
    write(MAIN, {name: normalised(info) for name, info in dump.items()})
    for path in REFERENCE.glob("object_info_*.json"):
        declared = json.loads(path.read_text("utf-8"))
        left = {name: normalised(info) for name, info in declared.items() if name not in dump}
        if left:
            write(path, left)
        else:
            path.unlink()


if __name__ == "__main__":
    main()
