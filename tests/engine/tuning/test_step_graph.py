"""Whole steps as graphs, which a recorder plays: the bits of the sampler's own loop, with any prompt, and why not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from darkroom.engine import Engine, EngineSettings, RunRequest
from darkroom.engine.tuning.strategies.cuda_graph import CudaGraph, Graphs
from darkroom.engine.tuning.strategies.step_graph import StepGraph
from tests.contract.graph.declared import node
from tests.engine.tuning.outcomes import use_everywhere
from tests.engine.tuning.replaying import Replaying

Prompt = dict[str, Any]
REFUSED = "steps not captured as CUDA graphs: reason="


class TunedEngine:
    """An engine, the same with graphs that a recorder plays, and the recorder."""

    def __init__(self, plain: Engine, tuned: Engine, recorder: Replaying, graphs: Graphs) -> None:
        self.plain, self.tuned, self.recorder, self.graphs = plain, tuned, recorder, graphs

    def both(self, prompt: Prompt) -> tuple[bytes, bytes]:
        return latent(self.plain, prompt), latent(self.tuned, prompt)


def choose(engine: Engine, *names: str) -> None:
    use_everywhere(engine, {"same": names})


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    def settings(name: str) -> EngineSettings:
        return EngineSettings(base_directory=tmp_path_factory.mktemp(name), cpu=True)

    with Engine(settings("plain")) as plain, Engine(settings("tuned")) as tuned:
        yield plain, tuned


@pytest.fixture
def made(engines: tuple[Engine, Engine]) -> Iterator[TunedEngine]:
    plain, tuned = engines
    recorder = Replaying()
    graphs = Graphs(recorder)
    tuned.tuner.replace(CudaGraph(graphs), StepGraph(graphs))
    choose(tuned, "step_graph")
    yield TunedEngine(plain, tuned, recorder, graphs)
    tuned.tuner.check_integrity()


def prompt_of(text: str = "a lighthouse", size: int = 64, **changes: Any) -> Prompt:
    sampling = {"seed": 1, "steps": 3, "cfg": 5.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    return {
        "1": node("DarkroomRandomCheckpoint", family="sd15", scale="small"),
        "2": node("CLIPTextEncode", clip=["1", 1], text=text),
        "6": node("CLIPTextEncode", clip=["1", 1], text="blurry"),
        "3": node("EmptyLatentImage", width=size, height=64, batch_size=1),
        "4": node(
            "KSampler", model=["1", 0], positive=["2", 0], negative=["6", 0], latent_image=["3", 0],
            **{**sampling, **changes},
        ),
        "5": node("SaveLatent", samples=["4", 0], filename_prefix="steps"),
    }  # fmt: skip


def latent(engine: Engine, prompt: Prompt) -> bytes:
    checked = engine.check(prompt)
    result = engine.submit(RunRequest("p", checked.prompt, checked.outputs, {}), lambda event: None).result()
    assert result.status == "success", result
    shown = next(iter(result.outputs.values()))["latents"][0]
    found: bytes = (engine.settings.output_path / shown["subfolder"] / shown["filename"]).read_bytes()
    return found


@pytest.mark.parametrize(("sampler", "num_kinds"), [("euler", 1), ("ddim", 1), ("euler_ancestral", 2), ("dpmpp_2m", 2)])
def test_steps_have_the_bits_of_the_samplers_loop(made: TunedEngine, sampler: str, num_kinds: int) -> None:
    """A graph is recorded for each kind of step, and serves later prompts, seeds and step counts."""
    plain, tuned = made.both(prompt_of(sampler_name=sampler))
    assert plain == tuned and made.recorder.num_recorded == num_kinds
    plain, tuned = made.both(prompt_of("a red apple on a table", sampler_name=sampler, seed=2, steps=4))
    assert plain == tuned and made.recorder.num_recorded == num_kinds


def test_other_shapes_and_strengths_of_guidance_have_graphs_of_their_own(made: TunedEngine) -> None:
    changes: tuple[dict[str, Any], ...] = ({}, {"cfg": 7.0}, {"cfg": 1.0}, {"size": 72}, {})
    for number, change in enumerate(changes, 1):
        plain, tuned = made.both(prompt_of(**change, seed=number + 10))
        assert plain == tuned
    assert made.recorder.num_recorded == 4


def test_the_networks_own_graph_is_left_out_of_a_steps(made: TunedEngine) -> None:
    choose(made.tuned, "cuda_graph", "step_graph")
    plain, tuned = made.both(prompt_of(seed=20))
    assert plain == tuned and made.recorder.num_recorded == 1
    plain, tuned = made.both(prompt_of(seed=20, sampler_name="heun"))
    assert plain == tuned and made.recorder.num_recorded == 2, "a sampler without whole steps has the network's graph"


def test_where_a_step_has_no_graph_its_evaluations_have_the_networks(made: TunedEngine) -> None:
    class OfNetworks(Replaying):
        def record(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None], int]:
            if work().ndim > 4:
                raise RuntimeError("a step holds too much")
            return super().record(work)

    recorder = OfNetworks()
    graphs = Graphs(recorder)
    made.tuned.tuner.replace(CudaGraph(graphs), StepGraph(graphs))
    choose(made.tuned, "cuda_graph", "step_graph")
    plain, tuned = made.both(prompt_of(seed=21))
    assert plain == tuned and (recorder.num_recorded, recorder.num_replayed) == (1, 3)
    plain, tuned = made.both(prompt_of(seed=21, sampler_name="heun"))
    assert plain == tuned and recorder.num_recorded == 1, "the samplers' own loops have the same graph"


def test_no_graph_is_used_with_other_strategies_than_it_was_recorded_with(made: TunedEngine) -> None:
    choose(made.tuned, "cuda_graph", "step_graph", "fused_qkv")
    first = latent(made.tuned, prompt_of(seed=30))
    assert made.recorder.num_recorded == 1
    choose(made.tuned, "step_graph")
    plain, tuned = made.both(prompt_of(seed=31))
    assert plain == tuned
    assert first != latent(made.tuned, prompt_of(seed=32))
    assert made.recorder.num_recorded == 2, "the plain network has a graph of its own"


def masked(prompt: Prompt) -> Prompt:
    prompt["7"] = node("SolidMask", value=0.5, width=64, height=64)
    prompt["8"] = node("SetLatentNoiseMask", samples=["3", 0], mask=["7", 0])
    prompt["4"]["inputs"]["latent_image"] = ["8", 0]
    return prompt


def in_area(prompt: Prompt) -> Prompt:
    prompt["7"] = node("ConditioningSetArea", conditioning=["2", 0], width=64, height=64, x=0, y=0, strength=1.0)
    prompt["4"]["inputs"]["positive"] = ["7", 0]
    return prompt


def rescaled(prompt: Prompt) -> Prompt:
    prompt["7"] = node("RescaleCFG", model=["1", 0], multiplier=0.7)
    prompt["4"]["inputs"]["model"] = ["7", 0]
    return prompt


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (masked(prompt_of(seed=40)), "the guider, a mask or options of the sampler are not the usual ones"),
        (in_area(prompt_of(seed=41)), "conditions have areas"),
        (rescaled(prompt_of(seed=42)), "nodes have put functions into the guidance"),
        (prompt_of(seed=43, sampler_name="heun"), "the sampler has no form of whole steps"),
    ],
)
def test_runs_that_are_more_than_tensors_take_the_samplers_loop(
    made: TunedEngine, prompt: Prompt, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="darkroom.engine.tuning"):
        plain, tuned = made.both(prompt)
    assert plain == tuned and made.recorder.num_recorded == 0
    assert any((REFUSED + reason) in record.getMessage() for record in caplog.records)


def test_a_step_that_cannot_be_captured_is_computed_as_it_is(
    made: TunedEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def record(work: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(made.recorder, "record", record)
    plain, tuned = made.both(prompt_of(seed=50))
    assert plain == tuned
    assert "not captured as a CUDA graph: reason=RuntimeError: operation not permitted" in caplog.text


def test_a_run_with_graphs_ends_at_the_step_at_which_it_is_cancelled(made: TunedEngine) -> None:
    checked = made.tuned.check(prompt_of(seed=60, steps=50))
    steps: list[object] = []

    def on_event(event: object) -> None:
        if type(event).__name__ == "NodeProgress":
            steps.append(event)
            made.tuned.interrupt("p")

    result = made.tuned.submit(RunRequest("p", checked.prompt, checked.outputs, {}), on_event).result()
    assert result.status == "interrupted" and 0 < len(steps) < 10
