"""Tensors that packs read themselves, as files of weights: plain ones, and ComfyUI-GGUF's quantised ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from darkroom.engine.comfy.tensor_files import as_file
from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile
from tests.engine.comfy.loading import loaded, write_pack
from tests.tiny_checkpoint import make_tiny_checkpoint


class Blocks(torch.Tensor):
    """A tensor as ComfyUI-GGUF reads it: its shape is that of the values."""

    tensor_type: int
    tensor_shape: torch.Size

    @property
    def shape(self) -> Any:  # type: ignore[override]
        return self.tensor_shape


def blocks(data: torch.Tensor, kind: int, shape: tuple[int, ...]) -> Blocks:
    made = data.as_subclass(Blocks)
    made.tensor_type, made.tensor_shape = kind, torch.Size(shape)
    return made


def q8(rows: int, factor: float) -> torch.Tensor:
    """Rows of one block of Q8_0 each: the factor in float16, and the numbers 0 to 31."""
    head = torch.tensor([factor], dtype=torch.float16).view(torch.uint8)
    return torch.cat([head, torch.arange(32, dtype=torch.int8).view(torch.uint8)]).repeat(rows, 1)


def test_quantised_tensors_stay_packed_and_give_their_values() -> None:
    file = as_file(
        "unet",
        {
            "a.weight": blocks(q8(2, 0.5), 8, (2, 32)),
            "a.bias": blocks(torch.ones(2), 0, (2,)),
            "b": blocks(torch.ones(4, dtype=torch.bfloat16).view(torch.uint8), 30, (2, 2)),
            "plain": torch.zeros(3),
            "note": "no tensor",
        },
    )
    assert isinstance(file, QuantisedFile)
    assert file.shapes == {"a.bias": (2,), "b": (2, 2), "plain": (3,), "a.weight": (2, 32)}
    assert file.tensor("a.weight").tolist() == [[number / 2 for number in range(32)]] * 2
    assert (file.tensor("b").dtype, file.tensor("b").tolist()) == (torch.bfloat16, [[1.0, 1.0], [1.0, 1.0]])
    assert type(file.tensor("a.bias")) is torch.Tensor


def test_blocks_of_a_type_that_is_not_known_are_refused() -> None:
    with pytest.raises(BadModelFile, match=r"'x' of type 16.*Q8_0"):
        as_file("unet", {"x": blocks(torch.zeros(1, 66, dtype=torch.uint8), 16, (1, 256))})


PACK = """
    import torch
    import comfy.model_patcher, comfy.ops, comfy.sd, comfy.utils, folder_paths

    class Mine(comfy.model_patcher.ModelPatcher):
        def clone(self, *args, **kwargs):
            kind, self.__class__ = self.__class__, Mine
            made = super().clone(*args, **kwargs)
            made.__class__, self.__class__ = Mine, kind
            made.size = 0
            return made

    class Ops(comfy.ops.manual_cast):
        class Linear(comfy.ops.manual_cast.Linear):
            dequant_dtype = torch.float32

    class Load:
        INPUT_TYPES = classmethod(lambda cls: {"required": {}})
        RETURN_TYPES = ("MODEL", "CLIP")
        FUNCTION = "load"

        def load(self):
            path = folder_paths.get_full_path("checkpoints", "tiny.safetensors")
            whole = comfy.utils.load_torch_file(path)
            part = lambda prefix: {
                key.removeprefix(prefix): value for key, value in whole.items() if key.startswith(prefix)
            }
            model = comfy.sd.load_diffusion_model_state_dict(
                part("model.diffusion_model."), model_options={"custom_operations": Ops}
            )
            clip = comfy.sd.load_text_encoder_state_dicts(
                state_dicts=[part("cond_stage_model.transformer.")],
                clip_type=comfy.sd.CLIPType.STABLE_DIFFUSION,
                model_options={"custom_operations": Ops, "initial_device": torch.device("cpu")},
            )
            clip.patcher = Mine.clone(clip.patcher)
            return (Mine.clone(model), clip)

    class Refused(Load):
        def load(self):
            return comfy.sd.load_diffusion_model_state_dict({}, model_options={"fp8_optimizations": True})

    NODE_CLASS_MAPPINGS = {"LoadMine": Load, "LoadRefused": Refused}
"""


def prompt(model: list[Any], clip: list[Any]) -> dict[str, Any]:
    sampled = {"seed": 1, "steps": 1, "cfg": 2.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "tiny.safetensors"}},
        "2": {"class_type": "LoadMine", "inputs": {}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": clip}},
        "4": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "5": {
            "class_type": "KSampler",
            "inputs": {"model": model, "positive": ["3", 0], "negative": ["3", 0], "latent_image": ["4", 0], **sampled},
        },
        "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
        "7": {"class_type": "SaveImage", "inputs": {"images": ["6", 0], "filename_prefix": "x"}},
    }


def test_a_pack_loads_networks_from_tensors_and_samples_with_a_patcher_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "models" / "checkpoints").mkdir(parents=True)
    make_tiny_checkpoint(tmp_path / "models" / "checkpoints")
    write_pack(tmp_path, "mine", PACK)
    with loaded(tmp_path) as packs:
        drawn = []
        for model, clip in ((["1", 0], ["1", 1]), (["2", 0], ["2", 1])):
            result = packs.run(prompt(model, clip))
            assert result.status == "success", packs.events[-1]
            shown = result.outputs["7"]["images"][0]
            with Image.open(packs.engine.settings.output_path / shown["filename"]) as image:
                drawn.append(image.tobytes())
        assert drawn[0] == drawn[1]
        refused = packs.run({"1": {"class_type": "LoadRefused", "inputs": {}}, "2": show(["1", 0])})
        assert refused.status == "error"
        assert "fp8_optimizations in model_options" in str(packs.events)


def show(value: list[Any]) -> dict[str, Any]:
    return {"class_type": "Show", "inputs": {"value": value}}
