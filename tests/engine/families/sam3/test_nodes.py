"""SAM 3's nodes: what they refuse, and videos in pieces. `tests/parity` has their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from darkroom.contract.errors import Problem, PromptRejected
from darkroom.engine.engine import Engine
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.sam3.nodes.detection import sam3_detect
from darkroom.engine.families.sam3.nodes.tracks import sam3_track_to_mask, sam3_video_track
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.models.store import ModelStore
from darkroom.engine.models.vision_model import VisionModel
from darkroom.engine.settings import EngineSettings
from darkroom.engine.text.sam3 import descriptions_of
from tests.engine.nodes.small_store import node_context, small_store
from tests.engine.simulated_card import node
from tests.parity.models import read_layouts, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both small files, and a checkpoint that denoises."""
    base = tmp_path_factory.mktemp("sam3")
    for layout in read_layouts():
        if layout.family == "sam3":
            write_model(layout, base / "models")
    write_random_checkpoint(base / "models" / "checkpoints" / "sd15.safetensors", family=registry.default_family())
    return base


@pytest.fixture(scope="module")
def store(folder: Path) -> ModelStore:
    return small_store(folder / "models")


@pytest.fixture(scope="module")
def model(store: ModelStore) -> VisionModel:
    found = store.checkpoint("sam31_small.safetensors")[0]
    assert isinstance(found, VisionModel)
    return found


def images(count: int = 1) -> torch.Tensor:
    return torch.rand(count, 40, 56, 3, generator=torch.Generator().manual_seed(0))


def detected(model: Any, store: ModelStore, **inputs: Any) -> Any:
    given = {"conditioning": None, "bboxes": None, "positive_coords": None, "negative_coords": None, **inputs}
    return sam3_detect(
        node_context(store),
        model=model,
        image=images(),
        threshold=0.5,
        refine_iterations=1,
        individual_masks=False,
        **given,
    )


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        ({"positive_coords": "{"}, "positive_coords"),
        ({"negative_coords": '[{"x": 1}]'}, "negative_coords"),
        ({"positive_coords": '[{"x": Infinity, "y": 1}]'}, "positive_coords"),
        ({"positive_coords": "[" + ",".join(['{"x": 1, "y": 1}'] * 1025) + "]"}, "positive_coords"),
        ({"bboxes": [{"x": 0, "y": 0, "width": 4, "height": 4}] * 1025}, "bboxes"),
        ({"bboxes": [{"x": 0}]}, "bboxes"),
        ({"conditioning": [[torch.zeros(1, 77, 768), {}]]}, "conditioning"),
        ({"conditioning": [[torch.zeros(1, 5000, 64), {}]]}, "conditioning"),
    ],
)
def test_other_prompts_are_refused_by_the_input(
    model: VisionModel, store: ModelStore, inputs: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=name):
        detected(model, store, **inputs)


def test_a_model_that_denoises_is_refused_by_both_names(store: ModelStore) -> None:
    with pytest.raises(ValueError, match="model: got Stable Diffusion 1"):
        detected(store.checkpoint("sd15.safetensors")[0], store)


def test_a_network_that_reads_images_has_no_sampling(model: VisionModel) -> None:
    with pytest.raises(ValueError, match="SAM 3, which reads images and denoises nothing"):
        model.get_model_object("model_sampling")


def tracked(model: Any, store: ModelStore, frames: Any, **inputs: Any) -> Any:
    return sam3_video_track(
        node_context(store),
        images=frames,
        model=model,
        detection_threshold=0.5,
        max_objects=4,
        detect_interval=1,
        **inputs,
    )


def test_a_video_in_pieces_has_the_objects_of_a_whole_one(model: VisionModel, store: ModelStore) -> None:
    frames = images(3)
    stream = FrameStream((3, 40, 56, 3), lambda: iter(torch.split(frames, 2)))
    mask = torch.zeros(2, 40, 56)
    mask[0, 5:20, 5:30] = mask[1, 20:36, 30:50] = 1
    whole, pieces = (tracked(model, store, item, initial_mask=mask) for item in (frames, stream))
    assert whole["packed_masks"].shape == (3, 2, 1008, 126) and whole["orig_size"] == (40, 56)
    assert torch.equal(whole["packed_masks"], pieces["packed_masks"])
    first = sam3_track_to_mask(node_context(store), track_data=whole, object_indices="0")[0]
    assert (first > 0.5).equal(mask[0] > 0.5)
    none = sam3_track_to_mask(node_context(store), track_data=whole, object_indices="7")
    assert none.shape == (3, 40, 56) and not none.any()


@pytest.mark.parametrize(
    ("inputs", "name"),
    [({}, "initial_mask, conditioning"), ({"initial_mask": torch.zeros(65, 8, 8)}, "initial_mask: got 65 masks")],
)
def test_a_video_without_objects_or_with_too_many_is_refused(
    model: VisionModel, store: ModelStore, inputs: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=name):
        tracked(model, store, images(), **inputs)


def test_sam_3_itself_follows_nothing(store: ModelStore) -> None:
    other = store.checkpoint("sam3_small.safetensors")[0]
    with pytest.raises(ValueError, match=r"expected SAM 3\.1"):
        tracked(other, store, images(), initial_mask=torch.ones(1, 8, 8))


def test_a_file_of_sizes_that_have_no_heads_is_refused_by_name(folder: Path) -> None:
    path = folder / "models" / "checkpoints" / "odd.safetensors"
    layout = next(item for item in read_layouts() if item.name == "sam3_small")
    tensors = {name: torch.zeros(1) for name in layout.tensors}
    tensors["detector.backbone.language_backbone.resizer.weight"] = torch.zeros(40, 64)
    tensors["detector.backbone.vision_backbone.trunk.patch_embed.proj.weight"] = torch.zeros(64, 3, 14, 14)
    tensors["detector.backbone.vision_backbone.trunk.blocks.0.mlp.fc1.weight"] = torch.zeros(8, 64)
    save_file(tensors, path)
    with pytest.raises(BadModelFile, match="hidden size 40"):
        small_store(folder / "models").checkpoint("odd.safetensors")


# --- prompts ---


SAVING = {
    "KSampler": node("SaveLatent", samples=["5", 0], filename_prefix="a"),
    "SAM3_Detect": node("MaskPreview", mask=["5", 0]),
    "SAM3_VideoTrack": node("SAM3_TrackPreview", track_data=["5", 0], opacity=0.5, fps=8.0),
}


def workflow(checkpoint: str, reader: dict[str, Any]) -> dict[str, Any]:
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name=checkpoint),
        "2": node("EmptyImage", width=16, height=16, batch_size=1, color=0),
        "3": node("CLIPTextEncode", clip=["1", 1], text="a boat"),
        "4": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "5": reader,
        "6": SAVING[reader["class_type"]],
    }


SAMPLER = node(
    "KSampler", model=["1", 0], positive=["3", 0], negative=["3", 0], latent_image=["4", 0], seed=1, steps=1, cfg=1.0,
    sampler_name="euler", scheduler="simple", denoise=1.0,
)  # fmt: skip
DETECTOR = node(
    "SAM3_Detect", model=["1", 0], image=["2", 0], threshold=0.5, refine_iterations=0, individual_masks=False
)


TRACKER = node(
    "SAM3_VideoTrack", model=["1", 0], images=["2", 0], conditioning=["3", 0], detection_threshold=0.5, max_objects=4,
    detect_interval=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with Engine(EngineSettings(base_directory=folder, cpu=True)) as engine:
        yield engine


def refusal(engine: Engine, prompt: dict[str, Any]) -> Problem:
    """Return the only problem of node 5."""
    with pytest.raises(PromptRejected) as refused:
        engine.check(prompt)
    (problem,) = refused.value.node_problems["5"].problems
    return problem


@pytest.mark.parametrize(
    ("checkpoint", "reader", "found"),
    [
        ("sam31_small.safetensors", SAMPLER, "got SAM 3.1, which reads images"),
        ("sd15.safetensors", DETECTOR, "got another network, expected SAM 3"),
        ("sd15.safetensors", TRACKER, "got another network, expected SAM 3.1"),
        ("sam3_small.safetensors", TRACKER, "got SAM 3, which reads images and denoises nothing, expected SAM 3.1"),
    ],
)
def test_a_model_of_the_wrong_kind_is_refused_before_the_run(
    engine: Engine, checkpoint: str, reader: dict[str, Any], found: str
) -> None:
    problem = refusal(engine, workflow(checkpoint, reader))
    assert found in problem.details and problem.extra_info["input_name"] == "model"
    engine.check(workflow("sd15.safetensors" if reader is SAMPLER else "sam31_small.safetensors", reader))


@pytest.mark.parametrize("reader", [DETECTOR, TRACKER], ids=["detect", "track"])
def test_a_text_of_another_models_encoder_is_refused_before_the_run(engine: Engine, reader: dict[str, Any]) -> None:
    prompt = workflow("sam31_small.safetensors", {**reader, "inputs": {**reader["inputs"], "conditioning": ["3", 0]}})
    engine.check(prompt)
    prompt["7"] = node("CheckpointLoaderSimple", ckpt_name="sd15.safetensors")
    prompt["3"]["inputs"]["clip"] = ["7", 1]
    problem = refusal(engine, prompt)
    assert "expected the text encoder of SAM 3" in problem.details
    assert problem.extra_info == {"input_name": "conditioning", "received_value": "sd15.safetensors"}


def test_a_video_without_anything_to_follow_is_refused_before_the_run(engine: Engine) -> None:
    given = {name: value for name, value in TRACKER["inputs"].items() if name != "conditioning"}
    problem = refusal(engine, workflow("sam31_small.safetensors", {**TRACKER, "inputs": given}))
    assert problem.type == "required_input_missing"
    assert problem.details == "initial_mask, conditioning: got none of them, expected one"


@pytest.mark.parametrize(
    ("name", "value"),
    [("positive_coords", "[3]"), ("negative_coords", '[{"x": NaN, "y": 1}]'), ("bboxes", [{"x": 1, "y": 2}])],
)
def test_prompts_that_are_given_as_values_are_refused_before_the_run(engine: Engine, name: str, value: object) -> None:
    reader = {**DETECTOR, "inputs": {**DETECTOR["inputs"], name: value}}
    problem = refusal(engine, workflow("sam31_small.safetensors", reader))
    assert problem.extra_info["input_name"] == name


# --- texts ---


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a (red) ball", [("a red ball", 1)]),
        ("cat: 3, dog,, tree:0", [("cat", 3), ("dog", 1), ("tree", 1)]),
        ("", []),
    ],
)
def test_descriptions_have_the_number_that_is_wanted(text: str, found: list[tuple[str, int]]) -> None:
    assert descriptions_of(text) == found


@pytest.mark.parametrize("text", ["cat: 1.2.3", f"cat: {'9' * 400}", ",".join("a" * 257)])
def test_other_numbers_and_too_many_descriptions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="text: got"):
        descriptions_of(text)


def test_several_descriptions_are_options_of_one_conditioning(store: ModelStore) -> None:
    clip = store.checkpoint("sam31_small.safetensors")[1]
    assert clip is not None
    ((tokens, options),) = clip.encode_from_tokens_scheduled(clip.tokenize("cat: 3, dog"))
    assert tokens.shape == (1, 32, 64) and options["attention_mask"].sum() == 3
    assert [item["max_detections"] for item in options["sam3_multi_cond"]] == [3, 1]


def test_a_long_text_is_read_in_time_linear_in_its_length() -> None:
    text = "a" + " " * 300_000 + "b"  # minutes where blanks are tried again for each one
    assert descriptions_of(text) == [(text, 1)]
