"""Packs that build controls of their own on ComfyUI's classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.engine.events import RunFailed
from tests.engine.comfy.loading import Loaded, loaded, write_pack
from tests.flow.small_models import CONTROL_NET, write_small_models
from tests.tiny_checkpoint import make_tiny_checkpoint

PACK = """
    import comfy.controlnet
    import comfy.utils
    import folder_paths
    from comfy.controlnet import ControlBase, ControlNet, StrengthType, T2IAdapter

    calls = []

    class Mine(ControlNet):
        def control_merge(self, control, control_prev, output_dtype):
            calls.append(sorted(control))
            for additions in control.values():
                for addition in additions:
                    addition *= {factor}
            return super().control_merge(control, control_prev, output_dtype)

        def copy(self):
            return Mine.of_vanilla(self)

        @staticmethod
        def of_vanilla(net):
            mine = Mine(
                control_model=net.control_model, global_average_pooling=net.global_average_pooling,
                compression_ratio=net.compression_ratio, latent_format=net.latent_format, load_device=net.load_device,
                manual_cast_dtype=net.manual_cast_dtype, extra_conds=net.extra_conds, strength_type=net.strength_type,
                concat_mask=net.concat_mask, preprocess_image=net.preprocess_image,
            )
            net.copy_to(mine)
            mine.control_model_wrapped = net.control_model_wrapped.clone()
            return mine

    class LoadMine:
        INPUT_TYPES = classmethod(lambda cls: {{"required": {{"name": ("STRING", {{}})}}}})
        RETURN_TYPES = ("CONTROL_NET",)
        FUNCTION = "go"

        def go(self, name):
            path = folder_paths.get_full_path("controlnet", name)
            data, read = comfy.utils.load_torch_file(path, safe_load=True), comfy.utils.load_torch_file

            def given(*args, **kwargs):
                comfy.utils.load_torch_file = read
                calls.append("read")
                return {given}

            try:
                comfy.utils.load_torch_file = given
                net = comfy.controlnet.load_controlnet(path)
            finally:
                comfy.utils.load_torch_file = read
            assert type(net) == ControlNet and isinstance(net, ControlBase) and not isinstance(net, T2IAdapter)
            return (Mine.of_vanilla(net),)

    class Called:
        INPUT_TYPES = classmethod(lambda cls: {{"required": {{"after": ("LATENT",)}}}})
        RETURN_TYPES = ("*",)
        FUNCTION = "go"

        def go(self, after):
            return ([calls, [round(float(value), 4) for value in after["samples"].flatten()]],)

    NODE_CLASS_MAPPINGS = {{"LoadMine": LoadMine, "Called": Called}}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "models"
    make_tiny_checkpoint(folder / "checkpoints")
    write_small_models(folder)
    return folder


def _pack(base: Path, models: Path, factor: float = 1.0, given: str = "data") -> None:
    (base / "models").symlink_to(models)
    write_pack(base, "mine.py", PACK.format(factor=factor, given=given))


def _drawn(made: Loaded, loader: str, **inputs: Any) -> str:
    """Return the calls, and the latent that a control of this loader has influenced."""
    sampled = {
        "model": ["1", 0], "positive": ["6", 0], "negative": ["6", 1], "seed": 7, "steps": 1, "cfg": 5.0,
        "sampler_name": "euler", "scheduler": "karras", "denoise": 1.0, "latent_image": ["4", 0],
    }  # fmt: skip
    applied = {"positive": ["2", 0], "negative": ["2", 0], "control_net": ["5", 0], "image": ["3", 0],
               "strength": 0.8, "start_percent": 0.0, "end_percent": 1.0}  # fmt: skip
    result = made.run(
        {
            "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "tiny.safetensors"}},
            "2": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a fox"}},
            "3": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 900}},
            "4": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
            "5": {"class_type": loader, "inputs": inputs},
            "6": {"class_type": "ControlNetApplyAdvanced", "inputs": applied},
            "7": {"class_type": "KSampler", "inputs": sampled},
            "8": {"class_type": "Called", "inputs": {"after": ["7", 0]}},
            "9": {"class_type": "Show", "inputs": {"value": ["8", 0]}},
        }
    )
    assert result.status == "success", made.events[-1]
    text: str = result.outputs["9"]["value"][0]
    return text


def test_a_control_made_of_the_engines_steers_as_that_does(tmp_path: Path, models: Path) -> None:
    _pack(tmp_path, models)
    with loaded(tmp_path) as made:
        vanilla = _drawn(made, "ControlNetLoader", control_net_name=CONTROL_NET)
        mine = _drawn(made, "LoadMine", name=CONTROL_NET)
    assert vanilla.startswith("[[], ") and mine.startswith("[['read', ['middle', 'output']]")
    assert vanilla.rpartition("[")[2] == mine.rpartition("[")[2]


def test_what_a_pack_does_to_the_additions_counts(tmp_path: Path, models: Path) -> None:
    _pack(tmp_path, models, factor=0.0)
    with loaded(tmp_path) as made:
        vanilla = _drawn(made, "ControlNetLoader", control_net_name=CONTROL_NET)
        mine = _drawn(made, "LoadMine", name=CONTROL_NET)
    assert vanilla.rpartition("[")[2] != mine.rpartition("[")[2]


def test_another_files_tensors_in_the_place_of_a_controls_are_refused(tmp_path: Path, models: Path) -> None:
    _pack(tmp_path, models, given="{}")
    with loaded(tmp_path) as made:
        with pytest.raises(AssertionError):
            _drawn(made, "LoadMine", name=CONTROL_NET)
        failed = made.events[-1]
        assert isinstance(failed, RunFailed) and "another file's tensors" in failed.exception_message
