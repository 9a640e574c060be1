"""Decoding as a graph, which a recorder plays: the same pixels, once a shape, and large latents as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.tuning.graphs import Graphs
from darkroom.engine.tuning.strategies import vae_graph
from darkroom.engine.tuning.strategies.vae_graph import VaeGraph
from darkroom.engine.tuning.strategy import MachineFacts, SamplingUse
from tests.engine.tuning.replaying import Replaying
from tests.engine.tuning.test_strategies import Patcher, networks

__all__ = ["networks"]


@pytest.fixture
def vae_use(networks: tuple[Any, Any]) -> SamplingUse:
    return SamplingUse(Patcher(networks[1]), networks[1], {})


def latent(side: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 4, side, side, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def test_latents_of_one_shape_are_decoded_by_one_graph(vae_use: SamplingUse) -> None:
    vae, recorder = vae_use.denoiser, Replaying()
    given = [latent(4), latent(4, 1), latent(6)]
    plain = [vae.decode(item) for item in given]
    strategy = VaeGraph(Graphs(recorder))
    assert strategy.unfit(vae_use) is None
    for _ in range(2):
        undo = strategy.apply(vae_use)
        assert all(torch.equal(vae.decode(item), expected) for item, expected in zip(given, plain, strict=True))
        undo()
    assert recorder.num_recorded == 2 and recorder.num_replayed == 6 and "decode" not in vars(vae)


@torch.inference_mode()
def test_large_latents_are_decoded_as_they_are(vae_use: SamplingUse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vae_graph, "MAX_CELLS", 16)
    recorder = Replaying()
    undo = VaeGraph(Graphs(recorder)).apply(vae_use)
    vae_use.denoiser.decode(latent(6))
    assert recorder.num_recorded == 0
    vae_use.denoiser.decode(latent(4))
    undo()
    assert recorder.num_recorded == 1


def test_a_decoder_beside_other_requests_has_no_graph(vae_use: SamplingUse) -> None:
    """Two decodings at a time would write into the buffers of one graph, or into the memory that graphs share."""
    beside_others = replace(vae_use, may_share=True)
    assert VaeGraph(Graphs(Replaying())).unfit(beside_others) == "other requests may compute at the same time"


def test_a_decoder_that_something_has_replaced_or_whose_weights_move_has_no_graph(vae_use: SamplingUse) -> None:
    strategy = VaeGraph(Graphs(Replaying()))
    vae_use.denoiser.__dict__["decode"] = print
    assert strategy.unfit(vae_use) == "nodes have replaced parts of the network"
    del vae_use.denoiser.__dict__["decode"]
    vae_use.patcher.weights.has_fixed_addresses = False
    assert "buffers" in str(strategy.unfit(vae_use))
    assert strategy.missing(MachineFacts("cpu", "a processor")) == "needs a CUDA device"
