"""Adapters of every kind for one weight, as LoRA files have them, and a recorder of what ComfyUI makes of each.

    PYTHONPATH=.:COMFYUI_DIR python -m tests.engine.adapters.adapter_cases

writes `reference.safetensors` beside this file: the changed weight of every case and strength. It needs a checkout of
ComfyUI 0.3.64 and a Python with its requirements. `O` outputs, `I` inputs, `r` rank.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.parity.weights import draw_noise

REFERENCE = Path(__file__).with_name("reference.safetensors")
STRENGTHS = (1.0, -0.7)

O, I, R = 8, 6, 4  # noqa: E741 - the letters of the formulas
KERNEL = (2, 2)
WEIGHTS: Mapping[str, tuple[int, ...]] = {"linear": (O, I), "conv": (O, I, *KERNEL)}

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class AdapterCase:
    """The tensors of an adapter (ending -> shape) of a weight."""

    name: str
    weight: tuple[int, ...]
    tensors: Shapes
    alpha: float | None = None

    def make_weight(self) -> torch.Tensor:
        return _drawn(self.name, "weight", self.weight)

    def make_lora(self) -> dict[str, torch.Tensor]:
        """Draw a LoRA file for the weight called `x`."""
        lora = {f"x{ending}": _drawn(self.name, ending, shape) for ending, shape in self.tensors.items()}
        return lora if self.alpha is None else lora | {"x.alpha": torch.tensor(self.alpha)}


def _drawn(name: str, key: str, shape: tuple[int, ...]) -> torch.Tensor:
    drawn = torch.from_numpy(draw_noise(name, key, shape)) * 0.3
    return drawn.abs() + 1.0 if key.endswith((".dora_scale", ".rescale")) else drawn


def cases() -> Iterator[AdapterCase]:
    """Yield every kind on a linear layer and a convolution, with and without alpha and a DoRA scale."""
    for layer, weight in WEIGHTS.items():
        ones = (1,) * (len(weight) - 2)
        scales: Mapping[str, Shapes] = {
            "plain": {}, "dora_rows": {".dora_scale": (O, 1, *ones)}, "dora_columns": {".dora_scale": (1, I, *ones)},
        }  # fmt: skip
        for kind, tensors in _kinds(weight).items():
            for scaled, scale in scales.items():
                for alpha in (None, 2.0):
                    name = f"{kind}.{layer}.{scaled}.{'no_alpha' if alpha is None else 'alpha'}"
                    yield AdapterCase(name, weight, {**tensors, **scale}, alpha)
    yield AdapterCase("glora_square", (I, I), _glora(I, I, I), 2.0)
    yield AdapterCase("glora_square_old", (I, I), _old_glora(I, I), 2.0)
    yield AdapterCase("dora_misfit", (O, I), {**_lora((O, I)), ".dora_scale": (5, 1)})
    yield AdapterCase("lora_misfit", (O, I), {".lora_up.weight": (O + 1, R), ".lora_down.weight": (R, I)})
    yield AdapterCase("diff", (O, I), {".diff": (O, I)})
    yield AdapterCase("diff_misfit", (O, I), {".diff": (O, I + 1)})
    yield AdapterCase("norm", (O,), {".w_norm": (O,), ".b_norm": (O,)})
    yield AdapterCase("set", (O, I), {".set_weight": (O, I)})


def _kinds(weight: tuple[int, ...]) -> dict[str, Shapes]:
    kernel, columns = weight[2:], int(torch.Size(weight[1:]).numel())
    kinds: dict[str, Shapes] = {
        "lora": _lora(weight),
        "loha": {".hada_w1_a": (O, R), ".hada_w1_b": (R, columns), ".hada_w2_a": (O, R), ".hada_w2_b": (R, columns)},
        "lokr_whole": {".lokr_w1": (2, 2), ".lokr_w2": (O // 2, I // 2, *kernel)},
        "lokr_low": {
            ".lokr_w1_a": (2, 3), ".lokr_w1_b": (3, 2), ".lokr_w2_a": (O // 2, R), ".lokr_w2_b": (R, columns // 2),
        },
        "lokr_first_low": {".lokr_w1_a": (2, 3), ".lokr_w1_b": (3, 2), ".lokr_w2": (O // 2, I // 2, *kernel)},
        "glora": _glora(O, I, columns),
        "glora_old": _old_glora(O, columns),
        "oft": {".oft_blocks": (2, 4, 4)},
        "oft_rescaled": {".oft_blocks": (2, 4, 4), ".rescale": (O, 1, *[1] * len(kernel))},
        "boft": {".oft_blocks": (2, 2, 4, 4)},
        "boft_rescaled": {".oft_blocks": (2, 2, 4, 4), ".rescale": (O, 1, *[1] * len(kernel))},
    }  # fmt: skip
    if kernel:
        core = (R, R, *kernel)
        kinds["locon"] = {".lora_up.weight": (O, R, 1, 1), ".lora_mid.weight": core, ".lora_down.weight": (R, I, 1, 1)}
        kinds["loha_tucker"] = {
            ".hada_w1_a": (R, O), ".hada_w1_b": (R, I), ".hada_w2_a": (R, O), ".hada_w2_b": (R, I),
            ".hada_t1": core, ".hada_t2": core,
        }  # fmt: skip
        kinds["lokr_tucker"] = {
            ".lokr_w1": (2, 2), ".lokr_w2_a": (R, O // 2), ".lokr_w2_b": (R, I // 2), ".lokr_t2": core,
        }  # fmt: skip
    return kinds


def _lora(weight: tuple[int, ...]) -> Shapes:
    kernel = weight[2:]
    return {".lora_up.weight": (O, R, *[1] * len(kernel)), ".lora_down.weight": (R, I, *kernel)}


def _glora(outputs: int, inputs: int, columns: int) -> Shapes:
    return {
        ".a1.weight": (inputs, R), ".a2.weight": (R, inputs), ".b1.weight": (outputs, R), ".b2.weight": (R, columns),
    }  # fmt: skip


def _old_glora(outputs: int, columns: int) -> Shapes:
    return {
        ".a1.weight": (R, columns), ".a2.weight": (columns, R), ".b1.weight": (R, columns), ".b2.weight": (outputs, R),
    }  # fmt: skip


def record(lora: Any) -> dict[str, torch.Tensor]:
    """Return the changed weights of ComfyUI (its module `comfy.lora`) by case and strength."""
    results = {}
    for case in cases():
        for strength in STRENGTHS:
            patch = lora.load_lora(case.make_lora(), {"x": "x.weight"})["x.weight"]
            changed = lora.calculate_weight([(strength, patch, 1.0, None, None)], case.make_weight(), "x.weight")
            results[f"{case.name}@{strength}"] = changed
    return results


def main() -> int:
    sys.argv = [sys.argv[0], "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    save_file(record(importlib.import_module("comfy.lora")), REFERENCE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
