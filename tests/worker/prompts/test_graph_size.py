"""Workflows over a limit are refused before anything else looks at them."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.engine.settings import EngineSettings
from darkroom.worker.prompts.graph_size import find_size_problem
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.jobs import PromptLimits


def node(**inputs: Any) -> dict[str, Any]:
    return {"class_type": "A", "inputs": inputs}


def refused(graph: Any, **limits: int) -> tuple[str | None, Any]:
    problem = find_size_problem(graph, PromptLimits(**limits))
    assert problem is not None
    return problem.type, problem.allowed


def test_nodes_links_and_bytes_are_counted() -> None:
    graph = {"1": node(a=["2", 0], b=["2", 1]), "2": node(text="a cat, " * 200), "3": None}
    assert refused(graph, max_nodes=2) == ("max_nodes", {"maximum": 2})
    assert refused(graph, max_links=1) == ("max_links", {"maximum": 1})
    assert refused(graph, max_bytes=999) == ("max_bytes", {"maximum": 999})
    assert find_size_problem(graph, PromptLimits(max_nodes=3, max_links=2, max_bytes=2500)) is None
    assert find_size_problem(graph, PromptLimits()) is None


@pytest.mark.parametrize(
    "value", ["a cat, " * 700, [[]] * 1000, {"a": ["x" * 5000]}, {str(index): 1 for index in range(999)}]
)
def test_bytes_are_those_of_texts_and_of_structure(value: Any) -> None:
    assert refused({"1": node(a=value)}, max_bytes=4000)[0] == "max_bytes"
    assert refused({"1": {"class_type": "A", "inputs": value}}, max_bytes=4000)[0] == "max_bytes"
    assert refused({"1": {**node(), "_meta": value}}, max_bytes=4000)[0] == "max_bytes"


def test_an_image_carried_along_does_not_count() -> None:
    graph = {"1": node(image="data:image/png;base64," + "A" * 100_000), "2": node(image="Qk" * 100_000)}
    assert find_size_problem(graph, PromptLimits(max_bytes=1000)) is None


def test_the_engine_has_the_same_limits_as_the_front() -> None:
    ours, front = EngineSettings(), load_settings(env_file=None).settings
    for unit in ("nodes", "links", "bytes"):
        assert getattr(ours, f"max_prompt_{unit}") == getattr(front.prompts, f"max_{unit}")
    assert front.engine_launch().arguments == ()
    changed = load_settings(env_file=None, prompt_max_nodes=7, engine_args=("--cpu",)).settings
    assert changed.engine_launch().arguments == ("--max-prompt-nodes", "7", "--cpu")
