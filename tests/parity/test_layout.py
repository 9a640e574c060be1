"""Layouts of parity models from a family's test scale."""

from __future__ import annotations

from pathlib import Path

from engine.checkpoints.load import LoadTypes, load_checkpoint
from engine.families.registry import families
from tests.parity.layout import write_layout
from tests.parity.models import read_layouts, write_model


def test_a_model_made_from_a_familys_own_scale_is_one_of_the_family(tmp_path: Path) -> None:
    for family in families():
        write_layout(family, "small", f"{family.name}_made", tmp_path)
    for layout in read_layouts(tmp_path):
        assert layout.family in layout.name and layout.is_named_in(f'"{layout.name}.safetensors"')
        loaded = load_checkpoint(write_model(layout, tmp_path / "models"), LoadTypes())
        assert loaded.family.name == layout.family
