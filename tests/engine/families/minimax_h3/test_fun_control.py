"""The control of MiniMax H3: its files, what its blocks read and add, the video that controls, and the node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.minimax_h3.fun_control import (
    FUN_CONTROL,
    FunControlConfig,
    MiniMaxH3FunControl,
    as_described,
    fun_control_config,
)
from darkroom.engine.families.minimax_h3.layers import MiniMaxH3Config
from darkroom.engine.families.minimax_h3.layout import Sequencing, Source, from_flat
from darkroom.engine.families.minimax_h3.nodes.fun_control import (
    ControlVideo,
    FunControl,
    FunControlBlock,
    minimax_h3_fun_control_net_apply,
)
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from tests.engine.families.minimax_h3.test_nodes import VideoEncoder
from tests.engine.layers.small_transformers import MINIMAX_H3, small_transformer
from tests.engine.nodes.small_store import node_context, small_store

SMALL = FunControlConfig(replace(MINIMAX_H3, num_layers=2), (0, 1), 49)


def shapes_of(config: FunControlConfig) -> dict[str, tuple[int, ...]]:
    with unfilled():
        return {name: tuple(weight.shape) for name, weight in MiniMaxH3FunControl(config).state_dict().items()}


def control_of(config: FunControlConfig) -> MiniMaxH3FunControl:
    control = MiniMaxH3FunControl(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    for weight in control.parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return control


@pytest.mark.parametrize(("num_blocks", "step"), [(5, 10), (10, 5)])
@pytest.mark.parametrize("curve_points", [0, 1])
def test_the_published_files_are_known_by_their_tensors(num_blocks: int, step: int, curve_points: int) -> None:
    blocks = MiniMaxH3Config(num_layers=num_blocks, curve_points=curve_points)
    if curve_points:
        blocks = replace(blocks, time_embed_dim=8)
    published = FunControlConfig(blocks, tuple(range(0, 50, step)), 49, masks_to_grey=True)
    shapes = shapes_of(published)
    found = registry.recognise_model_patch(shapes)
    assert found is not None and found[0].name == "minimax_h3" and found[1] is FUN_CONTROL
    metadata = {"inpaint_masked_pixel_mode": "post_norm"}
    if curve_points:
        metadata["minimax_h3_fun_controlnet"] = "adaln_basis"
    assert as_described(fun_control_config(shapes), metadata) == published
    assert FUN_CONTROL.float32_ends_of is not None
    adaln = ".control_blocks.0.adaln_proj.linear.weight"
    assert adaln.endswith(FUN_CONTROL.float32_ends_of(published)) is bool(curve_points)


def test_metadata_name_other_layers() -> None:
    config = fun_control_config(shapes_of(SMALL))
    assert as_described(config, {"control_blocks_places": "[0, 1]"}).layers == (0, 1)
    assert as_described(config, {}).layers == (0, 25)


@pytest.mark.parametrize("layers", ["[0]", "[1, 2]", "[0, 0]", "[5, 0]", "none", "3", "[1e999, 2]", "[" * 100_000])
def test_layers_that_there_cannot_be_are_refused(layers: str) -> None:
    with pytest.raises(NotRecognised, match="a control"):
        as_described(fun_control_config(shapes_of(SMALL)), {"control_blocks_places": layers})


@torch.inference_mode()
def test_a_video_is_shown_in_place_of_videos_and_zeros_in_place_of_what_is_given() -> None:
    _, inputs = small_transformer("minimax_h3 with guides and masks")
    layout = Sequencing(from_flat(inputs["stretches"]), (2, 4, 6))
    control = control_of(SMALL)
    h = torch.randn(2, sum(item.num_tokens for item in layout.stretches), 256)
    hint = torch.randn(1, 49, 2, 4, 6)
    plain = control.begin(h, hint, layout)
    lengths = [item.num_tokens for item in layout.stretches]
    sources = [item.source for item in layout.stretches]
    later, changed = h + 1.0, control.begin(h, hint + 1.0, layout)
    moved = control.begin(later, hint, layout) - later
    for number, (before, after, other) in enumerate(
        zip(*(torch.split(item, lengths, dim=1) for item in (plain - h, moved, changed - h)), strict=True)
    ):
        reads_hint, is_video = number == len(lengths) - 1, sources[number] == Source.VIDEO
        assert torch.allclose(before, other, atol=1e-5) is not reads_hint
        assert torch.allclose(before, after, atol=1e-4) is is_video  # these tokens are not read but replaced
    short = control.begin(h, hint[:, :24], layout)
    filled = torch.cat([hint[:, :24], torch.zeros_like(hint[:, 24:])], dim=1)
    assert torch.equal(short, control.begin(h, filled, layout)), "channels that are not there are 0"


class Shown(ControlVideo):
    """A hint of ones, which counts how often it is made."""

    def __init__(self) -> None:
        self.made = 0

    def hint(self, size: tuple[int, int, int], *, masks_to_grey: bool) -> torch.Tensor:
        self.made += 1
        return torch.ones(1, 24, *size)


def controlled(control: MiniMaxH3FunControl, shown: Shown, sigma: float = 0.5, strength: float = 1.0) -> Any:
    network, plain = small_transformer("minimax_h3")
    own = FunControl(FakePatcher(control), shown, strength, 0.9, 0.1)
    blocks = {("double_block", index): FunControlBlock(own, index, None) for index in control.config.layers}
    options = {"patches_replace": {"dit": blocks}, "sigmas": torch.tensor([sigma])}
    return network(**plain, transformer_options=options), network(**plain)


class Frames(VideoEncoder):
    """A VAE that keeps the frames that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def encode(self, pixel_samples: torch.Tensor) -> torch.Tensor:
        self.seen.append(pixel_samples)
        return super().encode(pixel_samples)


class FakePatcher(ModulePatcher):
    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    @property
    def model(self) -> Any:
        return self.module


@torch.inference_mode()
def test_it_adds_at_its_strength_and_levels_alone() -> None:
    control, shown = control_of(SMALL), Shown()
    with_control, plain = controlled(control, shown)
    assert all(not torch.allclose(a, b, atol=1e-4) for a, b in zip(with_control, plain, strict=True))
    weaker, _ = controlled(control, shown, strength=0.5)
    assert not torch.allclose(weaker[0], with_control[0], atol=1e-4)
    for sigma in (0.95, 0.05):
        outside, _ = controlled(control, shown, sigma)
        assert all(torch.equal(a, b) for a, b in zip(outside, plain, strict=True))
    assert shown.made == 2
    for name, weight in control.named_parameters():
        if ".after_proj." in name:
            weight.zero_()
    nothing, _ = controlled(control, shown)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(nothing, plain, strict=True))


class RecordingControl(MiniMaxH3FunControl):
    """A control that keeps what it adds."""

    def __init__(self, config: FunControlConfig) -> None:
        super().__init__(config)
        self.seen: list[torch.Tensor] = []

    def step(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        after, added = super().step(*args, **kwargs)
        self.seen.append(added)
        return after, added


@torch.inference_mode()
def test_tokens_of_audio_get_nothing() -> None:
    control = RecordingControl(SMALL)
    control.load_state_dict(control_of(SMALL).state_dict())
    _, inputs = small_transformer("minimax_h3")
    controlled(control, Shown())
    seen = control.seen
    stretches = from_flat(inputs["stretches"])
    assert len(seen) == 2
    for added in seen:
        parts = torch.split(added, [item.num_tokens for item in stretches], dim=1)
        assert [bool(part.any()) for part in parts] == [item.source != Source.AUDIO for item in stretches]


def test_the_video_is_cut_to_the_length_and_proportions_of_the_one_that_is_made() -> None:
    encoder = Frames()
    frames = torch.rand(3, 32, 64, 4)
    hint = ControlVideo(encoder, frames, None, None).hint((2, 2, 2), masks_to_grey=False)
    assert hint.shape == (1, 24, 2, 2, 2)
    (seen,) = encoder.seen
    assert seen.shape == (5, 32, 32, 3)
    assert torch.allclose(seen[:3], frames[:, :, 16:48, :3])
    assert torch.equal(seen[3], seen[2]) and torch.equal(seen[4], seen[2]), "the last frame stays"


@pytest.mark.parametrize(("masks_to_grey", "colour"), [(False, (0.0, 0.0, 0.0)), (True, (0.485, 0.456, 0.406))])
def test_what_is_painted_is_hidden(masks_to_grey: bool, colour: tuple[float, float, float]) -> None:
    encoder = Frames()
    mask = torch.zeros(1, 32, 32)
    mask[:, :, 16:] = 1.0
    source = torch.full((5, 32, 32, 3), 0.25)
    hint = ControlVideo(encoder, None, mask, source).hint((2, 2, 2), masks_to_grey=masks_to_grey)
    assert hint.shape == (1, 49, 2, 2, 2)
    assert not hint[:, :24].any(), "no video controls"
    assert torch.equal(hint[0, 24, :, :, 0], torch.ones(2, 2))
    assert torch.equal(hint[0, 24, :, :, 1], torch.zeros(2, 2))
    (seen,) = encoder.seen
    assert torch.allclose(seen[:, :, :16], source[:, :, :16])
    assert torch.allclose(seen[0, 0, 20], torch.tensor(colour))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "model_patches").mkdir()
    return tmp_path


def written(models: Path, config: FunControlConfig, **metadata: str) -> ModulePatcher:
    tensors = {name: torch.zeros(shape) for name, shape in shapes_of(config).items()}
    described = {"control_blocks_places": json.dumps(config.layers), **metadata}
    write_safetensors(models / "model_patches" / "a.safetensors", tensors, described)
    return small_store(models).auxiliary.model_patch("a.safetensors")


def fitting(**changes: Any) -> FunControlConfig:
    blocks = MiniMaxH3Config(
        hidden_size=128, num_layers=2, num_heads=1, intermediate_size=64, time_embed_dim=64,
    )  # fmt: skip
    return FunControlConfig(replace(blocks, **changes), (0, 1), 49)


def test_the_node_puts_functions_behind_its_blocks(models: Path) -> None:
    context = node_context(small_store(models))
    model, _, _ = small_store(models).random_checkpoint("minimax_h3", "small")
    patch, video = written(models, fitting()), torch.zeros(5, 32, 32, 3)

    def applied(**given: Any) -> Any:
        return minimax_h3_fun_control_net_apply(
            context, **{"model": model, "model_patch": patch, "vae": VideoEncoder(), "control_video": video, **given}
        )

    found = applied()
    replaced = found.model_options["transformer_options"]["patches_replace"]["dit"]
    assert list(replaced) == [("double_block", 0), ("double_block", 1)]
    assert found.model_patches_models() == [patch]
    twice = minimax_h3_fun_control_net_apply(
        context, model=found, model_patch=patch, vae=VideoEncoder(), control_video=video
    )
    assert twice.model_patches_models() == [patch, patch], "the control before it goes on"
    assert applied(strength=0.0) is model
    assert applied(control_video=None) is model


@pytest.mark.parametrize(
    ("config", "metadata", "given", "problem"),
    [
        (fitting(hidden_size=256), {}, {}, "got a hidden size of 256 and heads of 128, expected 128 and 128"),
        (fitting(time_embed_dim=8), {}, {}, "got an embedding of 8, expected an embedding of 64"),
        (fitting(), {"minimax_h3_fun_controlnet": "adaln_basis"}, {}, "got coordinates of a curve of 64"),
        (replace(fitting(), layers=(0, 2)), {}, {}, "got one for block 2, expected one for a model of 2 blocks"),
        (replace(fitting(), hint_channels=24), {}, {"mask": torch.ones(1, 8, 8)}, "mask: the control does not read it"),
    ],
)
def test_what_does_not_fit_is_refused(
    models: Path, config: FunControlConfig, metadata: dict[str, str], given: dict[str, Any], problem: str
) -> None:
    model, _, _ = small_store(models).random_checkpoint("minimax_h3", "small")
    with pytest.raises(ValueError, match=problem):
        minimax_h3_fun_control_net_apply(
            node_context(small_store(models)),
            model=model,
            model_patch=written(models, config, **metadata),
            vae=VideoEncoder(),
            control_video=torch.zeros(5, 32, 32, 3),
            **given,
        )


def test_a_file_of_layers_that_there_cannot_be_is_refused_by_name(models: Path) -> None:
    with pytest.raises(BadModelFile, match="a control of 2 blocks for the layers"):
        written(models, replace(fitting(), layers=(3, 4)))
