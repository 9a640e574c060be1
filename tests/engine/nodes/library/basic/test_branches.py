"""The node that chooses among branches: which one, and that no other is computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from darkroom.engine.engine import Engine, RunRequest, RunResult
from darkroom.engine.events import Event, RunFailed
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.basic.branches import branch_node
from darkroom.engine.nodes.library.basic.logic import comfy_switch_node
from darkroom.engine.nodes.library.basic.primitives import preview_any
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.nodes.widgets import Int
from darkroom.engine.settings import EngineSettings
from tests.contract.graph.declared import node as of_class


class Branching:
    def __init__(self, base: Path) -> None:
        self.computed: list[int] = []

        @node("Compute", category="test")
        def compute(context: NodeContext, *, value: Annotated[int, Int()]) -> Annotated[int, Socket("INT")]:
            self.computed.append(value)
            return value

        self.engine = Engine(
            EngineSettings(base_directory=base, cpu=True), (compute, branch_node, comfy_switch_node, preview_any)
        )

    def run(self, branch: str, names: list[str], told: list[Event]) -> RunResult:
        self.computed.clear()
        grown = {f"autogrow.branch{index}": [f"c{index}", 0] for index in range(3)}
        prompt: dict[str, Any] = {
            **{f"c{index}": of_class("Compute", value=index) for index in range(3)},
            "branch": of_class("BranchNode", branch=branch, branch_names={"__value__": names}, **grown),
            "show": of_class("PreviewAny", source=["branch", 0]),
        }
        return self.run_prompt(prompt, told)

    def run_prompt(self, prompt: dict[str, Any], told: list[Event]) -> RunResult:
        checked = self.engine.check(prompt)
        return self.engine.submit(RunRequest("p", checked.prompt, checked.outputs, {}), told.append).result(timeout=60)


@pytest.fixture
def branching(tmp_path: Path) -> Iterator[Branching]:
    made = Branching(tmp_path)
    yield made
    made.engine.close()


@pytest.mark.parametrize(
    ("branch", "names", "expected"),
    [("fast", ["slow", "fast", "best"], 1), ("branch2", [], 2), ("branch0", ["branch0", "branch1", "branch2"], 0)],
)
def test_only_the_chosen_branch_is_computed(branching: Branching, branch: str, names: list[str], expected: int) -> None:
    result = branching.run(branch, names, [])
    assert result.outputs["show"]["text"] == (str(expected),)
    assert branching.computed == [expected]


def test_a_name_that_is_not_connected_is_refused_with_those_that_are(branching: Branching) -> None:
    told: list[Event] = []
    assert branching.run("other", ["slow", "fast", "best"], told).status == "error"
    (failed,) = [event for event in told if isinstance(event, RunFailed)]
    assert failed.exception_message.startswith("branch: not connected; got 'other', expected one of ['slow', 'fast'")
    assert branching.computed == []


@pytest.mark.parametrize("is_on", [True, False])
def test_a_switch_runs_with_the_side_alone_that_it_follows(branching: Branching, is_on: bool) -> None:
    side = {"on_true" if is_on else "on_false": ["c7", 0]}
    prompt = {
        "c7": of_class("Compute", value=7),
        "switch": of_class("ComfySwitchNode", switch=is_on, **side),
        "show": of_class("PreviewAny", source=["switch", 0]),
    }
    assert branching.run_prompt(prompt, []).outputs["show"]["text"] == ("7",)
