"""Sampling that is broken off and resumed: the same bits, with every sampler, and no evaluation made twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.denoiser import Denoiser, ModelConfig
from darkroom.engine.diffusion.ksampler import sampler_object
from darkroom.engine.diffusion.model_sampling import EpsDiscrete
from darkroom.engine.diffusion.model_sampling_variants import Flow
from darkroom.engine.diffusion.sample import Guider
from darkroom.engine.diffusion.samplers.registry import declared_samplers
from darkroom.engine.diffusion.sampling_run import SamplingRun
from darkroom.engine.runtime.resume.recorder import RunRecorder, folder_of_key
from tests.engine.diffusion.test_sample import Model as PerfectModel

SHAPE = (1, 4, 4, 4)
CPU = torch.device("cpu")
LEVELS = {
    "eps": torch.tensor([14.6, 9.0, 5.0, 3.0, 1.5, 0.7, 0.3, 0.0]),
    "flow": torch.tensor([1.0, 0.9, 0.75, 0.6, 0.45, 0.3, 0.15, 0.0]),
}


class EngineKilled(Exception):
    pass


class Network(torch.nn.Module):
    """A network that draws random numbers of its own, as some patches do, and ends its process at one call."""

    def __init__(self, breaks_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.num_calls, self.breaks_at = 0, breaks_at

    def forward(self, x: torch.Tensor, timesteps: torch.Tensor, *rest: Any, **_: Any) -> torch.Tensor:
        if self.num_calls == self.breaks_at:
            raise EngineKilled
        self.num_calls += 1
        shift = rest[0].mean() if rest and isinstance(rest[0], torch.Tensor) else 0.0
        found: torch.Tensor = torch.tanh(self.layer(x)) + shift + 0.01 * torch.randn(x.shape)
        return found


class Model(PerfectModel):
    def __init__(self, network: Network, kind: str) -> None:
        super().__init__()
        config = ModelConfig()
        sampling: Any = EpsDiscrete(config) if kind == "eps" else Flow(3.0, multiplier=1000)
        self.denoiser = Denoiser(network, model_sampling=sampling, config=config)

    def get_model_object(self, name: str) -> Any:
        return {"model_sampling": self.denoiser.model_sampling, "compute_dtype": torch.float32}[name]

    def in_use(self, **_: Any) -> Any:
        return _Entered(self.denoiser)

    def memory_required(self, input_shape: Any, references: Any = ()) -> float:
        return self.denoiser.memory_required(input_shape)


class _Entered:
    def __init__(self, denoiser: Denoiser) -> None:
        self.denoiser = denoiser

    def __enter__(self) -> Denoiser:
        return self.denoiser

    def __exit__(self, *_: object) -> None:
        pass


def sample(
    network: Network, name: str, kind: str, folder: Path | None, options: Mapping[str, Any] | None = None
) -> torch.Tensor:
    model = Model(network, kind)
    model.model_options["transformer_options"].update(options or {})
    guider = Guider(model)
    guider.set_conds([(torch.full((1, 1, 1), 0.2), {})], [(torch.full((1, 1, 1), -0.1), {})])
    guider.set_cfg(3.0)
    torch.manual_seed(9)
    noise = torch.randn(SHAPE)
    recorder = None if folder is None else RunRecorder(folder, 0.0, CPU, lambda: "7[0]")
    with SamplingRun(recording=recorder).current():
        return guider.sample(noise, torch.zeros(SHAPE), sampler_object(name), LEVELS[kind], seed=11)


OF_FLOWS = ("euler_ancestral", "dpmpp_2m_sde", "sa_solver", "uni_pc", "euler_ancestral_cfg_pp")


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "eps") for name in declared_samplers()), *((name, "flow") for name in OF_FLOWS)]
)
def test_a_resumed_sampling_has_the_bits_of_one_that_was_not_broken_off(name: str, kind: str, tmp_path: Path) -> None:
    whole = Network()
    expected = sample(whole, name, kind, None)
    after = torch.get_rng_state()
    broken = Network(breaks_at=whole.num_calls // 2)
    with pytest.raises(EngineKilled):
        sample(broken, name, kind, tmp_path)
    torch.manual_seed(4)  # the other engine's generator is in another state
    rest = Network()
    found = sample(rest, name, kind, tmp_path)
    assert torch.equal(found, expected)
    assert torch.equal(torch.get_rng_state(), after)  # so that the next sampler draws the same, too
    assert rest.num_calls == whole.num_calls - broken.num_calls


def test_a_sampling_that_has_ended_is_not_computed_again(tmp_path: Path) -> None:
    expected = sample(Network(), "dpmpp_2m", "eps", tmp_path)
    again = Network()
    assert torch.equal(sample(again, "dpmpp_2m", "eps", tmp_path), expected)
    assert again.num_calls == 0


def test_a_sampling_that_starts_otherwise_ignores_the_record(tmp_path: Path) -> None:
    sample(Network(), "euler", "eps", tmp_path)
    expected = sample(Network(), "heun", "flow", None)
    assert torch.equal(sample(Network(), "heun", "flow", tmp_path), expected)


def test_a_damaged_record_is_ignored(tmp_path: Path) -> None:
    expected = sample(Network(), "euler", "eps", tmp_path)
    files = sorted(tmp_path.glob("*/*.safetensors"))
    files[2].write_bytes(b"\x10")
    again = Network()
    assert torch.equal(sample(again, "euler", "eps", tmp_path), expected)
    assert again.num_calls > 0


def test_a_record_with_a_hole_counts_up_to_it(tmp_path: Path) -> None:
    whole = Network()
    expected = sample(whole, "euler", "eps", tmp_path)
    sorted(tmp_path.glob("*/*.safetensors"))[2].unlink()
    again = Network()
    assert torch.equal(sample(again, "euler", "eps", tmp_path), expected)
    assert 0 < again.num_calls < whole.num_calls


def test_code_of_a_pack_within_the_network_may_remember_and_is_computed_from_the_start(tmp_path: Path) -> None:
    options = {"wrappers": {"diffusion_model": {"pack": [lambda executor, *args, **kwargs: executor(*args, **kwargs)]}}}
    sample(Network(), "euler", "eps", tmp_path, options)
    assert not list(tmp_path.iterdir())


def test_a_short_sampling_writes_nothing(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path, 30.0, CPU, lambda: "7[0]", clock=lambda: 0.0)
    with SamplingRun(recording=recorder).current():
        sample_within(recorder)
    assert not list(tmp_path.iterdir())


def sample_within(recorder: RunRecorder) -> None:
    guider = Guider(Model(Network(), "eps"))
    guider.set_conds([(torch.zeros(1, 1, 1), {})], [(torch.zeros(1, 1, 1), {})])
    guider.sample(torch.zeros(SHAPE), torch.zeros(SHAPE), sampler_object("euler"), LEVELS["eps"])


@pytest.mark.parametrize("key", ["../../etc", "", "ABCDEF0123456789", 7])
def test_a_key_that_is_none_is_refused(key: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint: no key"):
        folder_of_key(tmp_path, key)
