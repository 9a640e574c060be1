"""Stable Diffusion 1: its variants, and the files of others that are much like its own."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.diffusion.model_sampling import EpsDiscrete, VDiscrete
from darkroom.engine.families.base import Match, ModelFamily, NotRecognised, TensorIndex
from darkroom.engine.families.registry import family_named, recognise
from darkroom.engine.families.sd15.unet_files import PREFIX, level_unet
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.unet import UnetModel


@pytest.fixture(scope="module")
def family() -> ModelFamily:
    return family_named("sd15")


def unet_shapes(prefix: str = PREFIX, **options: int | bool) -> dict[str, tuple[int, ...]]:
    """The shapes of a small network that differs from the family's as the options say."""
    config = {"model_channels": 32, "context_dim": 768, "channel_mult": (1, 1), "blocks_per_level": 1, **options}
    with unfilled():
        unet = UnetModel(level_unet(**config))  # type: ignore[arg-type]
    return {prefix + name: tuple(weight.shape) for name, weight in unet.state_dict().items()}


@pytest.mark.parametrize("prefix", [PREFIX, "diffusion_model.", ""])
@pytest.mark.parametrize(("in_channels", "variant"), [(4, ""), (8, "edit"), (9, "inpaint")])
def test_variants_are_known_by_their_input_channels(prefix: str, in_channels: int, variant: str) -> None:
    found = recognise(TensorIndex(unet_shapes(prefix, in_channels=in_channels)))
    assert (found.family.name, found.match.variant) == ("sd15", variant)
    assert (
        found.family.variants[variant]
        == {"": (), "edit": ("edited_image",), "inpaint": ("mask", "masked_image")}[variant]
    )


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        (unet_shapes(in_channels=5), "5 input channels"),
        (unet_shapes(context_dim=1024), "width 1024"),
        ({**unet_shapes(), f"{PREFIX}label_emb.0.0.weight": (1280, 2816)}, "Stable Diffusion XL"),
        ({**unet_shapes(""), "label_emb.0.0.weight": (1280, 2816)}, "Stable Diffusion XL"),
        ({"transformer_blocks.0.attn.to_q.weight": (8, 8)}, "no known network"),
    ],
)
def test_networks_of_others_are_described(shapes: dict[str, tuple[int, ...]], found: str) -> None:
    with pytest.raises(NotRecognised, match=found):
        recognise(TensorIndex(shapes))


class Marks:
    """A file of marks alone."""

    def __init__(self, *names: str, prediction: str = "") -> None:
        self.shapes: dict[str, tuple[int, ...]] = dict.fromkeys(names, (0,))
        self.metadata = {"modelspec.prediction_type": prediction} if prediction else {}

    def tensor(self, name: str) -> torch.Tensor:
        raise AssertionError("no tensor need be read")


@pytest.mark.parametrize(
    ("file", "kind", "zsnr"),
    [
        (Marks(), EpsDiscrete, False),
        (Marks("v_pred"), VDiscrete, False),
        (Marks("v_pred", "ztsnr"), VDiscrete, True),
        (Marks(prediction="V"), VDiscrete, False),
        (Marks(prediction="epsilon"), EpsDiscrete, False),
    ],
)
def test_the_prediction_is_recognised_by_marks(family: ModelFamily, file: Marks, kind: type, zsnr: bool) -> None:
    found = family.parameterise(Match(1, {}), file)
    assert (found.kind, found.settings["zsnr"]) == (kind, zsnr)
