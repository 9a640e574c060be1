"""RT-DETR: what its node refuses, and how boxes are chosen. `tests/parity` has its numbers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from darkroom.contract.errors import PromptRejected
from darkroom.engine.engine import Engine
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.rt_detr.decoder import side_distances
from darkroom.engine.families.rt_detr.nodes import rtdetr_detect
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.models.store import ModelStore
from darkroom.engine.settings import EngineSettings
from tests.engine.nodes.small_store import node_context, small_store
from tests.engine.simulated_card import node
from tests.parity.models import read_layouts, write_model

FILE = "rt_detr_small.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small file."""
    base = tmp_path_factory.mktemp("rt_detr")
    write_model(next(item for item in read_layouts() if item.family == "rt_detr"), base / "models")
    return base


@pytest.fixture(scope="module")
def store(folder: Path) -> ModelStore:
    return small_store(folder / "models")


def detected(store: ModelStore, images: Any, **inputs: Any) -> list[list[dict[str, Any]]]:
    given = {"threshold": 0.5, "class_name": "all", "max_detections": 100, **inputs}
    found: list[list[dict[str, Any]]] = rtdetr_detect(
        node_context(store), model=store.unet(FILE), image=images, **given
    )
    return found


def images(count: int) -> torch.Tensor:
    return torch.rand(count, 40, 56, 4, generator=torch.Generator().manual_seed(0))


def test_boxes_come_with_the_surest_first_and_a_stream_has_those_of_a_batch(store: ModelStore) -> None:
    batch = images(2)
    found = detected(store, batch, max_detections=7)
    assert [len(boxes) for boxes in found] == [7, 7]
    assert all(first["score"] >= second["score"] > 0.5 for boxes in found for first, second in pairwise(boxes))
    assert detected(store, FrameStream((2, 40, 56, 4), lambda: iter([batch])), max_detections=7) == found


def test_boxes_of_one_class_are_those_of_all_with_its_label(store: ModelStore) -> None:
    (found,) = detected(store, images(1), max_detections=300)
    label = found[0]["label"]
    (chosen,) = detected(store, images(1), class_name=label, max_detections=2)
    assert chosen == [box for box in found if box["label"] == label][:2]


def test_bins_of_sides_grow_from_the_middle_to_both_ends() -> None:
    distances = side_distances((33,))
    assert distances[16] == 0 and distances[-1] == 8 and torch.equal(distances, -distances.flip(0))
    assert bool((distances.diff() > 0).all())


@pytest.mark.parametrize(
    ("name", "shape", "found"),
    [
        ("decoder.enc_score_head.weight", (91, 64), "classes: got 91, expected 80"),
        ("decoder.enc_output.proj.weight", (60, 60), "hidden size 60"),
        ("decoder.decoder.layers.0.cross_attn.attention_weights.weight", (128, 64), "points of attention"),
    ],
)
def test_a_file_of_other_sizes_is_refused_by_name(folder: Path, name: str, shape: tuple[int, ...], found: str) -> None:
    models = folder / "models"
    tensors = load_file(models / "diffusion_models" / FILE) | {name: torch.zeros(shape)}
    save_file(tensors, models / "diffusion_models" / "odd.safetensors")
    with pytest.raises(BadModelFile, match=found):
        small_store(models).unet("odd.safetensors")


def test_it_neither_samples_nor_segments(folder: Path) -> None:
    detector = node("SAM3_Detect", model=["1", 0], image=["2", 0], threshold=0.5, refine_iterations=0,
                    individual_masks=False)  # fmt: skip
    prompt = {
        "1": node("UNETLoader", unet_name=FILE, weight_dtype="default"),
        "2": node("EmptyImage", width=16, height=16, batch_size=1, color=0),
        "5": detector,
        "6": node("MaskPreview", mask=["5", 0]),
    }
    with Engine(EngineSettings(base_directory=folder, cpu=True)) as engine, pytest.raises(PromptRejected) as refused:
        engine.check(prompt)
    (problem,) = refused.value.node_problems["5"].problems
    assert "got RT-DETR v4, which reads images and denoises nothing, expected SAM 3" in problem.details


def test_images_of_greys_are_refused_before_the_network_reads_them(store: ModelStore) -> None:
    with pytest.raises(ValueError, match="image: no colours; got 1 channels"):
        detected(store, images(1)[..., :1])
