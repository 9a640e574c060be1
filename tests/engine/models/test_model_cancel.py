"""A run that is cancelled within a step: networks of videos stop before their next block, and keep no hook."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from darkroom.engine.cancel import CancelToken, Work, not_cancelled
from darkroom.engine.errors import Interrupted
from darkroom.engine.families.registry import family_named
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.load import LoadedDenoiser, LoadTypes
from darkroom.engine.models.model import Model
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.models.store import denoiser
from darkroom.engine.settings import EngineSettings

BLOCKS = {"wan": "blocks", "ltx_video": "transformer_blocks", "mochi": "blocks", "cosmos1": "blocks"}


def small_model(name: str) -> Model:
    family = family_named(name)
    unet, _, _ = random_networks("small", 1, LoadTypes(), family=family)
    network = denoiser(LoadedDenoiser(family, "", family.parameterisation, unet))
    return Model(ModelMemory(EngineSettings(cpu=True)).keep("unet", network, role="unet"))


def blocks_of(network: Any, name: str) -> list[torch.nn.Module]:
    return [*getattr(network.diffusion_model, BLOCKS[name]).children()]


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_step_of_a_video_ends_before_the_next_block(name: str, is_shared: bool) -> None:
    model, token, seen = small_model(name), CancelToken(), list[int]()

    def note(index: int, *_: object) -> None:
        seen.append(index)
        token.cancel()

    x = torch.randn(1, model.model.latent_format.latent_channels, 2, 4, 4)
    with Work(token).current(), model.in_use() as network:
        blocks = blocks_of(network, name)
        for index, block in enumerate(blocks):
            block.register_forward_hook(partial(note, index))
        width = network.text_widths()["cross_attn"]
        given = {"c_crossattn": torch.randn(1, 4, width), "attention_mask": torch.ones(1, 4)}

        def evaluate() -> None:
            network.apply_model(x, torch.tensor([0.5]), **given)

        if is_shared:  # with evaluations of other runs
            with not_cancelled():
                evaluate()
        else:
            with pytest.raises(Interrupted):
                evaluate()
    assert seen == ([*range(len(blocks))] if is_shared else [0])
    assert len(blocks) > 1 and not any(block._forward_pre_hooks for block in blocks)


def test_networks_of_images_have_no_hooks() -> None:
    model = small_model("sd15")
    with model.in_use() as network:
        assert not any(part._forward_pre_hooks for part in network.diffusion_model.modules())
