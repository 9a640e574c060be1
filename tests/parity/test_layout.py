"""Layouts of parity models from a family's test scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.engine.families.base import ModelFamily
from darkroom.engine.families.registry import families
from darkroom.engine.models.load import LoadTypes, load_checkpoint
from tests.parity.layout import write_layout
from tests.parity.models import read_layouts, write_model

FAST = ("sd15", "cascade", "qwen_image")


@pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=[] if family.name in FAST else pytest.mark.slow) for family in families()],
    ids=lambda family: family.name,
)
def test_a_model_made_from_a_familys_own_scale_is_one_of_the_family(tmp_path: Path, family: ModelFamily) -> None:
    write_layout(family, "small", f"{family.name}_made", tmp_path)
    layouts = list(read_layouts(tmp_path))
    assert layouts
    for layout in layouts:
        assert layout.family in layout.name and layout.is_named_in(f'"{layout.name}.safetensors"')
        loaded = load_checkpoint(write_model(layout, tmp_path / "models"), LoadTypes())
        assert loaded.family.name == layout.family
