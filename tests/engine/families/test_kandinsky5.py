"""Tests of Kandinsky 5: positions, frames that are given, the sizes that it is known by, and what its nodes refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.families.kandinsky5.config import MARK, Kandinsky5Config, kandinsky5_config
from darkroom.engine.families.kandinsky5.nodes import kandinsky5_image_to_video
from darkroom.engine.families.kandinsky5.text import DESCRIBE_IMAGE, DESCRIBE_VIDEO
from darkroom.engine.families.kandinsky5.transformer import (
    Kandinsky5Transformer,
    video_of,
    video_patches,
    video_positions,
)
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.rope_options import ROPE_OPTIONS
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.nodes.library.latent.video_latents import replace_video_latent_frames
from darkroom.engine.settings import EngineSettings
from tests.engine.nodes.small_store import node_context, small_store

CONFIG = Kandinsky5Config(
    hidden_size=128, intermediate_size=96, time_dim=32, num_text_blocks=1, num_visual_blocks=2, head_dim=64,
    context_dim=24, label_dim=16,
)  # fmt: skip
PRO = replace(
    CONFIG, hidden_size=4096, intermediate_size=16384, time_dim=1024, num_text_blocks=4, num_visual_blocks=60,
    head_dim=128, context_dim=3584, label_dim=768,
)  # fmt: skip
VIDEO, IMAGE = registry.family_named("kandinsky5"), registry.family_named("kandinsky5_image")
CPU = torch.device("cpu")


def network() -> Kandinsky5Transformer:
    torch.manual_seed(0)
    made = Kandinsky5Transformer(CONFIG)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return made


def shapes_of(config: Kandinsky5Config) -> dict[str, tuple[int, ...]]:
    with unfilled():
        return {name: tuple(item.shape) for name, item in Kandinsky5Transformer(config).state_dict().items()}


@torch.no_grad()
def drawn(made: Kandinsky5Transformer, x: torch.Tensor, **inputs: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    text, pooled = torch.randn(1, 5, 24, generator=generator), torch.randn(1, 16, generator=generator)
    out: torch.Tensor = made(x, torch.tensor([500.0]), text, pooled, **inputs)
    return out


def vae_of_family(name: str) -> Any:
    family = registry.family_named(name)
    with unfilled():
        vae = family.vae.build(family.vae.sizes["small"])
    return vae_of(ModelMemory(EngineSettings(cpu=True)).keep("vae", vae, role="vae"))


@pytest.mark.parametrize(
    ("config", "rows", "columns", "scale"),
    [
        (CONFIG, 64, 96, 2.0),
        (CONFIG, 128, 128, 2.0),
        (PRO, 88, 159, 2.0),
        (PRO, 88, 160, 3.16),
        (replace(CONFIG, in_channels=16), 128, 128, 1.0),
        (replace(CONFIG, hidden_size=2560), 128, 128, 1.0),
    ],
)
def test_positions_are_scaled_by_the_network_and_the_size_of_frames(
    config: Kandinsky5Config, rows: int, columns: int, scale: float
) -> None:
    assert config.position_scale(rows, columns) == scale


def test_options_scale_positions_in_place_of_the_network() -> None:
    own = video_positions((2, 3, 4), 2.0, {}, CPU)[0]
    assert own.shape == (24, 3)
    assert own[-1].tolist() == [1.0, 1.0, 1.5] and own[12].tolist() == [1.0, 0.0, 0.0]
    asked = video_positions((2, 3, 4), 2.0, {ROPE_OPTIONS: {"scale_x": 0.25, "shift_t": 3.0}}, CPU)[0]
    assert asked[-1].tolist() == [4.0, 2.0, 0.75]


def test_patches_are_put_together_again() -> None:
    latent = torch.randn(2, 3, 2, 4, 6)
    patches = video_patches(latent)  # channels innermost
    assert patches.shape == (2, 12, 12) and torch.equal(patches[0, 0, :3], latent[0, :, 0, 0, 0])
    outermost = patches.view(2, 12, 4, 3).transpose(2, 3).reshape(2, 12, 12)
    assert torch.equal(video_of(outermost, (2, 2, 3)), latent)


@pytest.mark.parametrize(
    "config", [CONFIG, replace(CONFIG, head_dim=128, in_channels=16), replace(CONFIG, num_text_blocks=2)]
)
def test_its_configuration_is_read_from_its_weights(config: Kandinsky5Config) -> None:
    assert kandinsky5_config(shapes_of(config)) == config


def test_heads_of_another_size_are_refused() -> None:
    with pytest.raises(NotRecognised, match="heads of 96 channels in a hidden size of 128"):
        kandinsky5_config({**shapes_of(CONFIG), MARK: (96,)})


def test_pro_is_known_by_its_size_and_images_by_their_channels() -> None:
    found = [
        registry.recognise(TensorIndex(shapes_of(config)))
        for config in (PRO, VIDEO.sizes["full"], IMAGE.sizes["full"], replace(CONFIG, in_channels=16))
    ]
    assert [(item.family.name, item.match.variant) for item in found] == [
        ("kandinsky5", "pro"), ("kandinsky5", ""), ("kandinsky5_image", ""), ("kandinsky5_image", ""),
    ]  # fmt: skip


def test_frames_that_are_given_stand_in_place_of_the_noise() -> None:
    made, given = network(), torch.randn(1, 16, 1, 4, 6)
    first, other = torch.randn(1, 33, 3, 4, 6), torch.randn(1, 33, 3, 4, 6)
    other[:, :, 1:], other[:, 16:] = first[:, :, 1:], first[:, 16:]
    assert torch.equal(drawn(made, first, time_dim_replace=given), drawn(made, other, time_dim_replace=given))
    assert not torch.allclose(drawn(made, first), drawn(made, other))
    before = first.clone()
    drawn(made, first, time_dim_replace=given)
    assert torch.equal(first, before)


def test_latents_of_no_whole_patches_keep_their_size() -> None:
    assert drawn(network(), torch.randn(1, 33, 2, 3, 5)).shape == (1, 16, 2, 3, 5)


def test_custom_nodes_may_replace_blocks() -> None:
    made, x = network(), torch.randn(1, 33, 2, 4, 4)
    calls: list[tuple[int, set[str]]] = []

    def called(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, torch.Tensor]:
        calls.append((args["transformer_options"]["block_index"], set(args)))
        out: dict[str, torch.Tensor] = extra["original_block"](args)
        return out

    replaced = {"patches_replace": {"dit": {("double_block", 1): called}}}
    assert torch.equal(drawn(made, x, transformer_options=replaced), drawn(made, x))
    assert calls == [(1, {"x", "context", "time_embed", "freqs", "transformer_options"})]


@pytest.mark.parametrize("is_given", [False, True])
def test_a_mask_tells_which_frames_are_given(is_given: bool) -> None:
    denoiser = VIDEO.denoiser_type(torch.nn.Identity())
    noise, mask = torch.randn(2, 16, 3, 4, 4), torch.ones(1, 1, 3, 8, 8)
    mask[:, :, 0] = 0.0
    options = {"concat_mask": mask} if is_given else {}
    further = denoiser.concat_cond(noise=noise, device=CPU, **options)
    assert further is not None and further.shape == (2, 17, 3, 4, 4)
    assert not further[:, :16].any()
    assert further[:, 16].amax(dim=(0, 2, 3)).tolist() == [float(is_given), 0.0, 0.0]


def test_images_have_no_further_channels() -> None:
    denoiser = IMAGE.denoiser_type(torch.nn.Identity())
    assert denoiser.concat_cond(noise=torch.zeros(1, 16, 4, 4), device=CPU) is None


@pytest.mark.parametrize("shape", [(1, 16, 1, 4, 6), (1, 16, 4, 4, 4), (1, 4, 1, 4, 4), (1, 16, 4, 4)])
def test_given_frames_of_another_size_are_refused(shape: tuple[int, ...]) -> None:
    denoiser = VIDEO.denoiser_type(network())
    noise = torch.zeros(1, 16, 3, 4, 4)
    inputs = {"noise": noise, "device": CPU, "pooled_output": torch.zeros(1, 16), "latent_image": noise}
    with pytest.raises(ValueError, match=r"start_image does not fit the latent; got a latent of .* expected \[16, 3"):
        denoiser.extra_conds(**inputs, time_dim_replace=torch.zeros(shape))


@pytest.mark.parametrize(
    ("family", "found"), [("kandinsky5_image", "16 channels of images"), ("ltx_video", "128 channels of videos, 8 fr")]
)
def test_a_vae_of_another_family_is_refused(tmp_path: Path, family: str, found: str) -> None:
    with pytest.raises(ValueError, match=f"vae: one of another family; got {found}.*HunyuanVideo"):
        kandinsky5_image_to_video(
            node_context(small_store(tmp_path)), positive=[], negative=[], vae=vae_of_family(family), width=64,
            height=64, length=5, batch_size=1, start_image=torch.zeros(1, 64, 64, 3),
        )  # fmt: skip


def test_without_an_image_there_is_no_latent_of_it(tmp_path: Path) -> None:
    context = node_context(small_store(tmp_path))
    *_, latent, given = kandinsky5_image_to_video(
        context, positive=[], negative=[], vae=None, width=64, height=48, length=9, batch_size=2,
        start_image=None,
    )  # fmt: skip
    assert latent["samples"].shape == (2, 16, 3, 6, 8) and given == {}
    with pytest.raises(ValueError, match="source: no latent of a video; got an empty one"):
        replace_video_latent_frames(context, destination=latent, index=0, source=given)


def test_prompts_of_videos_and_images_have_their_own_instructions() -> None:
    templates = [family.text[0].encoding.template for family in (VIDEO, IMAGE)]
    assert [DESCRIBE_VIDEO in templates[0], DESCRIBE_IMAGE in templates[1]] == [True, True]
    assert all(template.endswith("<|im_start|>user\n{}<|im_end|>") for template in templates)
