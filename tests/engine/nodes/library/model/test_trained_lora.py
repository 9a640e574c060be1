"""Nodes for a LoRA that was trained in the same workflow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from darkroom.engine.images.line_plot import HEIGHT, MARGIN, WIDTH, line_plot
from darkroom.engine.nodes.library.model.trained_lora import lora_model_loader, loss_graph, save_lora
from tests.engine.nodes.small_store import node_context, small_store
from tests.tiny_checkpoint import make_tiny_checkpoint


def test_a_lora_is_saved_under_a_name_with_its_steps(tmp_path: Path) -> None:
    context = node_context(small_store(tmp_path), tmp_path)
    lora = {"x.lora_up.weight": torch.ones(2, 1, dtype=torch.bfloat16), "x.lora_down.weight": torch.ones(3, 1).T}
    save_lora(context, lora=lora, prefix="loras/mine")
    save_lora(context, lora=lora, prefix="loras/mine", steps=16)
    first, second = sorted((tmp_path / "loras").glob("*.safetensors"))
    assert (first.name, second.name) == ("mine_00001_.safetensors", "mine_16_steps_00001_.safetensors")
    stored = load_file(second)
    assert {name: tensor.dtype for name, tensor in stored.items()} == {name: item.dtype for name, item in lora.items()}
    assert all(torch.equal(stored[name], tensor) for name, tensor in lora.items())


def test_a_lora_patches_a_clone_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    make_tiny_checkpoint(tmp_path / "checkpoints")
    store = small_store(tmp_path)
    model = store.checkpoint("tiny.safetensors")[0]
    key = "diffusion_model.input_blocks.0.0.bias"
    before = model.weights.original_weight(key).clone()
    lora = {"diffusion_model.input_blocks.0.0.diff_b": torch.ones_like(before)}
    context = node_context(store)
    assert lora_model_loader(context, model=model, lora=lora, strength_model=0.0) is model
    patched = lora_model_loader(context, model=model, lora=lora, strength_model=0.5)
    with patched.in_use():
        assert torch.allclose(patched.weights.current_weight(key), before + 0.5)
    assert not model.patches


def test_losses_are_drawn_from_the_largest_down_to_the_least() -> None:
    pixels = line_plot([4.0, 2.0, 0.0, 0.0], x_label="Steps", y_label="Loss")
    assert pixels.shape == (HEIGHT + MARGIN, WIDTH + MARGIN, 3)
    blue = torch.tensor([0.0, 0.0, 1.0])
    assert torch.equal(pixels[HEIGHT // 2, MARGIN + WIDTH // 4], blue)  # half of the span at the second of four
    assert torch.equal(pixels[10, MARGIN + WIDTH // 2], torch.ones(3))
    with pytest.raises(ValueError, match="nothing to draw"):
        line_plot([], x_label="", y_label="")


def test_the_plot_is_a_temporary_image(tmp_path: Path) -> None:
    context = node_context(small_store(tmp_path), tmp_path)
    shown = loss_graph(context, loss={"loss": [2.0, 2.0]}, prompt={"1": {}}, extra_pnginfo=None).ui["images"][0]
    context.files.join()
    with Image.open(tmp_path / shown["filename"]) as image:
        assert image.size == (WIDTH + MARGIN, HEIGHT + MARGIN)
        assert image.info["prompt"] == '{"1": {}}'
    assert shown["type"] == "temp"
    with pytest.raises(ValueError, match="got no losses"):
        loss_graph(context, loss={"loss": []})
