"""Inputs that name model files: by what a class declares, and of a class that declares nothing by a guess."""

from __future__ import annotations

from typing import Any

from darkroom.contract.graph.facts import FACTS_KEY, Facts
from darkroom.contract.graph.model_inputs import GUESSED_FOLDERS, ModelInputs
from darkroom.contract.graph.prompt_graph import ModelFile, model_files_in

CHECKPOINTS, LORAS = ["a.safetensors", "b.safetensors"], ["a.safetensors"]


def declared(module: str = "nodes", facts: Any = None, **inputs: Any) -> dict[str, Any]:
    found = {"input": {"required": inputs}, "python_module": module}
    return found if facts is None else {**found, FACTS_KEY: facts}


INFO = {
    "CheckpointLoaderSimple": declared(ckpt_name=[CHECKPOINTS]),
    "LoraLoader": declared(lora_name=["COMBO", {"options": LORAS}]),
    "PackLoader": declared("custom_nodes.pack", what=[CHECKPOINTS], style=[["plain", "bold"]], lora_name=["STRING"]),
    "PackLora": declared("custom_nodes.pack", second=["COMBO", {"options": LORAS}]),
    "PackWithFacts": declared("custom_nodes.pack", {"models": {"file": "unet_gguf"}}, ckpt_name=["STRING"]),
}


def folders(class_type: str, info: dict[str, Any] | None = None) -> dict[str, str]:
    return dict(ModelInputs(Facts(info), info).folders_of(class_type))


def test_a_declaration_counts_whatever_the_input_is_called() -> None:
    assert folders("CLIPVisionLoader") == {"clip_name": "clip_vision"}
    assert folders("PackWithFacts", INFO) == {"file": "unet_gguf"}
    assert folders("LatentUpscaleModelLoader") == {"model_name": "latent_upscale_models"}


def test_of_a_pack_that_declares_nothing_inputs_with_the_files_of_a_folder_are_guessed() -> None:
    assert folders("PackLoader", INFO) == {**GUESSED_FOLDERS, "what": "checkpoints"}
    assert folders("PackLora", INFO)["second"] == "loras"
    assert folders("PackLoader") == GUESSED_FOLDERS


def test_files_that_lie_in_two_folders_decide_for_neither() -> None:
    both = {**INFO, "LoraLoader": declared(lora_name=[CHECKPOINTS])}
    assert "what" not in folders("PackLoader", both)


def test_networks_are_found_by_the_folders_of_their_files() -> None:
    prompt = {
        "1": {"class_type": "PackLoader", "inputs": {"what": "a.safetensors", "style": "plain"}},
        "2": {"class_type": "PackWithFacts", "inputs": {"file": "b.gguf", "ckpt_name": "a.safetensors"}},
        "3": {"class_type": "LoraLoader", "inputs": {"lora_name": "a.safetensors", "ckpt_name": "x.safetensors"}},
        "4": {"class_type": "Unknown", "inputs": {"unet_name": "c.safetensors", "family": "large"}},
    }
    found = {file.name: file.kind for file in model_files_in(prompt, INFO)}
    assert found == {"a.safetensors": "checkpoints", "b.gguf": "diffusion_models", "c.safetensors": "diffusion_models"}
    assert model_files_in({"1": prompt["1"], "4": prompt["4"]}) == [ModelFile("diffusion_models", "c.safetensors")]
