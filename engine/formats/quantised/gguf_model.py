"""Models in GGUF files under the names of tensors that other files of the model have.

Diffusion models have their own names there. Text encoders have those of llama.cpp (github.com/ggml-org/llama.cpp,
gguf-py/gguf/tensor_mapping.py), which are mapped back to the names of the transformers library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from darkroom.engine.formats.gguf_file import GgufFile
from darkroom.engine.formats.quantised.gguf_packing import GgufPacking
from darkroom.engine.formats.quantised.packing import PackedTensor
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile

# Parts of names: llama.cpp's, and those of the transformers library.
T5_PARTS: Mapping[str, str] = {
    "token_embd": "shared", "enc.output_norm": "encoder.final_layer_norm", "enc.blk": "encoder.block",
    "attn_q": "layer.0.SelfAttention.q", "attn_k": "layer.0.SelfAttention.k", "attn_v": "layer.0.SelfAttention.v",
    "attn_o": "layer.0.SelfAttention.o", "attn_norm": "layer.0.layer_norm",
    "attn_rel_b": "layer.0.SelfAttention.relative_attention_bias", "ffn_up": "layer.1.DenseReluDense.wi_1",
    "ffn_gate": "layer.1.DenseReluDense.wi_0", "ffn_down": "layer.1.DenseReluDense.wo",
    "ffn_norm": "layer.1.layer_norm",
}  # fmt: skip
LANGUAGE_PARTS: Mapping[str, str] = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "blk": "model.layers",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "attn_v_norm": "self_attn.v_norm", "ffn_up": "mlp.up_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_down": "mlp.down_proj", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
TEXT_ENCODERS: Mapping[str, Mapping[str, str]] = {
    "t5": T5_PARTS, "t5encoder": T5_PARTS, "llama": LANGUAGE_PARTS, "qwen2vl": LANGUAGE_PARTS,
    "qwen3": LANGUAGE_PARTS, "qwen3vl": LANGUAGE_PARTS,
}  # fmt: skip

# Architectures whose query and key rows llama.cpp has in another order, and the heads where a file does not say.
REORDERED: Mapping[str, tuple[int, int]] = {"llama": (32, 8)}
REORDERED_LAYERS = (("q_proj", "attention.head_count", 0), ("k_proj", "attention.head_count_kv", 1))


def gguf_model(file: GgufFile, arithmetic: torch.dtype | None = torch.float16) -> QuantisedFile:
    """Return a GGUF file under the names of other files of its model.

    `arithmetic` is the type that values are computed in, None the type they are wanted in. What kind of model it is
    shows in the tensors, as in any other file.
    """
    kind = file.architecture
    if kind is not None and kind in TEXT_ENCODERS:
        file = file.renamed(_names(file.tensors, TEXT_ENCODERS[kind]))
    packed = {
        name: PackedTensor(GgufPacking(torch.Size(item.shape), kind=item.kind, arithmetic=arithmetic), name)
        for name, item in file.blocks.items()
    }
    if kind is not None and kind in REORDERED:
        packed |= _reordered(file, packed, kind)
    return QuantisedFile(file, packed, label=f"a GGUF file of the architecture {kind!r}")


def _names(names: Iterable[str], parts: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the transformers library for llama.cpp's; others stay."""
    found = {}
    for name in names:
        first, _, rest = name.partition(".")
        if first in ("enc", "dec"):  # of the two halves of a T5 model
            middle, _, rest = rest.partition(".")
            first = f"{first}.{middle}"
        begin = parts.get(first, first)
        found[name] = ".".join([begin, *(parts.get(part, part) for part in rest.split("."))]) if rest else begin
    return found


def _reordered(file: GgufFile, packed: Mapping[str, PackedTensor], kind: str) -> dict[str, PackedTensor]:
    """Return the packings of query and key weights, the halves of whose heads are interleaved."""
    found = {}
    for name, place in file.tensors.items():
        for layer, key, index in REORDERED_LAYERS:
            if f".{layer}." not in name:
                continue
            heads = file.fields.get(f"{kind}.{key}", REORDERED[kind][index])
            item = packed.get(name)
            packing = GgufPacking(torch.Size(place.shape), kind="") if item is None else item.packing
            assert isinstance(packing, GgufPacking) and isinstance(heads, int)
            found[name] = PackedTensor(packing.of_heads(heads), name)
    return found
