"""Graphs read weights at their addresses: none is recorded where these do not stay, and none is used after a move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine import Engine, EngineSettings, RunRequest
from darkroom.engine.events import Event, NodeProgress
from darkroom.engine.settings import DtypeName, DtypeSettings, MemorySettings
from darkroom.engine.tuning.graphs import Addresses, Graphs, PlacedWeights, graph_key, joined, parted
from darkroom.engine.tuning.strategies.cuda_graph import CudaGraph
from darkroom.engine.tuning.strategies.step_graph import StepGraph
from darkroom.engine.tuning.strategy import SamplingUse
from tests.engine.simulated_card import latent_of, run, workflow, write_small_models
from tests.engine.tuning.replaying import Replaying
from tests.engine.tuning.test_step_graph import choose
from tests.engine.tuning.test_strategies import Patcher

GRAPHS = ("cuda_graph", "step_graph")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("base")
    write_small_models(base / "models")
    return base


@contextmanager
def recording_engine(
    base: Path, names: tuple[str, ...], unet: DtypeName | None = None, gigabytes: float = 4.0, **memory: Any
) -> Iterator[tuple[Engine, Replaying]]:
    settings = EngineSettings(
        base_directory=base,
        dtypes=DtypeSettings(unet=unet),
        memory=MemorySettings(simulate_vram_gb=gigabytes, **memory),
    )
    recorder = Replaying()
    graphs = Graphs(recorder)
    with Engine(settings) as engine:
        engine.tuner.replace(CudaGraph(graphs), StepGraph(graphs))
        choose(engine, *names)
        yield engine, recorder


def prompt(seed: int, lora: float | None = None) -> dict[str, Any]:
    made = workflow(second=None, lora=lora, control=False, size=64)
    del made["21"], made["10"]
    made["9"]["inputs"].update(seed=seed, steps=2)
    return made


@pytest.mark.parametrize("names", [("cuda_graph",), ("step_graph",)], ids=GRAPHS)
def test_offloaded_weights_have_no_graphs(base: Path, names: tuple[str, ...]) -> None:
    with recording_engine(base, (), vram="novram") as (engine, _):
        plain = latent_of(engine, run(engine, prompt(1))[0])
    with recording_engine(base, names, vram="novram") as (engine, recorder):
        assert torch.equal(latent_of(engine, run(engine, prompt(1))[0]), plain)
        assert recorder.num_recorded == 0


@pytest.mark.parametrize("names", [("cuda_graph",), ("step_graph",)], ids=GRAPHS)
@pytest.mark.parametrize("num_streams", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_weights_kept_as_float8_are_cast_within_a_graph_and_through_no_buffer(
    base: Path, names: tuple[str, ...], num_streams: int
) -> None:
    memory: dict[str, Any] = {"async_offload_streams": num_streams}
    with recording_engine(base, (), "float8_e4m3fn", **memory) as (engine, _):
        plain = latent_of(engine, run(engine, prompt(1, 0.5))[0])
    with recording_engine(base, names, "float8_e4m3fn", **memory) as (engine, recorder):
        assert torch.equal(latent_of(engine, run(engine, prompt(1, 0.5))[0]), plain)
        assert recorder.num_recorded == 1 and recorder.num_replayed > 0
        assert torch.equal(latent_of(engine, run(engine, prompt(1, 0.5))[0]), plain), "the next run's too"


@pytest.mark.slow
def test_patched_weights_have_graphs_which_serve_other_strengths(base: Path) -> None:
    """The patches are applied where the weights are."""
    with recording_engine(base, ()) as (engine, _):
        plain = [latent_of(engine, run(engine, prompt(1, strength))[0]) for strength in (0.4, 0.8)]
    with recording_engine(base, ("cuda_graph",)) as (engine, recorder):
        found = [latent_of(engine, run(engine, prompt(1, strength))[0]) for strength in (0.4, 0.8)]
        assert all(map(torch.equal, found, plain))
        assert recorder.num_recorded in (1, 2)


def test_weights_that_leave_while_the_network_samples_are_not_read_where_they_were(base: Path) -> None:
    with recording_engine(base, ()) as (engine, _):
        plain = latent_of(engine, run(engine, prompt(1))[0])
    with recording_engine(base, ("cuda_graph",)) as (engine, recorder):
        checked, moved = engine.check(prompt(1)), list[int]()

        def on_event(event: Event) -> None:
            if isinstance(event, NodeProgress) and not moved:
                weights: Any = engine.models.checkpoint("a.safetensors")[0].weights
                moved.append(engine.memory.pool._entries[weights.entry_id].resident.offload_in_use(1))

        result = engine.submit(RunRequest("p", checked.prompt, checked.outputs), on_event).result()
        assert result.status == "success" and moved[0] > 0
        assert recorder.num_recorded == recorder.num_replayed == 1
        assert torch.equal(latent_of(engine, dict(result.outputs)), plain)


def test_addresses_change_when_any_weight_moves() -> None:
    layer, norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
    addresses = Addresses(nn.Sequential(layer, norm).requires_grad_(False))
    first = addresses.now()
    assert addresses.now() == first
    layer.weight.data = layer.weight.clone()
    second = addresses.now()
    norm._buffers["running_mean"] = torch.ones(2)
    assert len({first, second, addresses.now()}) == 3


def test_weights_are_asked_again_whether_they_stay_only_where_they_have_moved() -> None:
    class Weights:
        num_asked = 0
        answer = True

        @property
        def has_fixed_addresses(self) -> bool:
            self.num_asked += 1
            return self.answer

    layer, patcher = nn.Linear(2, 2).requires_grad_(False), Patcher(None)
    weights = Weights()
    patcher.weights = weights  # type: ignore[assignment]
    placed = PlacedWeights(SamplingUse(patcher, None, {}), layer)
    assert placed.place() is not None and placed.place() == placed.place() and weights.num_asked == 1
    weights.answer = False
    layer.weight.data = layer.weight.clone()
    assert placed.place() is None and placed.place() is None and weights.num_asked == 3


def test_tensors_of_lists_are_inputs_of_a_graph_like_others() -> None:
    """Reference images of Flux Kontext and Qwen-Image-Edit come as lists, strengths of VACE as lists of numbers."""
    first, second, third = torch.ones(1, 2), torch.zeros(1, 3), torch.ones(1)
    given = {"context": third, "ref_latents": [first, second], "vace_strength": [1.0, 0.5], "kinds": (first, None, 3)}
    tensors, others = parted(given)
    assert set(tensors) == {"context", "ref_latents.0", "ref_latents.1", "kinds.0"}
    assert joined({name: value + 1 for name, value in tensors.items()}, others).keys() == given.keys()
    again = joined(tensors, others)
    assert again["ref_latents"] == [first, second] and again["vace_strength"] == [1.0, 0.5]
    assert again["kinds"] == (first, None, 3) and again["context"] is third
    key = graph_key(tensors, others, {})
    assert key is not None
    for other in (
        {**given, "vace_strength": [1.0, 0.6]},
        {**given, "ref_latents": [first]},
        {**given, "ref_latents": [first, first]},
        {**given, "kinds": [first, None, 3]},
    ):
        assert graph_key(*parted(other), {}) not in (None, key), other
    assert graph_key(*parted({"places": [[first]]}), {}) is None
