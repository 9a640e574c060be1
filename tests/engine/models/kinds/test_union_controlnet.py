"""Union ControlNets: one network whose additions depend on the kind of image it is given."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.registry import default_family
from darkroom.engine.models.kinds.union_controlnet import UnionControlNetModel

NUM_TYPES = 6


@pytest.fixture(scope="module")
def network() -> UnionControlNetModel:
    torch.manual_seed(0)
    made = UnionControlNetModel(default_family().scales["small"].denoiser, num_types=NUM_TYPES).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(0.0, 0.1)
    return made


@torch.no_grad()
def additions(network: UnionControlNetModel, **options: list[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    x, hint = torch.randn(2, 4, 8, 8, generator=generator), torch.rand(2, 3, 64, 64, generator=generator)
    context = torch.randn(2, 77, 64, generator=generator)
    control = network(x=x, hint=hint, timesteps=torch.tensor([500.0, 500.0]), context=context, **options)
    return torch.cat([addition.flatten() for addition in control["output"]])


def test_every_type_gives_other_additions(network: UnionControlNetModel) -> None:
    found = [additions(network, control_type=kind) for kind in ([], [0], [3], [5])]
    assert not any(torch.equal(one, other) for i, one in enumerate(found) for other in found[i + 1 :])


def test_without_a_type_it_is_auto(network: UnionControlNetModel) -> None:
    assert torch.equal(additions(network), additions(network, control_type=[]))


def test_a_type_beyond_those_of_the_file_is_refused_with_how_many_there_are(network: UnionControlNetModel) -> None:
    with pytest.raises(ValueError, match="got 7, expected less than 6"):
        additions(network, control_type=[7])
