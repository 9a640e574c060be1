"""A job's per cent out of an engine's events, in order or not."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from darkroom.contract.graph.work import PromptWork
from darkroom.worker.storage.progress import Progress, steps_of, units_of

PROMPT = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {}},
    "2": {"class_type": "KSampler", "inputs": {"latent_image": ["9", 0], "steps": 8, "model": ["1", 0]}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0]}},
}


def read(prompt: dict[str, Any], object_info: dict[str, Any] | None = None) -> dict[str, float]:
    return steps_of(PromptWork(prompt, object_info))


def test_a_node_that_samples_counts_its_steps_and_any_other_one() -> None:
    assert units_of(PROMPT, read(PROMPT)) == {"1": 1, "2": 9, "3": 1}


def test_steps_of_a_scheduler_count_for_the_sampler_that_takes_its_sigmas() -> None:
    prompt = {
        "a": {"class_type": "BasicScheduler", "inputs": {"steps": 12}},
        "b": {"class_type": "SplitSigmas", "inputs": {"sigmas": ["a", 0]}},
        "c": {"class_type": "SamplerCustomAdvanced", "inputs": {"latent_image": ["x", 0], "sigmas": ["b", 1]}},
    }
    assert units_of(prompt, read(prompt)) == {"a": 1, "b": 1, "c": 13}


def test_a_circle_of_sigmas_ends() -> None:
    prompt = {"1": {"class_type": "SplitSigmas", "inputs": {"latent_image": ["x", 0], "sigmas": ["1", 0]}}}
    assert units_of(prompt, read(prompt)) == {"1": 1}


def test_the_steps_that_a_job_was_made_with_count_without_reading_its_prompt_again() -> None:
    prompt = {
        "1": {"class_type": "PackSampler", "inputs": {"steps": 3}},
        "2": {"class_type": "SaveImage", "inputs": {}},
    }
    of_pack = {"PackSampler": {"output": ["LATENT"], "python_module": "custom_nodes.pack"}}
    assert (read(prompt), read(prompt, of_pack)) == ({}, {"1": 3.0})
    progress = Progress(read(prompt, of_pack))
    for _ in range(2):
        progress.begin(prompt)
        progress.step("1", 3, 3)
        assert progress.percent == 80.0, "the 4 units of the node, of 5"
        progress.begin_again()


def test_per_cent_goes_by_node_and_by_step() -> None:
    progress = Progress()
    progress.begin(PROMPT)
    progress.enter("1")
    progress.enter("2")
    assert round(progress.percent, 1) == round(100 / 11, 1)
    progress.step("2", 4, 8)
    assert round(progress.percent, 1) == 50.0
    assert progress.as_json() == {"percent": 50.0, "node_id": "2", "node_class": "KSampler", "value": 4, "max": 8}
    progress.finish()
    assert (progress.percent, progress.node_id) == (100.0, None)


def test_nodes_from_the_cache_are_done() -> None:
    progress = Progress()
    progress.begin(PROMPT)
    progress.skip(["1", "2", "unknown"])
    assert round(progress.percent, 1) == round(1000 / 11, 1)


NODES = st.sampled_from(["1", "2", "3", "expanded.1"])
EVENTS = st.one_of(
    st.tuples(st.just("enter"), NODES),
    st.tuples(st.just("step"), NODES, st.floats(-1, 30), st.floats(0.1, 20)),
    st.tuples(st.just("skip"), st.lists(NODES)),
    st.tuples(st.just("again")),
)


@given(st.lists(EVENTS))
def test_whatever_the_engine_says_the_per_cent_never_falls_and_stays_within_0_and_100(events: list[tuple]) -> None:  # type: ignore[type-arg]
    progress, before = Progress(), 0.0
    for name, *arguments in events:
        progress.begin(PROMPT)
        if name == "again":
            progress.begin_again()
        else:
            getattr(progress, name)(*arguments)
        assert before <= progress.percent <= 100
        before = progress.percent
