"""The transformer of centred double streams: places, reference images, controls, replaced and patched blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.families.qwen_image.transformer import (
    AT_ZERO,
    CONTROLLED_BLOCKS,
    QwenImageConfig,
    QwenImageControlNet,
    QwenImageTransformer,
    centred_places,
    qwen_image_config,
    text_places,
)

CONFIG = QwenImageConfig(width=128, num_blocks=2, context_dim=24, in_channels=4, out_channels=4)


def filled(network: Any) -> Any:
    for name, weight in network.requires_grad_(False).named_parameters():
        if weight.ndim == 1 and name.endswith("weight"):
            weight.fill_(1.0)
    return network


@pytest.fixture(scope="module")
def network() -> QwenImageTransformer:
    torch.manual_seed(0)
    made: QwenImageTransformer = filled(QwenImageTransformer(CONFIG))
    return made


def inputs(height: int = 6, width: int = 8) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(1, 4, 1, height, width, generator=generator),
        "timesteps": torch.tensor([0.5]),
        "context": torch.randn(1, 5, 24, generator=generator),
    }


def test_places_are_counted_from_the_middle_and_text_follows_the_longer_side() -> None:
    places = centred_places((5, 8), (2, 0, 3), device=torch.device("cpu"))
    assert places.shape == (12, 3)
    assert places[0].tolist() == [2, -1, 0] and places[-1].tolist() == [2, 1, 3]
    assert text_places((5, 16), 2, torch.device("cpu")).tolist() == [[4, 4, 4], [5, 5, 5]]


def test_configuration_is_read_from_the_shapes(network: QwenImageTransformer) -> None:
    shapes = {name: tuple(item.shape) for name, item in network.state_dict().items()}
    assert qwen_image_config(shapes) == CONFIG


def test_any_size_keeps_its_size(network: QwenImageTransformer) -> None:
    assert network(**inputs(5, 7)).shape == (1, 4, 1, 5, 7)


def test_several_latent_frames_are_refused(network: QwenImageTransformer) -> None:
    given = inputs()
    given["x"] = given["x"].expand(-1, -1, 2, -1, -1)
    with pytest.raises(ValueError, match="latent: the model draws images; got 2 latent frames, expected 1"):
        network(**given)


def test_reference_images_change_the_image_by_method(network: QwenImageTransformer) -> None:
    references = [torch.randn(1, 4, 1, 4, 4), torch.randn(1, 4, 1, 6, 5)]
    plain = network(**inputs())
    by_index = network(**inputs(), ref_latents=references)
    beside = network(**inputs(), ref_latents=references, ref_latents_method="offset")
    assert by_index.shape == plain.shape
    assert not torch.allclose(plain, by_index, atol=1e-4) and not torch.allclose(by_index, beside, atol=1e-4)


def test_blocks_are_replaced_patched_and_controlled(network: QwenImageTransformer) -> None:
    seen: list[Any] = []

    def replacement(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, torch.Tensor]:
        seen.append(sorted(args))
        out: dict[str, torch.Tensor] = extra["original_block"](args)
        return out

    def patch(args: dict[str, Any]) -> dict[str, Any]:
        seen.append(args["block_index"])
        assert args["x"].ndim == 5
        return args

    plain = network(**inputs())
    options = {"patches_replace": {"dit": {("double_block", 1): replacement}}, "patches": {"double_block": [patch]}}
    torch.testing.assert_close(network(**inputs(), transformer_options=options), plain)
    assert seen == [0, ["img", "pe", "transformer_options", "txt", "vec"], 1]
    control: dict[str, list[torch.Tensor | None]] = {"input": [None, torch.randn(1, 12, 128)]}
    assert not torch.allclose(network(**inputs(), control=control), plain, atol=1e-4)


def test_a_control_gives_each_block_to_a_stretch_of_the_network() -> None:
    torch.manual_seed(0)
    config = replace(CONFIG, hint_channels=5)
    control = filled(QwenImageControlNet(config))
    shapes = {name: tuple(item.shape) for name, item in control.state_dict().items()}
    assert qwen_image_config(shapes) == config
    additions = control(**inputs(), hint=torch.randn(1, 5, 1, 6, 8))["input"]
    assert len(additions) == CONTROLLED_BLOCKS
    assert additions[0] is additions[29] and not torch.equal(additions[29], additions[30])
    assert additions[0].shape == (1, 12, 128)


def test_references_at_time_zero_are_those_at_the_time_where_it_is_zero(network: QwenImageTransformer) -> None:
    reference = [torch.randn(1, 4, 1, 4, 6)]

    def drawn(time: float, method: str | None, made: QwenImageTransformer = network) -> torch.Tensor:
        given = {**inputs(), "timesteps": torch.tensor([time])}
        out: torch.Tensor = made(**given, ref_latents=reference, ref_latents_method=method)
        return out

    assert torch.allclose(drawn(0.0, "index"), drawn(0.0, "index_timestep_zero"), atol=1e-5)
    assert not torch.allclose(drawn(0.5, "index"), drawn(0.5, "index_timestep_zero"), atol=1e-5)
    assert torch.equal(drawn(0.5, None), drawn(0.5, "index"))
    at_zero = QwenImageTransformer(replace(CONFIG, references_at_zero=True)).requires_grad_(False)
    at_zero.load_state_dict({**network.state_dict(), AT_ZERO: torch.empty(0)})
    shapes = {name: tuple(item.shape) for name, item in at_zero.state_dict().items()}
    assert qwen_image_config(shapes).references_at_zero
    assert torch.equal(drawn(0.5, None, at_zero), drawn(0.5, "index_timestep_zero"))


@pytest.fixture(scope="module")
def layered() -> QwenImageTransformer:
    torch.manual_seed(0)
    made: QwenImageTransformer = filled(QwenImageTransformer(replace(CONFIG, draws_layers=True)))
    return made


def test_a_network_of_layers_is_known_by_its_kinds_of_latents(layered: QwenImageTransformer) -> None:
    shapes = {name: tuple(item.shape) for name, item in layered.state_dict().items()}
    assert shapes["time_text_embed.addition_t_embedding.weight"] == (2, 128)
    assert qwen_image_config(shapes) == replace(CONFIG, draws_layers=True)


@torch.inference_mode()
def test_layers_are_told_apart_by_their_index(layered: QwenImageTransformer) -> None:
    given = inputs(5, 8)
    frames = given["x"].expand(-1, -1, 3, -1, -1)
    out = layered(**{**given, "x": frames})
    assert out.shape == (1, 4, 3, 5, 8)
    assert not torch.allclose(out[:, :, 0], out[:, :, 1], atol=1e-4), "the same image at other indices"
    alone = layered(**given)
    assert alone.shape == (1, 4, 1, 5, 8)


@torch.inference_mode()
def test_references_of_layers_are_before_the_image(layered: QwenImageTransformer) -> None:
    given = inputs()
    first, second = (torch.randn(1, 4, 1, 4, 4, generator=torch.Generator().manual_seed(seed)) for seed in (2, 3))
    own = layered(**given, ref_latents=[first, second])
    assert torch.equal(own, layered(**given, ref_latents=[first, second], ref_latents_method="negative_index"))
    assert not torch.allclose(own, layered(**given, ref_latents=[first, second], ref_latents_method="index"), atol=1e-4)
    assert not torch.allclose(own, layered(**given, ref_latents=[second, first]), atol=1e-4)


def test_other_networks_draw_one_image(network: QwenImageTransformer) -> None:
    given = inputs()
    with pytest.raises(ValueError, match="got 3 latent frames, expected 1"):
        network(**{**given, "x": given["x"].expand(-1, -1, 3, -1, -1)})
