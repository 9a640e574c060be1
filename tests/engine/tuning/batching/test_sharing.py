"""Runs that share their evaluations draw what they draw alone, to the bit."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine import Engine, EngineSettings, RunRequest, RunResult
from darkroom.engine.errors import OutOfMemory
from darkroom.engine.events import Event, NodeFinished, NodeProgress, RunFailed, TuningUsed
from darkroom.engine.layers.unet_layers import BasicTransformerBlock
from darkroom.engine.memory.device import Device
from darkroom.engine.runtime.turns import Turns
from darkroom.engine.tuning.batching.batcher import StepBatcher
from darkroom.engine.tuning.batching.evaluation import Evaluation
from darkroom.engine.tuning.batching.side_stream import SideStream
from darkroom.engine.tuning.batching.widths import WidthFigure, Widths
from darkroom.engine.tuning.graphs import Graphs
from darkroom.engine.tuning.strategies.step_graph import StepGraph
from tests.engine.simulated_card import latent_of, workflow, write_small_models
from tests.engine.tuning.failing import Failing
from tests.engine.tuning.outcomes import use_everywhere
from tests.engine.tuning.replaying import Replaying
from tests.engine.tuning.test_step_graph import choose

Prompt = dict[str, Any]


def widest_set(figures: Sequence[WidthFigure], own_rows: int, tolerance: float) -> Widths:
    """Choose all widths with a row's own bits, or within the tolerance, however long they take."""
    used = [item for item in figures if (item.bits is not None and item.error == 0.0) or item.error < tolerance]
    if len(used) < 2:
        return Widths()
    return Widths(tuple(item.width for item in used), error=max(item.error for item in used))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("base")
    write_small_models(base / "models")
    return base


@pytest.fixture(scope="module")
def shared_engine(base: Path) -> Iterator[Engine]:
    with Engine(EngineSettings(base_directory=base, cpu=True, max_concurrent_runs=3)) as made:
        assert made.runs.batcher is not None
        made.runs.batcher.choose = widest_set
        yield made


@pytest.fixture
def engine(shared_engine: Engine) -> Iterator[Engine]:
    yield shared_engine
    shared_engine.runs.threads.submit(lambda: None).result()  # a run gives its turn away after its result is there
    shared_engine.memory.pool.check_integrity()
    shared_engine.tuner.check_integrity()
    assert shared_engine.runs.batcher is not None
    shared_engine.runs.batcher.turns.check_integrity()
    assert shared_engine.models.checkpoint("a.safetensors")[0].model.current_patcher is None


def plain(seed: int, **changes: Any) -> Prompt:
    """A latent of one checkpoint, without an image."""
    prompt = workflow(second=None, lora=None, control=False, size=64)
    del prompt["21"], prompt["10"]
    prompt["9"]["inputs"].update(seed=seed, **changes)
    return prompt


def submit(engine: Engine, prompt: Prompt, name: str = "p", events: list[Event] | None = None, **extra: Any) -> Any:
    checked = engine.check(prompt)
    request = RunRequest(name, checked.prompt, checked.outputs, extra)
    return engine.submit(request, ([] if events is None else events).append)


def latents(engine: Engine, futures: Sequence[Future[RunResult]]) -> list[torch.Tensor]:
    results = [future.result() for future in futures]
    assert [result.status for result in results] == ["success"] * len(results)
    return [latent_of(engine, dict(result.outputs)) for result in results]


def test_a_latent_has_the_same_bits_whichever_company_it_has(engine: Engine) -> None:
    wide = plain(9)
    wide["5"]["inputs"]["width"] = 96
    prompts: list[tuple[Prompt, dict[str, Any]]] = [
        (plain(1, steps=3), {}),
        (plain(2, cfg=2.0), {}),
        (plain(3, sampler_name="euler_ancestral", steps=3), {}),
        (plain(4, sampler_name="dpmpp_2m_sde", scheduler="karras", steps=3), {}),
        (plain(5, cfg=1.0), {}),
        (wide, {}),
        (workflow(second=None, size=64), {}),  # a LoRA and a ControlNet
        (plain(6, steps=3), {"quality": "exact"}),
    ]
    alone = [latents(engine, [submit(engine, prompt, **extra)])[0] for prompt, extra in prompts]
    before = (engine.runs.batch_figures.evaluations, engine.runs.batch_figures.batches)
    together = latents(engine, [submit(engine, prompt, **extra) for prompt, extra in reversed(prompts)])[::-1]
    for number, (first, second) in enumerate(zip(alone, together, strict=True)):
        assert torch.equal(first, second), f"prompt {number} differs in company"
    num_evaluations = engine.runs.batch_figures.evaluations - before[0]
    assert engine.runs.batcher is not None
    widths = [item.most for item in engine.runs.batcher.widths_in_use]
    if max(widths, default=1) >= 4:  # else this processor has none with equal bits
        assert num_evaluations > engine.runs.batch_figures.batches - before[1], "nothing was shared"


def with_lora(seed: int, strength: float = 0.7) -> Prompt:
    prompt = workflow(second=None, lora=strength, control=False, size=64)
    del prompt["21"], prompt["10"]
    prompt["9"]["inputs"].update(seed=seed, steps=3)
    return prompt


def prompt_with_seed(prompt: Prompt, seed: int) -> Prompt:
    sampler = {**prompt["9"], "inputs": {**prompt["9"]["inputs"], "seed": seed}}
    return {**prompt, "9": sampler}


def begun_together(engine: Engine, prompts: Sequence[Prompt]) -> list[Future[RunResult]]:
    """Submit prompts of which the first waits before its first node until all the others want the turn."""
    assert engine.runs.batcher is not None
    turns, deadline = engine.runs.batcher.turns, time.monotonic() + 60

    def on_event(event: Event) -> None:
        while turns.num_ready < len(prompts) - 1 and not begun.is_set():
            assert time.monotonic() < deadline, "the other runs have not begun"
            time.sleep(0.01)
        begun.set()

    begun = threading.Event()
    checked = engine.check(prompts[0])
    first = engine.submit(RunRequest("first", checked.prompt, checked.outputs), on_event)
    return [first, *(submit(engine, prompt) for prompt in prompts[1:])]


def test_runs_with_the_same_lora_share_and_draw_what_they_draw_alone(engine: Engine) -> None:
    prompts = [with_lora(61), with_lora(62)]
    alone = [latents(engine, [submit(engine, prompt)])[0] for prompt in prompts]
    before = (engine.runs.batch_figures.evaluations, engine.runs.batch_figures.batches)
    together = latents(engine, begun_together(engine, prompts))
    assert all(torch.equal(first, second) for first, second in zip(alone, together, strict=True))
    num_evaluations = engine.runs.batch_figures.evaluations - before[0]
    if num_evaluations:  # else this processor has no widths with equal bits
        assert num_evaluations > engine.runs.batch_figures.batches - before[1], "nothing was shared"


def test_runs_with_a_lora_of_other_strengths_draw_what_they_draw_alone(engine: Engine) -> None:
    prompts = [with_lora(63, 0.7), with_lora(63, 0.3), with_lora(63, 0.0)]
    alone = [latents(engine, [submit(engine, prompt)])[0] for prompt in prompts]
    together = latents(engine, begun_together(engine, prompts))
    assert all(torch.equal(first, second) for first, second in zip(alone, together, strict=True))
    assert not torch.equal(alone[0], alone[1])


def test_prompts_are_projected_once_in_any_company(base: Path) -> None:
    prompts = [plain(71, steps=3), plain(72, steps=4), plain(73, steps=3)]
    with Engine(EngineSettings(base_directory=base, cpu=True, max_concurrent_runs=3)) as engine:
        assert engine.runs.batcher is not None
        engine.runs.batcher.choose = widest_set
        use_everywhere(engine, {"same": ["prompt_cache"]})
        alone = [latents(engine, [submit(engine, prompt)])[0] for prompt in prompts]
        latents(engine, begun_together(engine, [plain(74), plain(75)]))  # widths are measured
        engine.runs.threads.submit(engine.housekeeping.caches.clear).result()
        events: list[Event] = []
        rows: list[int] = []
        layer = engine.models.checkpoint("a.safetensors")[0].model.diffusion_model
        attention = next(item.attn2 for item in layer.modules() if type(item) is BasicTransformerBlock)
        hook = attention.to_k.register_forward_hook(lambda layer, given, out: rows.append(given[0].shape[0]))
        together = latents(engine, [submit(engine, item, events=events, quality="same") for item in prompts])
        hook.remove()
        used = [event for event in events if isinstance(event, TuningUsed)]
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    assert all("prompt_cache" in event.strategies for event in used) and len(used) == len(prompts)
    assert rows == [2] * len(prompts), "each prompt's once, with its own two rows"


def test_one_at_a_time_draws_the_same_within_the_tolerance(engine: Engine, base: Path) -> None:
    (shared,) = latents(engine, [submit(engine, plain(11, steps=3))])
    with Engine(EngineSettings(base_directory=base, cpu=True)) as other:
        (by_itself,) = latents(other, [submit(other, plain(11, steps=3))])
    assert torch.linalg.vector_norm(shared - by_itself) < 1e-4 * torch.linalg.vector_norm(by_itself)


def test_a_run_reports_that_its_steps_were_shared_and_their_error(engine: Engine) -> None:
    events: list[Event] = []
    latents(engine, begun_together(engine, [plain(15), plain(16)]))  # widths are measured
    before = engine.runs.batch_figures.evaluations
    latents(engine, [submit(engine, plain(14), events=events, quality="same")])
    is_shared = engine.runs.batch_figures.evaluations > before  # else this processor has no widths with equal bits
    (used,) = [event for event in events if isinstance(event, TuningUsed)]
    assert used.strategies == (("shared_steps",) if is_shared else ()) and 0 <= used.error < 1e-4
    events.clear()
    latents(engine, [submit(engine, plain(14), events=events, quality="exact")])
    assert [event.strategies for event in events if isinstance(event, TuningUsed)] == [()]


def test_the_engine_names_the_prompt_that_computes(engine: Engine) -> None:
    seen: list[str | None] = []
    checked = engine.check(plain(12))
    request = RunRequest("named", checked.prompt, checked.outputs, {})

    def on_event(event: Event) -> None:
        if isinstance(event, NodeProgress):  # later events may come from the thread that ends runs
            seen.append(engine.runs.prompt_with_turn)

    engine.submit(request, on_event).result(60)
    assert set(seen) == {"named"}


def test_what_a_run_uses_is_cleared_at_its_end(engine: Engine) -> None:
    kept: list[int] = []

    def on_event(event: Event) -> None:
        if isinstance(event, NodeFinished):
            engine.housekeeping.caches.clear()  # as a run does that begins meanwhile and finds a model file changed
            kept.append(len(engine.housekeeping.caches.results(0)))

    checked = engine.check(plain(13))
    result = engine.submit(RunRequest("p", checked.prompt, checked.outputs), on_event).result(60)
    assert result.status == "success"
    assert kept[0] and len(engine.housekeeping.caches.results(0)) == 0


def test_a_cancelled_run_leaves_its_company_alone(engine: Engine) -> None:
    begun = threading.Event()
    checked = engine.check(plain(21, steps=500))

    def on_event(event: Event) -> None:
        if isinstance(event, NodeProgress):
            begun.set()

    endless = engine.submit(RunRequest("endless", checked.prompt, checked.outputs), on_event)
    others = [submit(engine, plain(seed, steps=4), f"p{seed}") for seed in (22, 23)]
    assert begun.wait(60)
    assert engine.interrupt("endless")
    assert endless.result(60).status == "interrupted"
    assert len(latents(engine, others)) == 2


def test_an_evaluation_that_fails_fails_its_own_run_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    (expected,) = latents(engine, [submit(engine, plain(32, steps=3))])
    model = engine.models.checkpoint("a.safetensors")[0].model
    real = model.apply_model

    def apply_model(x: torch.Tensor, sigmas: torch.Tensor, **arguments: Any) -> torch.Tensor:
        if x.shape[0] > 4:
            raise OutOfMemory("too many rows")
        if bool((sigmas < 0.5).any()) and "doomed" in failing:
            failing.discard("doomed")
            raise ValueError("no such noise level")
        out: torch.Tensor = real(x, sigmas, **arguments)
        return out

    failing: set[str] = set()
    monkeypatch.setattr(model, "apply_model", apply_model)
    events: list[Event] = []
    good = [submit(engine, plain(32, steps=3), "good"), submit(engine, plain(33, steps=3), "other")]
    assert torch.equal(latents(engine, good)[0], expected)
    failing.add("doomed")
    failed = submit(engine, plain(34, steps=3), "doomed", events)
    assert failed.result(60).status == "error"
    assert [event.exception_type for event in events if isinstance(event, RunFailed)] == ["ValueError"]


def test_a_node_that_runs_out_of_memory_in_company_is_tried_again_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.runs.batcher is not None
    turns = engine.runs.batcher.turns
    vae = engine.models.checkpoint("a.safetensors")[2]
    assert vae is not None
    real = type(vae).decode
    seen: list[int] = []

    def decode(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(turns.num_runs)
        if turns.num_runs > 1 and not any(number == 1 for number in seen) and len(seen) < 4:
            raise OutOfMemory("no room beside the others")
        out: torch.Tensor = real(self, *args, **kwargs)
        return out

    monkeypatch.setattr(type(vae), "decode", decode)
    prompt = workflow(second=None, lora=None, control=False)
    prompt["9"]["inputs"]["seed"] = 41
    futures = [submit(engine, prompt, "decodes"), *(submit(engine, plain(seed, steps=4)) for seed in (42, 43))]
    assert [future.result(120).status for future in futures] == ["success"] * 3


def test_a_width_at_which_the_network_fails_is_left_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = plain(51)
    prompt["5"]["inputs"].update(width=64, height=128)
    assert engine.runs.batcher is not None
    model = engine.models.checkpoint("a.safetensors")[0].model
    real = model.apply_model

    def apply_model(x: torch.Tensor, sigmas: torch.Tensor, **arguments: Any) -> torch.Tensor:
        if x.shape[0] > 2:
            raise torch.OutOfMemoryError("too many rows to measure")
        out: torch.Tensor = real(x, sigmas, **arguments)
        return out

    monkeypatch.setattr(model, "apply_model", apply_model)
    latents(engine, begun_together(engine, [prompt, prompt_with_seed(prompt, 52)]))
    assert engine.runs.batcher.widths_in_use[-1].most == 0


def test_a_failed_batch_holds_no_memory_while_each_is_made_by_itself() -> None:
    class Network:
        current_patcher: Any = None
        held: weakref.ref[torch.Tensor] | None = None

        def apply_model(self, x: torch.Tensor, sigmas: torch.Tensor, **arguments: Any) -> torch.Tensor:
            assert self.held is None or self.held() is None, "the failed batch's memory is not free"
            working = torch.zeros(1)
            self.held = weakref.ref(working)
            if x.shape[0] > 1:
                raise OutOfMemory("too many rows")
            return x

        def begin_batch(self, shape: Sequence[int], **beside: Any) -> None: ...

    batcher = StepBatcher(Turns(lambda: lambda: None), 2, lambda: None)
    batcher._widths["kind", 1] = Widths((1, 2))
    network = Network()
    arguments: dict[str, Any] = {"transformer_options": {}}
    evaluations = [
        Evaluation("kind", network, network, torch.full((1, 1), float(number)), torch.ones(1), arguments)
        for number in (1, 2)
    ]
    batcher.evaluate(evaluations)
    assert [float(item.result) for item in evaluations if item.result is not None] == [1.0, 2.0]
    assert batcher.widths_in_use == [Widths((1,))]


def image(seed: int) -> Prompt:
    prompt = workflow(second=None, lora=None, control=False, size=64)
    prompt["9"]["inputs"].update(seed=seed, steps=2)
    return prompt


def test_another_run_samples_while_an_image_is_decoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the thread of a side stream, here of a device that has none: decoding waits for the other run's end."""
    assert engine.runs.batcher is not None
    side = SideStream(Device())
    monkeypatch.setattr(engine.runs.batcher, "side", side)
    latents(engine, [submit(engine, plain(81))])  # widths are measured
    loaded = engine.models.checkpoint("a.safetensors")[2]
    assert loaded is not None
    vae = type(loaded.first_stage_model)
    decode, is_over, threads = vae.decode, threading.Event(), []

    def waiting(self: Any, latent: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        threads.append(threading.current_thread().name)
        assert is_over.wait(60), "the other run does not go on"
        out: torch.Tensor = decode(self, latent, *arguments, **options)
        return out

    monkeypatch.setattr(vae, "decode", waiting)
    first = submit(engine, image(82))
    other = submit(engine, plain(83, steps=3))
    other.add_done_callback(lambda future: is_over.set())
    assert [future.result(120).status for future in (other, first)] == ["success", "success"]
    assert threads and all(name.startswith("side") for name in threads)
    side.close()


def test_an_error_beside_other_runs_fails_its_own_run_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.runs.batcher is not None
    side = SideStream(Device())
    monkeypatch.setattr(engine.runs.batcher, "side", side)
    loaded = engine.models.checkpoint("a.safetensors")[2]
    assert loaded is not None
    vae = type(loaded.first_stage_model)

    def failing(self: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        raise ValueError("no such latent")

    monkeypatch.setattr(vae, "decode", failing)
    events: list[Event] = []
    first = submit(engine, image(84), events=events)
    other = submit(engine, plain(85))
    assert [future.result(120).status for future in (first, other)] == ["error", "success"]
    assert any("no such latent" in str(event) for event in events if isinstance(event, RunFailed))
    side.close()


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.slow), 60])
def test_a_strategy_that_fails_costs_none_of_the_runs_that_share_it(at: int, base: Path) -> None:
    """Also where it fails only once the widths of batches are measured with it."""
    prompts = [plain(81, steps=3), plain(82, steps=3)]
    with Engine(EngineSettings(base_directory=base, cpu=True, max_concurrent_runs=2)) as engine:
        assert engine.runs.batcher is not None
        engine.runs.batcher.choose = widest_set
        use_everywhere(engine, {"same": []})
        alone = [latents(engine, [submit(engine, prompt)])[0] for prompt in prompts]
        engine.runs.threads.submit(engine.housekeeping.caches.clear).result()
        engine.runs.batcher._widths.clear()
        engine.tuner.replace(Failing("forward", at=at))
        use_everywhere(engine, {"same": ["fused_qkv"]})
        together = latents(engine, begun_together(engine, prompts))
        assert engine.tuner.barred.reason("fused_qkv") is not None
        engine.runs.threads.submit(lambda: None).result()
        engine.tuner.check_integrity()
        engine.runs.batcher.turns.check_integrity()
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_a_run_without_company_measures_no_widths_and_is_never_padded(base: Path) -> None:
    with Engine(EngineSettings(base_directory=base, cpu=True, max_concurrent_runs=3)) as engine:
        assert engine.runs.batcher is not None
        engine.runs.batcher.choose = widest_set
        latents(engine, [submit(engine, plain(91), quality="close")])
        assert engine.runs.batcher.widths_in_use == []
        latents(engine, [submit(engine, plain(seed), quality="close") for seed in (92, 93)])
        figures = engine.runs.batch_figures
        before = (figures.rows, figures.padded_rows)
        latents(engine, [submit(engine, plain(94), quality="close")])
        assert figures.rows - before[0] == figures.padded_rows - before[1]


def test_a_run_that_is_alone_is_made_in_whole_steps(base: Path) -> None:
    """This holds where several may run at a time, too; those that share take the sampler's loop."""
    with Engine(EngineSettings(base_directory=base, cpu=True, max_concurrent_runs=3)) as engine:
        assert engine.runs.batcher is not None
        recorder = Replaying()
        engine.tuner.replace(StepGraph(Graphs(recorder)))
        plain_latents = [latents(engine, [submit(engine, plain(seed))])[0] for seed in (95, 96, 97)]
        choose(engine, "step_graph")
        engine.runs.threads.submit(engine.housekeeping.caches.clear).result()
        (alone,) = latents(engine, [submit(engine, plain(95))])
        assert recorder.num_recorded == 1 and torch.equal(alone, plain_latents[0])
        before = recorder.num_replayed
        together = latents(engine, begun_together(engine, [plain(96), plain(97)]))
        assert all(map(torch.equal, together, plain_latents[1:]))
        assert recorder.num_replayed <= before + 2, "but for one that is left alone by the end of the other"
