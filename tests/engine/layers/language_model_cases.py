"""Small language models of every kind, and a recorder of the hidden states that other libraries compute for them.

    PYTHONPATH=.:COMFYUI_DIR python -m tests.engine.layers.language_model_cases

writes `language_model_reference.safetensors` beside this file: for each case all states, and the last one with masked
tokens, from ComfyUI 0.3.64; for Qwen3, which it lacks, from the transformers library. It needs a Python with ComfyUI's
requirements.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.parity.weights import draw_noise

REFERENCE = Path(__file__).with_name("language_model_reference.safetensors")
WIDTH, INNER, VOCABULARY, NUM_TOKENS = 24, 40, 16, 7
MASK = torch.tensor([[1] * NUM_TOKENS, [1, 1, 1, 1, 0, 0, 0]])
PLACES = torch.tensor([[0, 1, 2, 2, 2, 4, 5], [0, 1, 2, 2, 3, 4, 5], [0, 1, 2, 3, 2, 4, 5]])  # an image of two rows


@dataclass(frozen=True, slots=True)
class LanguageCase:
    """A kind of model, with its name in ComfyUI (None: it has none) and what its norms multiply by at weight zero."""

    name: str
    comfyui: str | None
    norm_offset: float = 1.0
    num_layers: int = 2
    has_three_axes: bool = False


CASES = (
    LanguageCase("llama3", "Llama2"),
    LanguageCase("qwen2", "Qwen25_3B", has_three_axes=True),
    LanguageCase("qwen3", None),
    LanguageCase("gemma2", "Gemma2_2B", norm_offset=0.0),
    LanguageCase("gemma3", "Gemma3_4B", norm_offset=0.0, num_layers=6),
)


def fill(network: torch.nn.Module, case: LanguageCase) -> torch.nn.Module:
    """Draw the weights of a network, float16 numbers, the same for every network with these names."""
    drawn = {}
    for name, weight in network.state_dict().items():
        noise = torch.from_numpy(draw_noise(case.name, name, tuple(weight.shape))) * 0.2
        drawn[name] = (noise + case.norm_offset if "norm" in name else noise).half().to(weight.dtype)
    network.load_state_dict(drawn)
    return network.eval()


def make_embeds(case: LanguageCase) -> torch.Tensor:
    """Return the rows of two prompts [2, T, D]."""
    return torch.from_numpy(draw_noise(case.name, "embeds", (2, NUM_TOKENS, WIDTH)))


def _by_comfyui(case: LanguageCase) -> dict[str, torch.Tensor]:
    llama, ops = (importlib.import_module(name) for name in ("comfy.text_encoders.llama", "comfy.ops"))
    sizes = {
        "hidden_size": WIDTH, "intermediate_size": INNER, "vocab_size": VOCABULARY, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": case.num_layers,
    }  # fmt: skip
    network: Any = fill(getattr(llama, str(case.comfyui))(sizes, torch.float16, "cpu", ops.manual_cast), case)
    found = {
        "states": network(None, None, embeds=make_embeds(case), intermediate_output="all",
                          final_layer_norm_intermediate=False)[1],
        "masked": network(None, MASK, embeds=make_embeds(case))[0],
    }  # fmt: skip
    if case.has_three_axes:
        network.model.config.rope_dims = [16, 24, 24]
        found["placed"] = network.model(None, None, embeds=make_embeds(case), position_ids=PLACES.float())[0]
    return found


def _by_transformers(case: LanguageCase) -> dict[str, torch.Tensor]:
    transformers = importlib.import_module("transformers")
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=case.num_layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=128, rope_theta=1e6, tie_word_embeddings=True,
    )  # fmt: skip
    holder = torch.nn.Module()
    holder.model = transformers.Qwen3Model(config)
    network: Any = fill(holder, case).model
    states = network(inputs_embeds=make_embeds(case), output_hidden_states=True).hidden_states
    masked = network(inputs_embeds=make_embeds(case), attention_mask=MASK).last_hidden_state
    return {"states": torch.stack(states, dim=1), "masked": masked}


def main() -> int:
    sys.argv = [sys.argv[0], "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    results: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for case in CASES:
            found = _by_transformers(case) if case.comfyui is None else _by_comfyui(case)
            results |= {f"{case.name}/{name}": states.contiguous() for name, states in found.items()}
    save_file(results, REFERENCE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
