"""An outcome of tuning belongs to the network that was measured: its class and its shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from darkroom.engine import Engine, EngineSettings
from darkroom.engine.tuning.network_identity import NetworkIdentities, identity_of
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import SamplingUse
from tests.engine.tuning.outcomes import outcome_of


@dataclass(frozen=True)
class Config:
    num_heads: int = 8
    activation: Any = torch.nn.functional.gelu


def network(width: int = 4, heads: int = 8, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(4, width, dtype=dtype), torch.nn.BatchNorm1d(width))
    made.config = Config(heads)  # type: ignore[assignment]
    return made


def test_networks_that_launch_other_kernels_have_other_identities() -> None:
    own = identity_of(network())
    assert own == identity_of(network()) and own.num_weights == 4 * 4 + 4 + 4 * 4 + 1
    others = [
        identity_of(network(width=5)),
        identity_of(network(heads=4)),
        identity_of(network(dtype=torch.float16)),
        identity_of(network(), torch.bfloat16),
        identity_of(torch.nn.Sequential(*network().children())),
    ]
    keys = {item.key for item in (own, *others)}
    assert len(keys) == 6 and all(key.startswith("Sequential:") for key in keys)


def test_values_of_weights_and_their_device_are_no_part_of_it() -> None:
    with torch.device("meta"):
        empty = network()
    assert identity_of(empty) == identity_of(network())


def test_it_is_the_same_in_every_process() -> None:
    """Another one would lose the outcomes that workers have stored."""
    assert identity_of(network()).key == "Sequential:ac2fc1aa881ac93a"


def test_a_network_is_read_once() -> None:
    identities, own = NetworkIdentities(), network()
    first = identities.of(own)
    assert identities.of(own) is first and identities.of(own, torch.float16) is not first


# --- in an engine -----------------------------------------------------------------------------------------------------


class Patcher:
    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        self.model = model
        self.object_patches = {} if dtype is None else {"manual_cast_dtype": dtype}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(EngineSettings(base_directory=tmp_path_factory.mktemp("base"), cpu=True)) as made:
        yield made


def values(engine: Engine, family: str) -> Any:
    return engine.runs.threads.submit(lambda: engine.models.random_checkpoint(family, "small")).result()


def choice(engine: Engine, model: Any, dtype: torch.dtype | None = None) -> tuple[str, ...]:
    return engine.tuner._choice(SamplingUse(Patcher(model, dtype), model, {}), Quality.SAME).names


def adopt(engine: Engine, names: list[str], model: Any, vae: str = "") -> None:
    identity = identity_of(model.diffusion_model, model.compute_dtype)
    own = {"network": identity.name, "fingerprint": identity.fingerprint, "vae": vae}
    engine.tuning.adopt(outcome_of({"same": names}) | own)


def test_a_choice_does_not_reach_another_network_of_the_class(engine: Engine) -> None:
    sd15, sdxl = (values(engine, family)[0].model for family in ("sd15", "sdxl"))
    assert type(sd15.diffusion_model) is type(sdxl.diffusion_model)
    adopt(engine, ["prompt_cache"], sd15)
    assert "prompt_cache" in choice(engine, sd15)
    assert "prompt_cache" not in choice(engine, sdxl)
    assert "prompt_cache" not in choice(engine, sd15, torch.bfloat16), "a node has set another type"
    adopt(engine, ["fused_qkv"], sdxl)
    assert "prompt_cache" in choice(engine, sd15) and "fused_qkv" in choice(engine, sdxl)
    assert len(engine.tuner.report()["outcomes"]) == 2
    certain = [name for name, item in engine.tuner.strategies.items() if item.is_certain]
    flux = values(engine, "flux")[0].model
    assert list(choice(engine, flux)) == certain, "one that was not measured"


def test_a_choice_for_decoding_is_of_the_vae_that_was_measured(engine: Engine) -> None:
    model, _, vae = values(engine, "sd15")
    _, _, other = values(engine, "flux")
    adopt(engine, ["half_vae"], model.model, identity_of(vae.first_stage_model).key)
    assert "half_vae" in choice(engine, vae.first_stage_model)
    assert "half_vae" not in choice(engine, other.first_stage_model)


def test_an_outcome_of_the_class_alone_is_not_taken(engine: Engine) -> None:
    old = {name: value for name, value in outcome_of({}).items() if name not in ("fingerprint", "vae")}
    with pytest.raises(ValueError, match="version: of another form; got 1, expected 2"):
        engine.tuning.adopt({**old, "version": 1})


def test_a_measurement_says_which_network_and_vae_it_is_of(engine: Engine) -> None:
    model, _, vae = values(engine, "sd15")
    size = {"width_px": 64, "height_px": 64, "num_steps": 2, "settle_seconds": 0, "turns_seconds": 0}
    found = engine.tuning.measure({"family": "sd15", "scale": "small", **size, "budget_seconds": 0}).result()
    identity = identity_of(model.model.diffusion_model, model.model.compute_dtype)
    assert (found["network"], found["fingerprint"]) == (identity.name, identity.fingerprint)
    assert found["vae"] == identity_of(vae.first_stage_model).key
