"""Two engines in one process: each samples with tables of its own, and one at a time has ComfyUI's import names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.packs.loader import CustomNodes
from darkroom.engine.diffusion.choices import current_choices
from darkroom.engine.engine import Engine
from darkroom.engine.settings import EngineSettings
from tests.engine.comfy.loading import Loaded, loaded, write_pack
from tests.tiny_checkpoint import make_tiny_checkpoint

KEEP = """
    class Keep:
        INPUT_TYPES = classmethod(lambda cls: {"required": {"latent": ("LATENT",)}})
        RETURN_TYPES = ()
        FUNCTION = "go"
        OUTPUT_NODE = True

        def go(self, latent):
            return {"ui": {"kept": latent["samples"].flatten().tolist()}}

    NODE_CLASS_MAPPINGS = {"Keep": Keep}
"""
CHANGES = """
    import torch
    import comfy.samplers
    import comfy.k_diffusion.sampling

    comfy.samplers.cfg_function = lambda model, cond_pred, *args, **kwargs: torch.full_like(cond_pred, 3.0)
    comfy.samplers.KSampler.SAMPLERS.append("mine")
    comfy.samplers.SCHEDULER_NAMES.append("levels")
    comfy.k_diffusion.sampling.sample_mine = lambda model, x, *args, **kwargs: x
    NODE_CLASS_MAPPINGS = {}
"""


@pytest.fixture
def changed(tmp_path: Path) -> Iterator[Loaded]:
    """An engine whose pack changes every table of sampling."""
    base = tmp_path / "changed"
    make_tiny_checkpoint(base / "models" / "checkpoints")
    write_pack(base, "keep.py", KEEP)
    write_pack(base, "changes.py", CHANGES)
    with loaded(base) as made:
        assert made.reports["changes"].error is None
        yield made


@pytest.fixture
def plain(changed: Loaded) -> Iterator[Engine]:
    """A second engine of the same models, without custom nodes."""
    with Engine(EngineSettings(base_directory=changed.engine.settings.base_path, cpu=True)) as engine:
        engine.catalogue.add(changed.engine.catalogue["Keep"])
        yield engine


def graph() -> dict[str, Any]:
    sampled = {
        "model": ["1", 0], "positive": ["2", 0], "negative": ["2", 0], "seed": 7, "steps": 1, "cfg": 5.0,
        "sampler_name": "euler", "scheduler": "karras", "denoise": 1.0, "latent_image": ["3", 0],
    }  # fmt: skip
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "tiny.safetensors"}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a fox"}},
        "3": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "4": {"class_type": "KSampler", "inputs": sampled},
        "5": {"class_type": "Keep", "inputs": {"latent": ["4", 0]}},
    }


def kept(made: Loaded) -> list[float]:
    result = made.run(graph())
    assert result.status == "success", made.events[-1]
    values: list[float] = result.outputs["5"]["kept"]
    return values


def test_a_packs_functions_are_called_by_its_own_engine_alone(changed: Loaded, plain: Engine) -> None:
    replaced = kept(changed)
    assert max(replaced) - min(replaced) < 0.01  # of the constant that guidance gives
    own = kept(Loaded(plain, {}))
    assert max(own) - min(own) > 0.1
    assert kept(changed) == replaced


def test_a_packs_samplers_and_schedules_are_offered_by_its_own_engine_alone(changed: Loaded, plain: Engine) -> None:
    for engine, is_offered in ((changed.engine, True), (plain, False)):
        inputs = engine.object_info("KSampler")["KSampler"]["input"]["required"]
        assert ("mine" in inputs["sampler_name"][0]) is is_offered
        assert ("levels" in inputs["scheduler"][0]) is is_offered
        assert ("mine" in engine.sampling.choices.functions) is is_offered
    assert "mine" not in current_choices().samplers


def test_one_engine_at_a_time_loads_custom_nodes(changed: Loaded, plain: Engine) -> None:
    with pytest.raises(RuntimeError, match="belong to another engine"):
        CustomNodes(plain, [])
    assert HOST.get().engine is changed.engine
    changed.engine.close()
    assert not HOST.is_set
    CustomNodes(plain, [])
    assert HOST.get().engine is plain


def test_what_a_pack_changes_in_the_import_names_ends_with_its_engine(changed: Loaded, plain: Engine) -> None:
    import comfy.samplers  # served while packs are loaded

    first = comfy.samplers
    changed.engine.close()
    CustomNodes(plain, [])

    import comfy.samplers as second  # served again

    assert second is not first
    assert "mine" not in second.KSampler.SAMPLERS
    assert second.cfg_function is not first.cfg_function
