"""The front knows nodes and samplers by what they declare: it names none of them, nor any of packs or later ComfyUI."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from darkroom.contract.graph.facts import OTHERS_PATH
from darkroom.engine.diffusion.samplers.registry import declared_samplers
from darkroom.engine.nodes.built_in import built_in_nodes
from darkroom.worker.engines.later_nodes import find_later_node
from darkroom.worker.prompts.workflows.known_packs import find_pack

ROOT = Path(__file__).parents[1]
FRONT = ROOT / "worker"
DIALECTS = FRONT / "integrations"
EXAMPLES = FRONT / "api" / "page" / "examples.json"
"""Workflows of the worker's page, which a visitor chooses and the front sends on as any other."""

LISTS_OF_NAMES: Final = (
    FRONT / "engines" / "later_nodes.toml",
    FRONT / "prompts" / "workflows" / "known_packs.toml",
)
"""Files that say of names where such nodes are to be had, and nothing of what they do."""


def is_of_a_node(text: str) -> bool:
    """Return True for a text that names a class of ours, of later ComfyUI or of a known pack, or a sampler.

    Packs are known by parts of names, so only a text that may be the name of a Python class counts as one of theirs.
    """
    is_of_pack = text.isidentifier() and find_pack(text) is not None
    return text in BANNED or find_later_node(text) is not None or is_of_pack


BANNED: Final = (
    {item.class_type for item in built_in_nodes()}
    | declared_samplers().keys()
    | json.loads(OTHERS_PATH.read_text("utf-8")).keys()
)


def texts_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines, and those of a data file, names of fields among them."""
    source = path.read_text("utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.lineno, node.value
    else:
        for text in _texts_of(json.loads(source) if path.suffix == ".json" else tomllib.loads(source)):
            yield 1, text


def _texts_of(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for item in value.items() for part in item for text in _texts_of(part))
    elif isinstance(value, list):
        yield from (text for item in value for text in _texts_of(item))


def names_in(folder: Path, *passed_over: Path) -> list[str]:
    """Return the names of nodes and samplers in the modules and data files of a folder, each with its place."""
    return [
        f"{path.relative_to(folder)}:{line} names {text}"
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".json", ".toml") and not any(path.is_relative_to(other) for other in passed_over)
        for line, text in texts_in(path)
        if is_of_a_node(text)
    ]


def test_nothing_of_the_front_names_a_node_class_or_a_sampler() -> None:
    found = names_in(FRONT, DIALECTS, EXAMPLES, *LISTS_OF_NAMES)
    assert not found, "read what it declares (contract/graph/facts.py) in the place of a name:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.py", 'KIND = {("LatentUpscaleModelLoader", "model_name"): "latent_upscale_models"}'),
        ("a.py", 'QUEUEING = frozenset({"VHS_BatchManager"})'),
        ("a.py", 'IS_SLOW = name == "dpm_2"'),
        ("a.json", '{"3": {"class_type": "KSampler", "inputs": {}}}'),
        ("a.json", '{"KSampler": {}}'),
        ("a.toml", '[[node]]\nclass = "SaveImage"'),
    ],
)
def test_a_name_is_found_in_any_of_these_forms(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert len(names_in(tmp_path)) == 1
    assert names_in(tmp_path, tmp_path / name) == []
