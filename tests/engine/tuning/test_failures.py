"""A strategy that raises costs itself: never the measurement, never the job, and the network is what it was."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from darkroom.contract.quality import STRATEGIES
from darkroom.engine import Engine, EngineSettings, RunRequest
from darkroom.engine.diffusion.sampling_run import SamplingRun
from darkroom.engine.diffusion.steps_reported import StepsReported
from darkroom.engine.errors import Interrupted, OutOfMemory
from darkroom.engine.events import Event, NodeProgress, TuningUsed
from darkroom.engine.memory.device import translate_device_error
from darkroom.engine.memory.random_state import save_random_state
from darkroom.engine.tuning.barred import BarredStrategies
from darkroom.engine.tuning.networks_in_use import NetworksInUse
from darkroom.engine.tuning.outcome import Choice
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.run import Fallback, TunedRun
from darkroom.engine.tuning.strategy import Strategy
from tests.engine.tuning.failing import PLACES, WORDS, Failing, FailingOption
from tests.engine.tuning.outcomes import use_everywhere
from tests.engine.tuning.test_tuner import SIZE, latent_prompt, usage

NAMES = ("prompt_cache", "fused_qkv", "fused_geglu")


def state_of(network: torch.nn.Module) -> object:
    return [
        (name, "forward" in vars(module), len(module._forward_pre_hooks)) for name, module in network.named_modules()
    ]


# --- in the engine ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(EngineSettings(base_directory=tmp_path_factory.mktemp("base"), cpu=True, tuning=NAMES)) as made:
        yield made


@pytest.fixture(scope="module")
def plain(engine: Engine) -> bytes:
    """The latent of the plain path."""
    use_everywhere(engine, {})
    return run(engine)[1]


@pytest.fixture
def with_strategy(engine: Engine) -> Iterator[Callable[[Strategy], Strategy]]:
    """Put a strategy in the place of the one of its name; at the end the engine has its own, and none is barred."""
    before = dict(engine.tuner.strategies)

    def put(strategy: Strategy) -> Strategy:
        engine.tuner.replace(strategy)
        return strategy

    yield put
    engine.tuner.replace(*before.values())
    engine.tuner.barred._reasons.clear()
    engine.tuner.check_integrity()


def network_of(engine: Engine) -> torch.nn.Module:
    found: torch.nn.Module = engine.models.random_checkpoint("sd15", "small")[0].model.diffusion_model
    return found


def run(engine: Engine, quality: str = "same") -> tuple[list[Event], bytes]:
    engine.runs.threads.submit(engine.housekeeping.caches.clear).result()
    checked, seen = engine.check(latent_prompt()), list[Event]()
    result = engine.submit(RunRequest("p", checked.prompt, checked.outputs, {"quality": quality}), seen.append).result()
    assert result.status == "success"
    shown = result.outputs["5"]["latents"][0]
    return seen, (engine.settings.output_path / shown["subfolder"] / shown["filename"]).read_bytes()


def test_each_failing_strategy_is_a_line_of_the_measurement(
    engine: Engine, with_strategy: Callable[[Strategy], Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = engine.runs.threads.submit(lambda: network_of(engine)).result()
    before = state_of(network)
    names = [name for name in STRATEGIES if name not in ("zero_blocks", "prompt_cache", "token_merging")]
    failing = dict(zip(names, PLACES, strict=False))
    for name, place in failing.items():
        with_strategy(type("Own", (Failing,), {"name": name})(place))
    monkeypatch.setattr(engine.tuner, "allowed", (*failing, "prompt_cache", "token_merging"))
    found = engine.tuning.measure({"family": "sd15", "scale": "small", **SIZE}).result()
    figures = {figure["name"]: figure for figure in found["figures"]}
    for name in failing:
        assert figures[name]["reason"] == f"RuntimeError: {WORDS}" and not figures[name]["is_chosen"], name
    assert figures["prompt_cache"]["it_per_s"] > 0 and figures["token_merging"]["it_per_s"] > 0
    assert state_of(network) == before


def test_a_strategy_that_fails_once_it_is_chosen_does_not_fail_those_after_it(
    engine: Engine, with_strategy: Callable[[Strategy], Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Failing("forward", at=10**9)
    with_strategy(first)
    monkeypatch.setattr("darkroom.engine.tuning.choose.LEAST_GAIN", 0.0)
    later = engine.tuner.strategies["fused_geglu"]
    monkeypatch.setattr(type(later), "is_size_sensitive", False)

    def apply(use: Any, own: Callable[[Any], Any] = later.apply) -> Any:
        first.at = 0
        return own(use)

    monkeypatch.setattr(later, "apply", apply)
    found = engine.tuning.measure({"family": "sd15", "scale": "small", **SIZE}).result()
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert figures["fused_qkv"]["is_chosen"] and "fused_qkv" in engine.tuner.barred
    assert figures["fused_geglu"]["it_per_s"] > 0


@pytest.mark.parametrize("place", ["unfit", "apply", "half_applied", "forward", "undo"])
def test_a_job_is_repeated_plainly_and_its_latent_is_the_plain_one(
    place: str,
    engine: Engine,
    plain: bytes,
    with_strategy: Callable[[Strategy], Strategy],
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = state_of(network_of(engine))
    failures = engine.tuner.failures["fused_qkv"]
    failing = Failing(place, at=60)  # in the second step
    with_strategy(failing)
    use_everywhere(engine, {"same": ["prompt_cache", "fused_qkv"]})
    with caplog.at_level(logging.WARNING, "darkroom.engine.tuning"):
        events, latent = run(engine)
    assert latent == plain and state_of(network_of(engine)) == before
    assert [event.value for event in events if isinstance(event, NodeProgress)] == [1, 2], "each step once"
    assert [record.getMessage() for record in caplog.records] == [
        f"strategies barred until the next start: names=fused_qkv reason=RuntimeError: {WORDS}"
    ]
    assert engine.tuner.failures["fused_qkv"] == failures + 1
    assert engine.tuner.report()["barred"] == {"fused_qkv": f"RuntimeError: {WORDS}"}
    num_applied = failing.num_applied
    events, latent = run(engine)
    assert latent == plain and failing.num_applied == num_applied, "it is not tried again"
    assert usage(events)[0].strategies == ("prompt_cache",), "others are used again"
    assert WORDS in usage(events)[0].unused["fused_qkv"]


def test_an_option_that_cannot_be_made_is_left_out(engine: Engine, tmp_path: Any) -> None:
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True)) as own:
        own.tuner.replace(FailingOption())
        use_everywhere(own, {"same": ["token_merging"]})
        (used,) = usage(run(own)[0])
        assert used.strategies == () and WORDS in used.unused["token_merging"]
        assert dict(own.tuner.barred.failures) == {"token_merging": 1}


def test_what_fails_in_decoding_is_decoded_plainly(
    engine: Engine, with_strategy: Callable[[Strategy], Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    class OfVae(Failing):
        name, target = "half_vae", "vae"

        def apply(self, use: Any) -> Any:
            undo = super().apply(use)
            use.denoiser.__dict__["decode"] = self._decode
            return undo

        def _decode(self, latent: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(WORDS)

    def decode() -> tuple[torch.Tensor, list[str]]:
        vae = engine.models.random_checkpoint("sd15", "small")[2]
        latent = torch.ones(1, 4, 4, 4)
        tuned = engine.tuner.tuned_run(Quality.SAME)
        with torch.inference_mode(), SamplingRun(tuning=tuned).current():
            image = vae.decode(latent)
        return image, tuned.usage.used

    use_everywhere(engine, {})
    plain, _ = engine.runs.threads.submit(decode).result()
    with_strategy(OfVae("nowhere"))
    monkeypatch.setattr(engine.tuner, "allowed", (*NAMES, "half_vae"))
    use_everywhere(engine, {"same": ["half_vae"]})
    latest = engine.tuner.outcomes["UnetModel:"]
    monkeypatch.setattr(engine.tuner, "_outcome", lambda use: latest)
    image, used = engine.runs.threads.submit(decode).result()
    assert torch.equal(image, plain) and "half_vae" not in used and "half_vae" in engine.tuner.barred


# --- one run ----------------------------------------------------------------------------------------------------------


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act, self.other = torch.nn.SiLU(), torch.nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.other(self.act(x))
        return found


class Patcher:
    load_device = torch.device("cpu")

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.object_patches: dict[str, Any] = {}


class Bench:
    """A small network that runs sample with, under a tuning of these strategies."""

    def __init__(self, *strategies: Strategy) -> None:
        self.network, self.barred = Layers(), BarredStrategies()
        self.patcher = Patcher(self.network)
        self.strategies = {strategy.name: strategy for strategy in strategies}
        self.networks = NetworksInUse(self.barred)
        self.run = self.new_run()

    def new_run(self) -> TunedRun:
        choice = Choice(tuple(self.strategies))
        fallback = Fallback(self.barred, save_random_state, translate_device_error)
        return TunedRun(Quality.SAME, self.strategies, lambda use: choice, self.networks, fallback)

    def sample(self, work: Callable[[], Any] | None = None) -> Any:
        def attempt(run: SamplingRun) -> Any:
            noise = torch.randn(3)  # of the generator that a sampler without a seed takes
            with run.tuned_network(self.patcher, self.network, {}):
                return self.network(noise) if work is None else work()

        return SamplingRun(tuning=self.run).attempt(self.patcher, attempt)


class Other(Failing):
    name = "attention_kernels"


class Certain(Failing):
    name, is_certain = "zero_blocks", True


class OfEither(Failing):
    target = "any"


def test_random_numbers_are_those_of_the_first_attempt() -> None:
    bench = Bench(Failing("forward"))
    torch.manual_seed(3)
    plain = bench.network(torch.randn(3))
    torch.manual_seed(3)
    assert torch.equal(bench.sample(), plain)


def test_all_in_force_but_the_certain_ones_are_barred_where_the_error_tells_nothing() -> None:
    bench = Bench(Failing("nowhere"), Other("nowhere"), Certain("nowhere"))
    times: list[int] = []

    def work() -> str:
        times.append(1)
        if len(times) == 1:
            raise RuntimeError("cuDNN error")
        return "plain"

    assert bench.sample(work) == "plain"
    assert set(bench.barred.failures) == {"fused_qkv", "attention_kernels"}


def test_a_certain_strategy_is_barred_where_there_is_no_other() -> None:
    bench = Bench(Certain("forward"))
    bench.sample()
    assert set(bench.barred.failures) == {"zero_blocks"}


@pytest.mark.parametrize(
    "error", [Interrupted("stop"), OutOfMemory("full"), torch.OutOfMemoryError("CUDA out of memory")]
)
def test_errors_of_the_run_itself_are_raised_at_once(error: Exception) -> None:
    bench = Bench(Failing("forward", lambda: error))
    with pytest.raises(type(error)):
        bench.sample()
    assert not bench.barred.failures and not vars(bench.network.act).get("forward")


def test_a_run_whose_device_had_no_memory_goes_on_without_strategies() -> None:
    bench = Bench(Failing("forward", lambda: RuntimeError("CUDNN_STATUS_ALLOC_FAILED: out of memory")))
    with pytest.raises(RuntimeError):
        bench.sample()
    bench.sample()
    assert bench.run.usage.used == [] and not bench.barred.failures
    assert bench.run.usage.unused == {"fused_qkv": "the device ran out of memory in this run"}


def test_nothing_is_barred_where_the_plain_path_fails_too() -> None:
    bench = Bench(Failing("nowhere"))
    said = iter(("of the tuned path", "of the plain path"))

    def work() -> None:
        raise ValueError(next(said))

    with pytest.raises(ValueError, match="of the plain path"):
        bench.sample(work)
    assert not bench.barred.failures


def test_a_run_without_strategies_is_not_repeated() -> None:
    bench = Bench()
    times: list[int] = []

    def work() -> None:
        times.append(1)
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        bench.sample(work)
    assert len(times) == 1


def test_a_run_that_shares_the_network_goes_on_plainly() -> None:
    bench = Bench(Failing("nowhere"))
    other = bench.new_run()
    x = torch.randn(3)
    with SamplingRun(tuning=other).tuned_network(bench.patcher, bench.network, {}):
        assert "forward" in vars(bench.network.act)
        failing = bench.strategies["fused_qkv"]
        assert isinstance(failing, Failing)
        failing.place = "forward"
        bench.sample()
        assert "forward" not in vars(bench.network.act)
        assert torch.equal(bench.network(x), Layers()(x))
    bench.networks.check_integrity()


def test_what_was_yielded_is_not_yielded_again() -> None:
    bench = Bench(OfEither("nowhere"))
    attempts: list[int] = []

    def frames(run: SamplingRun) -> Any:
        attempts.append(1)
        with run.tuned_decoder(bench.patcher, bench.network):
            for number in range(4):
                if number == 2 and len(attempts) == 1:
                    raise RuntimeError("cuDNN error")
                yield (number, "forward" in vars(bench.network.act))

    found = list(SamplingRun(tuning=bench.run).attempt_stream(bench.patcher, frames))
    assert found == [(0, True), (1, True), (2, False), (3, False)]
    assert set(bench.barred.failures) == {"fused_qkv"}
    bench.networks.check_integrity()


def test_a_cancelled_run_ends_within_the_steps_that_are_not_reported_again() -> None:
    told: list[int] = []

    def check() -> None:
        if told[-1:] == [2]:
            raise Interrupted("stop")

    steps = StepsReported(lambda step, denoised, x, total: told.append(step), check)
    x = torch.zeros(1)
    for attempt in range(2):
        report = steps.of_attempt()
        assert report is not None
        with pytest.raises(Interrupted) if attempt else nullcontext():
            for step in (1, 2):
                report(step, x, x, 3)
    assert told == [1, 2]


def test_events_of_tuning_name_what_failed(engine: Engine, with_strategy: Callable[[Strategy], Strategy]) -> None:
    with_strategy(Failing("apply"))
    use_everywhere(engine, {"same": ["fused_qkv"]})
    (told,) = [event for event in run(engine)[0] if isinstance(event, TuningUsed)]
    assert told.unused == {"fused_qkv": f"it failed: RuntimeError: {WORDS}"} and told.strategies == ()
