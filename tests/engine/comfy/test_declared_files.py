"""A pack's input that offers the files of a folder says by it which folder's files it names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from darkroom.contract.graph.facts import Facts
from darkroom.contract.graph.prompt_graph import ModelFile, model_files_in
from darkroom.engine.models.files.prefetch import files_of
from tests.engine.comfy.loading import loaded, write_pack

PACK = """
    import folder_paths

    class Loader:
        @classmethod
        def INPUT_TYPES(cls):
            return {
                "required": {"network": (folder_paths.get_filename_list("unet"), {"tooltip": "a file"})},
                "optional": {
                    "style": (["None"] + folder_paths.get_filename_list("loras"),),
                    "eyes": ("COMBO", {"options": folder_paths.get_filename_list("clip_vision") + ["none"]}),
                    "ckpt_name": (["fast", "slow"],),
                },
            }

        RETURN_TYPES = ("MODEL",)
        FUNCTION = "load"

        def load(self, **inputs):
            return (None,)

    class Broken(Loader):
        @classmethod
        def INPUT_TYPES(cls):
            raise ValueError("no folder")

    NODE_CLASS_MAPPINGS = {"PackLoader": Loader, "PackBroken": Broken}
"""
KINDS = ("diffusion_models", "loras", "clip_vision")


def test_the_folders_are_reported_and_read_from_the_lists(tmp_path: Path) -> None:
    paths = {kind: tmp_path / "models" / kind / f"{kind}.safetensors" for kind in KINDS}
    for path in paths.values():
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\0")
    inputs: dict[str, Any] = {"network": "diffusion_models.safetensors", "style": "None", "ckpt_name": "fast"}
    prompt = {
        "1": {"class_type": "PackLoader", "inputs": {**inputs, "eyes": "clip_vision.safetensors"}},
        "2": {"class_type": "PackBroken", "inputs": {"ckpt_name": "gone.safetensors"}},
    }
    write_pack(tmp_path, "declares.py", PACK)
    with loaded(tmp_path) as made:
        info = made.engine.object_info()
        declared = info["PackLoader"]["input"]
        assert declared["required"]["network"] == [["diffusion_models.safetensors"], {"tooltip": "a file"}]
        assert declared["optional"]["style"] == [["None", "loras.safetensors"]]
        assert Facts(info).of("PackLoader").models == {
            "network": "diffusion_models", "style": "loras", "eyes": "clip_vision",
        }  # fmt: skip
        assert model_files_in(prompt, info)[:1] == [ModelFile("diffusion_models", "diffusion_models.safetensors")]
        find_facts = partial(made.engine.catalogue.facts, environment=made.engine.environment)
        assert files_of(prompt, made.engine.folders, find_facts) == [paths["clip_vision"], paths["diffusion_models"]]
