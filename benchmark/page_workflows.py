"""Conversion of workflows as ComfyUI's page saves them, compared with the prompts that the page itself made of them.

    python -m benchmark.page_workflows OBJECT_INFO FOLDER [--packs]

FOLDER holds images and audio that carry both texts, or JSON files `{"prompt": ..., "workflow": ...}`. OBJECT_INFO is
the answer of an engine's `/object_info`. With `--packs` a class that it lacks is declared by the order of its inputs in
the prompts of the folder, so that graphs with nodes of packs are compared, too.

A prompt is the same if its nodes, links and values are; inputs that the prompt lacks are newer than the file, and a
widget for an upload is no input.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from darkroom.worker.errors import RequestRejected
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.workflows.media import NoWorkflow, find_metadata
from darkroom.worker.prompts.workflows.to_prompt import to_prompt

PAGE_ONLY: Final = frozenset(
    {"upload", "audioUI", "control_after_generate", "choose file to upload", "video-preview", "refresh"}
)
TYPES: Final[Mapping[type, str]] = {str: "STRING", bool: "BOOLEAN", int: "INT", float: "FLOAT"}


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and the page's workflow that it was made of."""

    path: Path
    prompt: JsonObject
    workflow: JsonObject


def read_pairs(folder: Path) -> Iterator[Pair]:
    """Yield the pairs below a folder, each once."""
    seen: set[str] = set()
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        try:
            found = json.loads(content) if path.suffix == ".json" else find_metadata(content)
        except (NoWorkflow, ValueError):
            continue
        prompt, workflow = object_at(found, "prompt"), object_at(found, "workflow")
        key = json.dumps([prompt, workflow], sort_keys=True)
        if prompt and workflow.get("nodes") and key not in seen:
            seen.add(key)
            yield Pair(path, prompt, workflow)


def declared_by(pairs: list[Pair]) -> dict[str, Any]:
    """Return declarations of the classes in prompts: inputs in their order there, typed by their values."""
    classes: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        for node in pair.prompt.values():
            inputs = classes.setdefault(str(object_at({"node": node}, "node").get("class_type")), {})
            for name, value in object_at(node, "inputs").items():
                known = TYPES.get(type(value))
                if known or name not in inputs:
                    inputs[name] = [known or "*", {}]
    return {name: {"input": {"required": inputs}, "python_module": "custom_nodes"} for name, inputs in classes.items()}


def differences(converted: JsonObject, prompt: JsonObject) -> list[str]:
    """Return the differences of two prompts in words; none for the same prompt."""
    found = [f"{node_id}: only in the conversion" for node_id in converted if node_id not in prompt]
    for node_id, node in prompt.items():
        if node_id not in converted:
            found.append(f"{node_id}: missing")
            continue
        inputs, wanted = object_at(converted, node_id, "inputs"), object_at(node, "inputs")
        for name, value in wanted.items():
            if name not in PAGE_ONLY and _plain(inputs.get(name)) != _plain(value):
                found.append(f"{node_id}.{name}: got {str(inputs.get(name))[:60]}, expected {str(value)[:60]}")
    return found


def _plain(value: object) -> object:
    """Return a link with its node's id as text, and any other value as it is."""
    is_link = isinstance(value, list) and len(value) == 2 and isinstance(value[1], int)
    return [str(value[0]), value[1]] if isinstance(value, list) and is_link else value


def compare(pairs: list[Pair], object_info: JsonObject) -> Counter[str]:
    """Return the number of pairs by outcome, and print each difference."""
    outcomes: Counter[str] = Counter()
    for pair in pairs:
        try:
            found = differences(to_prompt(pair.workflow, object_info, lambda _count: 0), pair.prompt)
        except RequestRejected as rejected:
            outcomes["refused"] += 1
            print(pair.path, "refused:", rejected.problems[0].message)  # noqa: T201 - the report
            continue
        outcomes["different" if found else "same"] += 1
        for line in found[:5]:
            print(pair.path, line)  # noqa: T201 - the report
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare converted workflows with the prompts made of them.")
    parser.add_argument("object_info", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packs", action="store_true", help="declare unknown classes by the prompts")
    given = parser.parse_args()
    pairs = list(read_pairs(given.folder))
    object_info = json.loads(given.object_info.read_text())
    if given.packs:
        object_info = {**declared_by(pairs), **object_info}
    print(dict(compare(pairs, object_info)))  # noqa: T201 - the report


if __name__ == "__main__":
    main()
