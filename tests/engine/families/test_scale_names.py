"""Files of the families whose norms' factors later versions of ComfyUI call `weight`, under either name."""

from __future__ import annotations

import pytest

from darkroom.engine.families import registry
from darkroom.engine.families.base import Shapes, TensorIndex
from tests.parity.layout import checkpoint_shapes

RENAMED = (
    "chroma", "chroma_radiance", "flux", "flux2", "hunyuan3d", "hunyuan_image", "hunyuan_image_refiner",
    "hunyuan_video", "hunyuan_video15",
)  # fmt: skip
CHECKPOINT = "model.diffusion_model."


def in_network(shapes: Shapes) -> tuple[str, str, Shapes]:
    """The family and variant of a file, and the shapes of the network's weights."""
    found = registry.recognise(TensorIndex(shapes))
    return found.family.name, found.match.variant, registry.shapes_under(found.match.names, shapes)


def with_later_names(shapes: Shapes) -> Shapes:
    return {name.removesuffix(".scale") + ".weight" if name.endswith(".scale") else name: item
            for name, item in shapes.items()}  # fmt: skip


@pytest.mark.parametrize("name", RENAMED)
@pytest.mark.parametrize("scale", ["small", pytest.param("full", marks=pytest.mark.slow)])
def test_a_file_is_the_same_network_under_the_later_names(name: str, scale: str) -> None:
    published = checkpoint_shapes(registry.family_named(name), scale)
    later = with_later_names(published)
    assert later.keys() != published.keys()
    assert in_network(later) == in_network(published)
    assert in_network(published)[0] == name
    for prefix in ("", "diffusion_model."):  # files of the network alone
        alone = {prefix + key: item for key, item in in_network(published)[2].items()}
        assert in_network(with_later_names(alone)) == in_network(alone)
