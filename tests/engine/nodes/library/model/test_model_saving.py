"""Metadata of saved models: the model specification as ComfyUI writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.nodes.library.model.model_saving import model_save
from tests.engine.nodes.small_store import node_context, small_store


@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        ("sdxl", "stable-diffusion-xl-v1-base"),
        ("sdxl_refiner", "stable-diffusion-xl-v1-refiner"),
        ("svd", "stable-video-diffusion-img2vid-v1"),
        ("sd3", "stable-diffusion-v3-medium"),
        ("sd15", None),
        ("flux", None),
    ],
)
def test_a_saved_model_names_its_architecture(tmp_path: Path, family: str, architecture: str | None) -> None:
    store = small_store(tmp_path)
    model, _, _ = store.random_checkpoint(family, "small")
    context = node_context(store, tmp_path)
    for _ in range(2):
        model_save(context, model=model, filename_prefix="of/mine_too")
    metadata = SafetensorsFile(tmp_path / "of" / "mine_too_00002_.safetensors").metadata
    specified = {name: value for name, value in metadata.items() if name != "modelspec.predict_key" and "." in name}
    assert specified == (
        {}
        if architecture is None
        else {
            "modelspec.architecture": architecture,
            "modelspec.sai_model_spec": "1.0.0",
            "modelspec.implementation": "sgm",
            "modelspec.title": "mine_too 2",
        }
    )


@pytest.mark.parametrize(
    ("variant", "end"), [("", "base"), ("inpaint", "base"), ("edit", "edit"), ("edit_scaled", "edit")]
)
def test_networks_that_edit_have_an_architecture_of_their_own(variant: str, end: str) -> None:
    assert family_named("sdxl").comfyui.architecture(variant) == f"stable-diffusion-xl-v1-{end}"
