"""Inputs of a prompt that are files to fetch."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.worker.inputs.references import find_references, replace_references, source_of
from tests.reference import REFERENCE

OBJECT_INFO: dict[str, Any] = {
    "LoadImage": {"input": {"required": {"image": [["a.png"], {"image_upload": True}]}}},
    "LoadVideo": {"input": {"required": {"file": ["COMBO", {"video_upload": True}]}}},
    "CLIPTextEncode": {"input": {"required": {"text": ["STRING", {"multiline": True}], "clip": ["CLIP"]}}},
    "LoadLatent": {"input": {"required": {"latent": [[]]}}},
    "CheckpointLoaderSimple": {"input": {"required": {"ckpt_name": [["a.safetensors"]]}}},
}
URL = "https://example.com/cat.png"


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def test_finds_files_only_where_an_input_takes_one() -> None:
    prompt = {
        "1": node("LoadImage", image=URL),
        "2": node("CLIPTextEncode", text=URL, clip=["3", 1]),
        "3": node("CheckpointLoaderSimple", ckpt_name=URL),
        "4": node("LoadLatent", latent="HTTP://example.com/x.latent"),
        "5": node("LoadVideo", file="data:video/mp4;base64,AAAA"),
        "6": node("LoadImage", image="cat.png"),
    }
    found = find_references(PromptGraph(prompt, OBJECT_INFO))
    assert [(item.node_id, item.input_name, item.source, item.media) for item in found] == [
        ("1", "image", "url", "image"),
        ("4", "latent", "url", "latent"),
        ("5", "file", "data", "file"),
    ]


@pytest.mark.parametrize(
    "broken", [None, 3, "x", {}, {"inputs": None}, {"class_type": "Nope", "inputs": {"image": URL}}]
)
def test_leaves_what_is_no_known_node_to_the_graph_check(broken: Any) -> None:
    assert find_references(PromptGraph({"1": broken}, OBJECT_INFO)) == []


def test_distinguishes_base64_from_file_names() -> None:
    data = base64.b64encode(bytes(range(200))).decode()
    assert source_of(data) == source_of(data.replace("+", "-").replace("/", "_")) == "base64"
    for name in ("cat.png", "sub/folder/" + "a" * 80 + ".png", "short", "", ["1", 0], 7, None):
        assert source_of(name) is None


def test_swaps_names_in_without_touching_the_prompt() -> None:
    prompt = {"1": node("LoadImage", image=URL), "2": node("LoadImage", image="b.png")}
    before = json.loads(json.dumps(prompt))
    [reference] = find_references(PromptGraph(prompt, OBJECT_INFO))
    swapped: dict[str, Any] = replace_references(prompt, {reference: "darkroom/x.png"})
    assert swapped["1"]["inputs"]["image"] == "darkroom/x.png" and swapped["2"] == prompt["2"]
    assert prompt == before


def test_every_upload_input_of_the_reference_server_is_known() -> None:
    info = json.loads((REFERENCE / "object_info.json").read_text())
    prompt = {name: node(name, image=URL, latent=URL, audio=URL, file=URL) for name in info}
    assert {(item.node_id, item.input_name): item.media for item in find_references(PromptGraph(prompt, info))} == {
        ("LoadImage", "image"): "image",
        ("LoadImageMask", "image"): "image",
        ("LoadImageOutput", "image"): "image",
        ("LoadLatent", "latent"): "latent",
        ("LoadAudio", "audio"): "file",
        ("LoadVideo", "file"): "file",
        ("RecordAudio", "audio"): "file",
        ("WebcamCapture", "image"): "image",
    }
