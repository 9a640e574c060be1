"""Decoding in float16 with the VAE of an engine, which belongs to the engine's memory."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path

import torch

from darkroom.engine import Engine, EngineSettings
from darkroom.engine.tuning.strategies import half_vae


def test_a_vae_in_use_is_copied_in_float16_without_what_uses_it(tmp_path: Path) -> None:
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True)) as engine, torch.inference_mode():
        vae = engine.models.random_checkpoint("sd15", "small")[2]
        latent = torch.ones(1, 4, 4, 4)
        plain = vae.decode(latent)
        with engine.tuner.forced(["half_vae"]) as used:
            found = vae.decode(latent)
        assert used.used == ["half_vae"]
        assert not torch.equal(found, plain) and torch.allclose(found, plain, atol=0.01)


def test_a_float16_copy_does_not_keep_its_network(tmp_path: Path) -> None:
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True)) as engine:
        vae = engine.models.random_checkpoint("sd15", "small")[2]
        with vae.patcher.in_use(working_bytes=0) as network:
            made = half_vae._in_float16(network)
            patcher = weakref.ref(network.current_patcher)
        assert vars(made)["current_patcher"] is None and copy.deepcopy(made) is not made
        del network, vae
    del engine
    gc.collect()
    assert patcher() is None
