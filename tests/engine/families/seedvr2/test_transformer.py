"""SeedVR2's transformer: what reaches what, its two kinds of positions, and what its denoiser refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.conditions import ConstantInput, RegularInput
from darkroom.engine.diffusion.latent_window import LatentWindow
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.families.seedvr2.denoiser import SeedVr2Denoiser
from darkroom.engine.families.seedvr2.layers import SeedVr2Config
from darkroom.engine.families.seedvr2.transformer import SeedVr2Transformer, seedvr2_config
from darkroom.engine.families.seedvr2.windows import window_lengths
from darkroom.engine.formats.unfilled import unfilled

CONFIG = SeedVr2Config(
    hidden_size=128, num_layers=4, num_separate=2, intermediate_size=96, text_dim=24, positive_tokens=5,
    negative_tokens=6,
)  # fmt: skip
RELATIVE = replace(CONFIG, num_frequencies=10, is_relative=True, is_gated=False, num_separate=4)
every_kind = pytest.mark.parametrize("config", [CONFIG, RELATIVE], ids=["3b", "7b"])


def network(config: SeedVr2Config) -> SeedVr2Transformer:
    torch.manual_seed(0)
    made = SeedVr2Transformer(config).requires_grad_(False)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return made


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def restored(made: SeedVr2Transformer, x: torch.Tensor, **inputs: Any) -> torch.Tensor:
    condition = torch.cat([drawn(*x.shape) * 0.5, torch.ones_like(x[:, :1])], dim=1)
    given = {"condition": condition, "context": drawn(x.shape[0], 5, 24), **inputs}
    context = given.pop("context")
    out: torch.Tensor = made(x, torch.tensor([900.0] * x.shape[0]), context, **given)
    return out


@every_kind
def test_its_configuration_is_read_from_its_tensors(config: SeedVr2Config) -> None:
    with unfilled():
        made = SeedVr2Transformer(config)
    assert seedvr2_config({name: tuple(item.shape) for name, item in made.state_dict().items()}) == config


@every_kind
def test_windows_that_are_given_are_those_that_it_computes(config: SeedVr2Config) -> None:
    made, x = network(config), drawn(1, 16, 3, 8, 12)
    windows = made.windows(x.shape[2:])
    given = {
        "window_order": windows.order, "window_places": windows.places, "window_positions": windows.positions,
        "window_sizes": windows.sizes,
    }  # fmt: skip
    assert torch.equal(restored(made, x, **given), restored(made, x))


@every_kind
def test_items_of_a_batch_are_restored_alone(config: SeedVr2Config) -> None:
    made, x = network(config), drawn(2, 16, 2, 4, 6)
    condition = torch.cat([drawn(*x.shape), torch.ones_like(x[:, :1])], dim=1)
    both = restored(made, x, condition=condition)
    second = restored(made, x[1:], condition=condition[1:], context=drawn(2, 5, 24)[1:])
    torch.testing.assert_close(both[1:], second, rtol=1e-4, atol=1e-5)


def test_a_block_of_plain_windows_does_not_reach_beyond_them() -> None:
    made, x = network(replace(CONFIG, num_layers=1, num_separate=1)), drawn(1, 16, 1, 90, 44)
    changed = x.clone()
    changed[..., :2, :2] += 1.0
    reached = (restored(made, changed) - restored(made, x)).abs().amax(dim=(0, 1, 2)) > 0  # [rows, columns]
    window_rows = 2 * window_lengths((1, 45, 22))[1]
    assert reached[:window_rows, :4].all() and not reached[window_rows:].any() and window_rows < 90


@every_kind
def test_blocks_are_replaced_by_functions_of_nodes(config: SeedVr2Config) -> None:
    made, x = network(config), drawn(1, 16, 1, 4, 4)
    seen = []

    def skip(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, torch.Tensor]:
        seen.append(args["vid"].shape)
        return {"vid": args["vid"], "txt": args["txt"]}

    def same(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, torch.Tensor]:
        out: dict[str, torch.Tensor] = extra["original_block"](args)
        return out

    plain = restored(made, x)
    options = {"patches_replace": {"dit": {("block", 1): same}}}
    assert torch.equal(restored(made, x, transformer_options=options), plain)
    options = {"patches_replace": {"dit": {("block", 1): skip}}}
    assert not torch.equal(restored(made, x, transformer_options=options), plain) and seen == [(1, 4, 128)]


# --- detection -------------------------------------------------------------------------------------------------------


def index_of(config: SeedVr2Config, **changed: tuple[int, ...] | None) -> TensorIndex:
    with unfilled():
        shapes = {name: tuple(item.shape) for name, item in SeedVr2Transformer(config).state_dict().items()}
    given = {name.replace("__", "."): shape for name, shape in changed.items()}
    return TensorIndex({name: shape for name, shape in (shapes | given).items() if shape is not None})


@pytest.mark.parametrize(("config", "variant"), [(CONFIG, ""), (RELATIVE, "7b")])
def test_the_larger_network_is_known_by_its_frequencies(config: SeedVr2Config, variant: str) -> None:
    found = registry.recognise(index_of(config))
    assert (found.family.name, found.match.variant) == ("seedvr2", variant)


@pytest.mark.parametrize("missing", ["positive_conditioning", "vid_in__proj__weight"])
def test_a_file_without_its_texts_or_its_input_is_not_it(missing: str) -> None:
    with pytest.raises(NotRecognised):
        registry.recognise(index_of(CONFIG, **{missing: None}))


@pytest.mark.parametrize(
    "changed", [{"blocks__0__attn__rope__rope__freqs": (22,)}, {"vid_in__proj__weight": (130, 132)}]
)
def test_sizes_without_such_a_network_are_refused(changed: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(NotRecognised, match="a network like SeedVR2's of a hidden size of"):
        seedvr2_config(index_of(CONFIG, **changed).shapes)


# --- inputs ----------------------------------------------------------------------------------------------------------


def denoiser() -> SeedVr2Denoiser:
    return SeedVr2Denoiser(network(CONFIG))


def test_windows_and_the_video_to_restore_are_inputs_made_once_a_run() -> None:
    noise, condition = drawn(1, 16, 2, 4, 6), drawn(1, 17, 2, 4, 6)
    inputs = denoiser().extra_conds(noise=noise, condition=condition, cross_attn=drawn(1, 5, 24), device="cpu")
    assert torch.equal(inputs["condition"].cond, condition)
    expected = network(CONFIG).windows(noise.shape[2:])
    assert torch.equal(inputs["window_order"].cond, expected.order)
    assert inputs["window_sizes"].cond == expected.sizes


@pytest.mark.parametrize(
    ("noise", "condition", "problem"),
    [
        ((1, 16, 2, 4, 6), None, "got conditioning without one, expected that of SeedVR2Conditioning"),
        ((1, 16, 2, 4, 6), (1, 17, 2, 4, 8), r"expected \[1, 17, 2, 4, 6\]"),
        ((1, 16, 2, 4, 6), (1, 16, 2, 4, 6), r"expected \[1, 17, 2, 4, 6\]"),
        ((1, 16, 2, 5, 6), (1, 17, 2, 5, 6), "got 6x5 cells, expected even numbers"),
    ],
)
def test_what_it_cannot_restore_is_refused(
    noise: tuple[int, ...], condition: tuple[int, ...] | None, problem: str
) -> None:
    given = None if condition is None else drawn(*condition)
    with pytest.raises(ValueError, match=problem):
        denoiser().extra_conds(noise=drawn(*noise), condition=given, cross_attn=drawn(1, 5, 24), device="cpu")


def test_parts_of_a_latent_have_windows_of_their_own() -> None:
    made = denoiser()
    window: Any = LatentWindow
    dropped = made.cut_for_window("window_order", RegularInput(drawn(1, 2, 4)), window, ())
    assert isinstance(dropped, ConstantInput) and dropped.cond is None
    assert made.cut_for_window("condition", RegularInput(drawn(1, 17, 2, 4, 6)), window, ()) is None
