"""Every built-in node declares what ComfyUI's node of that name declares; `tests/reference/declarations.py` says how.

Classes of ComfyUI's core that no node here answers are named in `missing_classes.txt`, which only shrinks.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from darkroom.contract.graph.facts import OTHERS_PATH
from darkroom.engine.diffusion.sampling_tables import SamplingTables
from darkroom.engine.nodes.built_in import built_in_nodes
from darkroom.engine.nodes.catalogue import object_info
from darkroom.engine.nodes.function_node import FunctionNode
from darkroom.engine.nodes.widgets import InputFile, ModelFile
from darkroom.worker.engines.later_nodes import find_later_node
from tests.engine.runtime.runs import NoFiles
from tests.reference import REFERENCE
from tests.reference.declarations import MAIN, normalised, read_reference

OURS_ALONE = {
    "DarkroomRandomCheckpoint",
    "LoopResult",  # ComfyUI's has no output: it hands what a loop made to its executor
}
MISSING = REFERENCE / "missing_classes.txt"
NODES = {item.class_type: item for item in built_in_nodes()}


class Environment(NoFiles):
    """An environment without files, with the samplers and schedules of an engine without packs."""

    def __init__(self) -> None:
        self._tables = SamplingTables()

    def sampler_names(self) -> list[str]:
        return list(self._tables.sampler_names())

    def schedule_names(self) -> list[str]:
        return list(self._tables.schedule_names())


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return read_reference()


@pytest.mark.parametrize("class_type", sorted(NODES.keys() - OURS_ALONE))
def test_a_built_in_node_declares_what_comfyuis_does(class_type: str, reference: dict[str, Any]) -> None:
    node_class = NODES[class_type]
    assert isinstance(node_class, FunctionNode)
    files = {item.name for item in node_class.parameters if isinstance(item.marker, (ModelFile, InputFile))}
    ours = json.loads(json.dumps(object_info(node_class.spec(Environment()))))
    assert normalised(ours, files) == normalised(reference[class_type], files)


def test_the_list_of_missing_classes_is_complete_and_has_no_others() -> None:
    missing = sorted(json.loads(MAIN.read_text("utf-8")).keys() - NODES.keys())
    assert missing == MISSING.read_text("utf-8").split("\n")[:-1], "one name a line, sorted"


def test_no_class_that_is_answered_counts_as_one_of_others() -> None:
    others = json.loads(OTHERS_PATH.read_text("utf-8")).keys()
    assert [name for name in NODES if find_later_node(name) is not None or name in others] == []


def test_no_name_is_given_twice() -> None:
    assert len(NODES) == len(built_in_nodes())
