"""Networks and injections that packs build, under ComfyUI's names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.comfy.names.comfy import ops
from darkroom.engine.comfy.names.comfy.patcher_extension import (
    PatcherInjection,
    add_wrapper_with_key,
    get_wrappers_with_key,
)
from darkroom.engine.comfy.names.comfy.sampler_helpers import get_additional_models
from darkroom.engine.comfy.names.comfy.unet_weight_names import TRANSFORMER_BLOCKS, UNET_MAP_RESNET
from tests.engine.nodes.small_store import small_store
from tests.tiny_checkpoint import make_tiny_checkpoint

LAYERS = {
    "Linear": ((4, 3), (2, 4)),
    "Conv1d": ((4, 3, 3), (2, 4, 8)),
    "Conv2d": ((4, 3, 3), (2, 4, 8, 8)),
    "Conv3d": ((4, 3, 3), (1, 4, 5, 5, 5)),
    "ConvTranspose1d": ((4, 3, 3), (1, 4, 5)),
    "ConvTranspose2d": ((4, 3, 3), (1, 4, 5, 5)),
    "GroupNorm": ((2, 4), (1, 4, 5, 5)),
    "LayerNorm": ((4,), (2, 4)),
    "RMSNorm": ((4,), (2, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_as_torchs_does_and_a_casting_one_in_the_inputs_type(name: str) -> None:
    arguments, shape = LAYERS[name]
    torchs = getattr(torch.nn, name)(*arguments)
    x = torch.rand(shape)
    for kind in (ops.disable_weight_init, ops.manual_cast):
        layer = getattr(kind, name)(*arguments)
        layer.load_state_dict(torchs.state_dict())
        assert torch.allclose(layer(x), torchs(x), atol=1e-6)
    assert layer.half()(x).dtype is torch.float32
    assert isinstance(layer, getattr(ops.disable_weight_init, name))


def test_functions_over_a_weight_are_called_in_turn() -> None:
    layer = ops.disable_weight_init.Linear(2, 2, bias=False)
    torch.nn.init.ones_(layer.weight)
    layer.weight_function = [lambda weight: weight * 3, lambda weight: weight + 1]
    assert layer(torch.ones(1, 2)).tolist() == [[8.0, 8.0]]


def test_an_embedding_comes_in_the_type_that_is_asked_for() -> None:
    layer = ops.manual_cast.Embedding(3, 2)
    torch.nn.init.ones_(layer.weight)
    assert layer(torch.tensor([1]), out_dtype=torch.float16).dtype is torch.float16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    models = tmp_path_factory.mktemp("models")
    make_tiny_checkpoint(models / "checkpoints")
    return small_store(models).checkpoint("tiny.safetensors")[0]


def test_the_tables_name_the_weights_of_the_network(model: Any) -> None:
    names = set(model.model.diffusion_model.state_dict())
    block = "input_blocks.1.1.transformer_blocks.0."
    assert {name.removeprefix(block) for name in names if name.startswith(block)} == TRANSFORMER_BLOCKS
    assert {name.removeprefix("input_blocks.1.0.") for name in names if name.startswith("input_blocks.1.0.")} <= set(
        UNET_MAP_RESNET
    )


def test_an_injection_is_there_while_its_clone_samples(model: Any) -> None:
    told: list[str] = []
    clone = model.clone()
    clone.set_injections(
        "mine", [PatcherInjection(lambda patcher: told.append("in"), lambda patcher: told.append("out"))]
    )
    for each in (model, clone.clone()):
        with each.in_use():
            each.pre_run()
            told.append("sampling")
            each.cleanup()
    assert told == ["sampling", "in", "sampling", "out"]


def test_the_models_of_conditions_are_found_once_each() -> None:
    class Control:
        def get_models(self) -> list[str]:
            return ["net", "adapter"]

        def inference_memory_requirements(self, dtype: torch.dtype) -> int:
            return 7

    control = Control()
    conds: dict[str, list[dict[str, Any]]] = {
        "positive": [{"control": control}, {"gligen": ("position", "boxes", [])}],
        "negative": [{"control": control, "additional_models": ["extra"]}, {}],
    }
    assert get_additional_models(conds, torch.float32) == (["net", "adapter", "boxes", "extra"], 7)


def test_wrappers_are_found_by_their_key() -> None:
    options: dict[str, Any] = {}
    add_wrapper_with_key("sampler_sample", "mine", repr, transformer_options=options, is_model_options=True)
    assert get_wrappers_with_key("sampler_sample", "mine", options, is_model_options=True) == [repr]
    assert get_wrappers_with_key("sampler_sample", "other", options, is_model_options=True) == []
