"""The UNet's layout, and every place where others may hook into it: patches, replacements, controls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.families.registry import default_family
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.diffusers_names import unet_names
from darkroom.engine.layers.unet import UnetModel
from darkroom.engine.layers.unet_shapes import diffusers_unet_config, unet_config


def _unet() -> UnetModel:
    torch.manual_seed(0)
    return UnetModel(default_family().scales["small"].denoiser).eval().requires_grad_(False)


def _run(unet: UnetModel, options: dict[str, Any] | None = None, **kwargs: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 4, 16, 16, generator=generator)
    context = torch.randn(2, 77, 64, generator=generator)
    noise: torch.Tensor = unet(x, torch.tensor([10.0, 500.0]), context, transformer_options=options, **kwargs)
    return noise


def test_the_full_layout_is_sd15s() -> None:
    with unfilled():
        unet = UnetModel(default_family().scales["full"].denoiser)
    assert sum(weight.numel() for weight in unet.parameters()) == 859_520_964
    assert unet.get_parameter("output_blocks.11.1.transformer_blocks.0.attn2.to_k.weight").shape == (320, 768)


def test_every_hook_is_called_with_its_place() -> None:
    seen: list[tuple[str, Any]] = []

    def patch(name: str) -> Any:
        def call(*args: Any) -> Any:
            seen.append((name, args[-1].get("block")))
            return args[:-1] if len(args) > 2 else args[0]

        return call

    def emb_patch(emb: torch.Tensor, channels: int, options: dict[str, Any]) -> torch.Tensor:
        seen.append(("emb", channels))
        return emb

    names = (
        "attn1_patch", "attn2_patch", "attn1_output_patch", "attn2_output_patch", "middle_patch", "input_block_patch",
        "input_block_patch_after_skip", "output_block_patch",
    )  # fmt: skip
    patches = {name: [patch(name)] for name in names}
    unet = _unet()
    changed = _run(unet, {"patches": {**patches, "emb_patch": [emb_patch]}})
    assert torch.allclose(changed, _run(unet), atol=1e-6)
    assert ("emb", 64) in seen
    assert {name for name, _ in seen} == {*names, "emb"}
    assert ("attn1_patch", ("middle", 0)) in seen


def test_a_replacement_stands_in_for_one_attention_only() -> None:
    calls: list[dict[str, Any]] = []

    def replacement(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, extra: dict[str, Any]) -> torch.Tensor:
        calls.append(extra)
        return torch.zeros_like(q)

    unet = _unet()
    changed = _run(unet, {"patches_replace": {"attn2": {("middle", 0, 0): replacement}}})
    assert len(calls) == 1
    assert calls[0]["n_heads"] == 8
    assert not torch.equal(changed, _run(unet))


def test_controls_are_added_from_the_ends_of_their_lists() -> None:
    unet = _unet()
    ones: list[torch.Tensor | None] = [torch.ones(2, 128, 2, 2)]
    assert not torch.equal(_run(unet, control={"middle": ones}), _run(unet))
    assert ones == []
    assert torch.equal(_run(unet, control={"middle": [None]}), _run(unet))


def test_a_control_for_another_network_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    unet = _unet()
    assert torch.equal(_run(unet, control={"middle": [torch.ones(1, 3, 5, 7)]}), _run(unet))
    assert "[1, 3, 5, 7] does not fit" in caplog.text


def test_odd_sizes_come_back_as_they_went() -> None:
    unet = _unet()
    out = unet(torch.zeros(1, 4, 13, 9), torch.tensor([1.0]), torch.zeros(1, 77, 64))
    assert out.shape == (1, 4, 13, 9)


def test_labels_are_embedded_beside_the_time() -> None:
    config = replace(_unet().config, label_dim=12)
    torch.manual_seed(0)
    unet = UnetModel(config)
    first, second = (_run(unet, y=torch.full((2, 12), value)) for value in (0.0, 1.0))
    assert not torch.equal(first, second)
    with torch.no_grad():  # an embedding of zeros is none
        unet.label_emb[0][2].weight.zero_()
        unet.label_emb[0][2].bias.zero_()
    assert torch.equal(_run(unet, y=torch.ones(2, 12)), _run(unet, y=torch.zeros(2, 12)))


@pytest.mark.parametrize("num_middle_layers", [3, 1, 0])
def test_the_layers_are_read_from_either_librarys_names(num_middle_layers: int) -> None:
    """Distilled networks have a middle block of a residual block alone, or none."""
    config = replace(_unet().config, label_dim=12)
    config = replace(config, middle_block=config.middle_block[:num_middle_layers])
    with unfilled():
        shapes = {name: tuple(weight.shape) for name, weight in UnetModel(config).state_dict().items()}
    assert unet_config(shapes) == config
    theirs = {theirs: shapes[ours] for theirs, ours in unet_names(config).items() if ours in shapes}
    assert {unet_names(config)[name] for name in theirs} == shapes.keys()
    assert diffusers_unet_config(theirs) == config
