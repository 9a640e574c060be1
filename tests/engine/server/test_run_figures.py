"""Counts of runs and sampling steps, from the events of runs."""

from __future__ import annotations

from darkroom.contract.graph.node_ref import NodeRef
from darkroom.engine.events import (
    Event,
    NodeFinished,
    NodeProgress,
    NodesCached,
    NodeStarted,
    RunFailed,
    RunInterrupted,
    RunSucceeded,
)
from darkroom.engine.server.run_figures import RunFigures

PROMPT = {"3": {"class_type": "KSampler"}, "8": {"class_type": "ImageUpscaleWithModel"}}


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def progress(node_id: str, value: float, maximum: float = 4) -> NodeProgress:
    return NodeProgress("p", NodeRef.of(node_id), value, maximum)


def failed(code: str) -> RunFailed:
    return RunFailed("p", "3", "KSampler", (), code, "", "", (), {}, (), 0)


def test_the_first_step_is_counted_and_not_timed() -> None:
    clock = Clock()
    figures = RunFigures(clock)
    events: list[tuple[float, Event]] = [
        (0, NodeStarted("p", NodeRef.of("3"))),
        (10, progress("3", 1)),
        (11, progress("3", 2)),
        (12, progress("3", 4)),
        (13, NodeFinished("p", NodeRef.of("3"))),
    ]
    for clock.seconds, event in events:
        figures.on_event(event, PROMPT)
    assert (figures.num_steps, figures.num_timed_steps, figures.step_seconds) == (4, 3, 2.0)
    assert figures.steps_per_second == 1.5


def test_tiles_of_an_upscaler_are_no_sampling_steps() -> None:
    figures = RunFigures()
    figures.on_event(progress("8", 3), PROMPT)
    assert figures.num_steps == 0


def test_a_pack_that_reports_nonsense_breaks_nothing() -> None:
    figures = RunFigures()
    for value in (float("nan"), float("inf"), None, "half"):
        figures.on_event(progress("3", value), PROMPT)  # type: ignore[arg-type]
    assert figures.num_steps == 0


def test_a_sampler_that_runs_again_begins_anew() -> None:
    clock = Clock()
    figures = RunFigures(clock)
    for clock.seconds, value in ((1, 1), (2, 2), (50, 1), (51, 2)):
        figures.on_event(progress("3", value), PROMPT)
    assert (figures.num_steps, figures.step_seconds) == (4, 2.0)


def test_runs_nodes_and_failures_are_counted_by_their_outcome() -> None:
    figures = RunFigures()
    events: tuple[Event, ...] = (
        NodesCached("p", ["1", "2"], 0),
        NodeStarted("p", NodeRef.of("3")),
        RunSucceeded("p", 0),
        RunInterrupted("p", "3", "KSampler", (), 0),
        failed("out_of_memory"),
        failed("of a pack's own"),
    )
    for event in events:
        figures.on_event(event, PROMPT)
    assert figures.runs == {"success": 1, "error": 2, "interrupted": 1}
    assert figures.nodes == {"executed": 1, "cached": 2}
    assert figures.failures["out_of_memory"] == figures.failures["node_failed"] == 1
