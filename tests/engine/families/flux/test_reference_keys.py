"""Keys and values of reference images: kept by the first step, taken by those behind it, and by all conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from darkroom.engine.families.flux import reference_keys
from darkroom.engine.families.flux.nodes import flux_kv_cache
from darkroom.engine.families.flux.reference_keys import OPTION, SPARE_BYTES, ReferenceKeys
from darkroom.engine.families.flux2.transformer import Flux2Config, Flux2Transformer
from darkroom.engine.families.longcat_image.transformer import LongCatImageConfig, LongCatImageTransformer

NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {
    "flux2": lambda: Flux2Transformer(
        Flux2Config(
            width=128, num_double=1, num_single=1, context_dim=24, in_channels=8, out_channels=8, has_guidance=False
        )
    ),
    "longcat_image": lambda: LongCatImageTransformer(
        LongCatImageConfig(width=128, num_double=1, num_single=1, context_dim=24, in_channels=8)
    ),
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> torch.nn.Module:
    torch.manual_seed(0)
    made = NETWORKS[request.param]().requires_grad_(False).eval()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, 0, 0.1)
    return made


def inputs(batch: int = 1) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(3)
    x, text = (torch.randn(1, *shape, generator=generator).expand(batch, *shape) for shape in ((8, 4, 4), (5, 24)))
    return x, torch.full((batch,), 0.5), text


REFERENCE = torch.randn(1, 8, 4, 2, generator=torch.Generator().manual_seed(4))


@torch.no_grad()
def test_the_same_step_again_has_the_same_result(network: torch.nn.Module) -> None:
    keys = ReferenceKeys()
    options: dict[str, Any] = {OPTION: keys}
    first = network(*inputs(), None, None, options, ref_latents=[REFERENCE])
    assert keys.is_filled
    again = network(*inputs(), None, None, options, ref_latents=[REFERENCE])
    torch.testing.assert_close(again, first, rtol=1e-4, atol=1e-5)
    at_zero = network(*inputs(), ref_latents=[REFERENCE], ref_latents_method="index_timestep_zero")
    torch.testing.assert_close(first, at_zero)


@pytest.mark.parametrize(("free_bytes", "device"), [(SPARE_BYTES, "meta"), (2 * SPARE_BYTES, "cpu")])
def test_keys_go_to_ram_where_the_device_has_no_room(
    free_bytes: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_keys, "HOST", torch.device("meta"))
    keys = ReferenceKeys(lambda: free_bytes)
    keys.keep(("double", 0), torch.ones(1, 2, 5, 8), torch.ones(1, 2, 5, 8))
    assert keys.is_filled and all(item.device.type == device for item in keys.blocks["double", 0])


@torch.no_grad()
def test_later_steps_and_batches_take_what_the_first_kept(network: torch.nn.Module) -> None:
    options: dict[str, Any] = {OPTION: ReferenceKeys()}
    network(*inputs(), None, None, options, ref_latents=[REFERENCE])
    others = [torch.zeros(2, *REFERENCE.shape[1:])]
    kept = network(*inputs(2), None, None, options, ref_latents=others)
    plain = network(*inputs(2), ref_latents=others, ref_latents_method="index_timestep_zero")
    assert kept.shape == plain.shape and not torch.allclose(kept, plain, atol=1e-3)


@torch.no_grad()
def test_an_image_without_references_takes_none(network: torch.nn.Module) -> None:
    options: dict[str, Any] = {OPTION: ReferenceKeys()}
    network(*inputs(), None, None, options, ref_latents=[REFERENCE])
    assert torch.equal(network(*inputs(), None, None, options), network(*inputs()))


@torch.no_grad()
def test_references_at_time_zero_are_not_those_at_the_image_s(network: torch.nn.Module) -> None:
    now, at_zero = (
        network(*inputs(), ref_latents=[REFERENCE], ref_latents_method=method)
        for method in ("index", "index_timestep_zero")
    )
    assert not torch.allclose(now, at_zero, atol=1e-4)
    x, _, text = inputs()
    now, at_zero = (
        network(x, torch.zeros(1), text, ref_latents=[REFERENCE], ref_latents_method=method)
        for method in ("index", "index_timestep_zero")
    )
    torch.testing.assert_close(now, at_zero, rtol=1e-4, atol=1e-5)


def test_models_of_other_kinds_are_refused() -> None:
    family = type("Family", (), {"name": "sd15", "label": "Stable Diffusion 1"})()
    config = type("Config", (), {"family": family})()
    model: Any = type("Model", (), {"model": type("Inner", (), {"model_config": config})()})()
    context: Any = None
    with pytest.raises(ValueError, match=r"got Stable Diffusion 1, expected Flux\.1, Flux\.2 or LongCat-Image"):
        flux_kv_cache(context, model=model)
