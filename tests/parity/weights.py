"""Deterministic random weights: the same tensor for a model's name and a key, on every machine.

Each is drawn from PCG64, seeded with the first 8 bytes (big endian) of sha256("MODEL:KEY"), as float32 standard normal,
and scaled by its fan-in. The gains below keep activations in the range of trained models, so that one more word in a
prompt shows in the result. A few channels of every U-Net carry the noisy latent straight to the output, since a purely
random one would end far outside the range of real latents.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rule:
    """Scale of the keys that match `pattern`: a deviation, or `gain / sqrt(fan_in)`; around `mean`."""

    pattern: str
    gain: float | None = None
    deviation: float | None = None
    mean: float = 0.0


PLAIN = Rule("", gain=1.0)
CONSTANTS = {
    "edm_vpred.sigma_max": 80.0,
    "edm_vpred.sigma_min": 0.002,
    "control_type": 2.0,
    "pre_block.attn.zero_k_bias": 0.0,
    "gs.base_offset_scale": -3.0,
}
"""Settings that a file holds as tensors, by key."""

MEANS_OF_BIASES = {
    "fuse.output_conv.bias": 0.5,
    "head.output_block.1.2.bias": 4.0,
    "mesh.head_landmarks.bias": 96.0,
    "struct_dec.out_layer.2.bias": -1.5,
    "shape_dec.blocks.0.4.to_subdiv.bias": -3.5,
    "shape_dec.blocks.1.16.to_subdiv.bias": -3.5,
    "shape_dec.blocks.2.8.to_subdiv.bias": -3.5,
    "shape_dec.blocks.3.4.to_subdiv.bias": -2.0,
    "tracker.sam_mask_decoder.pred_obj_score_head.layers.2.bias": 4.0,
}
"""Means of biases: FILM's images are not black, MoGe's first mask has all pixels, and TRELLIS 2 has few voxels then.

SAM 3 finds objects, and landmarks of faces are around the middle of what is looked at."""

ADAPTER_RULES = (
    Rule(r"\.(dora_scale|rescale|set_weight)$", deviation=0.1, mean=1.0),
    Rule(r"\.(w_norm|b_norm|diff|diff_b)$", gain=0.3),
    Rule(r"\.oft_blocks$", deviation=0.05),
    Rule(r"\.[ab][12]\.weight$", gain=0.7),
    Rule(r"\.lora_B\.default\.weight$|\.lora_B$|[._]lora(_linear_layer)?\.up\.weight$", gain=0.5),
)
"""Parts of LoRA files, matched against the key."""

CONTROL_RULES = (
    Rule(r"^(controlnet_down_blocks\.\d+|controlnet_mid_block)\.weight$", gain=0.6),
    Rule(r"^controlnet_cond_embedding\..*weight$", gain=1.6),
    Rule(r"^task_embedding$", deviation=0.5),
    Rule(r"\.up$", gain=0.5),
)
"""Parts of ControlNets of the diffusers library, union ControlNets and Control-LoRAs, matched against the key."""

SD15_RULES = (
    Rule(r"^hada_w._a$|\.hada_w._a$", deviation=0.4),
    Rule(r"\.hada_w2_b$|\.hada_t2$", deviation=0.7),
    Rule(r"\.(lora_up\.weight|lokr_w2|lokr_w2_a)$", gain=0.5),
    Rule(r"\.(token_embedding|position_embedding)\.weight$", deviation=0.5),
    Rule(r"text_model.*\.(out_proj|fc2)\.weight$", gain=0.7),
    Rule(r"text_model.*\.(q_proj|k_proj)\.weight$", gain=1.5),
    Rule(r"attn2\.to_[qk]\.weight$", gain=2.0),
    Rule(r"attn1\.to_[qk]\.weight$", gain=1.5),
    Rule(r"attn2\.to_out\.0\.weight$", gain=2.0),
    Rule(r"(diffusion_model|control_model|^)\.?out\.2\.weight$", gain=0.06),
    Rule(r"(zero_convs\.\d+\.0|middle_block_out\.0)\.weight$", gain=0.6),
    Rule(r"input_hint_block\.\d+\.weight$", gain=1.6),
    Rule(r"(^|\.)quant_conv\.weight$", gain=9.0),
    Rule(r"(^|\.)post_quant_conv\.weight$", gain=0.2),
    Rule(r"decoder\.conv_out\.weight$", gain=0.75),
    Rule(r"^\d+/\d/linear\.\d\.weight$", gain=0.5),
    Rule(r"^(emb_params|string_to_param\.\*|<.*>)$", deviation=0.5),
)
"""Matched against the key."""

FAMILY_RULES = (
    # norms whose stored weight is an offset from 1 (Gemma, Krea 2), then every other norm
    Rule(r"^gemma[23].*:.*norm\.weight$", deviation=0.1),
    Rule(r"^(sa3_t5gemma|stable_audio3):.*(layernorm|encoder\.norm)\.weight$", deviation=0.1),
    Rule(r"^krea2.*\.(scale|lin)$", deviation=0.2),
    Rule(r"(\.scale|\.gamma)$", deviation=0.1, mean=1.0),
    Rule(r"^seedvr2\w*:.*\.(attn|mlp|out)_(scale|gate)$", deviation=0.1, mean=1.0),
    Rule(r"^seedvr2\w*:(positive|negative)_conditioning$", deviation=1.0),
    # sharper attention and stronger text where one word would hardly show
    Rule(r"^auraflow.*attn\.w1v\.weight$", gain=4.0),
    Rule(r"^qwen_image:.*norm_(q|added_k)\.weight$", deviation=0.1, mean=1.8),
    Rule(r"^qwen_image:.*attn\.add_v_proj\.weight$", gain=4.0),
    # low-rank patches
    Rule(r"lora_(up|B)\.weight$|\.lora_B\.weight$", gain=0.5),
    # CLIP
    Rule(r"(token_embedding\.weight|position_embedding\.weight|positional_embedding)$", deviation=0.5),
    Rule(r"(text_model.*\.(out_proj|fc2)|resblocks.*\.(out_proj|c_proj))\.weight$", gain=0.5),
    Rule(r"text_model.*\.(q_proj|k_proj)\.weight$", gain=1.3),
    Rule(r"attn\.in_proj_weight$", gain=1.2),
    # T5
    Rule(r"(^|\.)shared\.weight$", deviation=1.0),
    Rule(r"relative_attention_bias\.weight$", deviation=0.7),
    Rule(r"SelfAttention\.[qk]\.weight$", gain=0.45),
    Rule(r"(SelfAttention\.o|DenseReluDense\.wo)\.weight$", gain=0.7),
    # Llama and its like
    Rule(r"^ace(15_|_step15:.*)qwen3_4b.*embed_tokens\.weight$", deviation=0.2),
    Rule(r"embed_tokens\.weight$", deviation=1.0),
    Rule(r"self_attn\.o_proj\.weight$|mlp\.down_proj\.weight$", gain=0.7),
    # U-Nets
    Rule(r"attn2\.to_[qk]\.weight$", gain=0.9),
    Rule(r"attn1\.to_[qk]\.weight$", gain=1.3),
    Rule(r"attn2\.to_out\.0\.weight$", gain=1.5),
    Rule(r"^sd2_v:.*diffusion_model\.out\.2\.weight$", gain=0.3),
    Rule(r"(diffusion_model\.|^\w+:)out\.2\.weight$", gain=0.08),
    Rule(r"(zero_convs\.\d+\.0|middle_block_out\.0)\.weight$", gain=0.6),
    Rule(r"input_hint_block\.\d+\.weight$", gain=1.6),
    # transformers: modulation, position tables, output
    Rule(
        r"(_mod\.lin|modulation\.lin|adaLN_modulation\.1|_mod\.1|adaln_single\.linear|mod[CXF]?X?\.1|time_projection\.1)"
        r"\.weight$",
        gain=0.6,
    ),
    Rule(r"(\.|:)(modulation|scale_shift_table|positional_encoding|register_tokens|pos_embed)$", deviation=0.4),
    Rule(r"^cogvideox\w*:patch_embed\.pos_embedding$", deviation=0.4),
    Rule(r"distilled_guidance_layer\.out_proj\.weight$", gain=0.5),
    Rule(r"(final_layer\.linear|proj_out|head\.head|final_linear)\.weight$", gain=0.7),
    # autoencoders
    Rule(r"(^|[.:])quant_conv\.weight$", gain=9.0),
    Rule(r"(^|[.:])post_quant_conv\.weight$", gain=0.2),
    Rule(r"decoder\.conv_out\.weight$", gain=0.75),
    Rule(r"^(ae16|sd3_small):.*encoder\.conv_out\.weight$", gain=2.0),
    Rule(r"^wan_vae:decoder\.head\.2\.weight$", gain=0.6),
    Rule(r"(per_channel_statistics\.mean-of-means|latents_mean)$", deviation=0.2),
    Rule(r"per_channel_statistics\.", deviation=0.1, mean=1.0),
    # networks that work on images alone
    Rule(r"^da3_\w+:.*(position_embeddings|camera_token|cls_token)$", deviation=0.3),
    Rule(r"^sam3\w*:.*(prompt_proj|hs_proj)\.weight$", gain=2.0),
    Rule(r"^sam3\w*:.*gaussian_matrix$", deviation=1.0),
    Rule(r"^sam3\w*:.*(embed|query_embed|mask_tokens|_token|reference_points)(\.weight)?$", deviation=0.5),
    Rule(r"^rt_detr\w*:.*running_mean$", deviation=0.1),
    Rule(r"^rt_detr\w*:.*conv\.weight$", gain=1.4),
    Rule(r"^rt_detr\w*:.*dec_score_head.*weight$", gain=2.5),
    Rule(r"^face_landmarker\w*:detector_short\.reg_.*weight$", gain=20.0),
    Rule(r"^face_landmarker\w*:detector_short\.cls_.*weight$", gain=2.0),
    Rule(r"^face_landmarker\w*:detector_full\.reg_conv\.weight$", gain=160.0),
    Rule(r"^face_landmarker\w*:detector_full\.cls_conv\.weight$", gain=40.0),
    Rule(r"^face_landmarker\w*:mesh\.head_landmarks\.weight$", gain=30.0),
    Rule(r"^face_landmarker\w*:.*prelu\w*\.weight$", deviation=0.2, mean=0.25),
    Rule(r"^face_landmarker\w*:.*(depthwise|pointwise|[dp]w[12])\.weight$", gain=0.7),
    Rule(r"^face_landmarker\w*:canonical_vertices$", deviation=5.0),
    Rule(r"fuse\.output_conv\.weight$", gain=0.15),
    Rule(r"decoder\.conv_out1\.0\.weight$", gain=30.0),
    Rule(r"mel_stft\.mel_basis$", deviation=0.005, mean=0.02),
    # autoencoders of audio
    Rule(r"bottleneck\.scaling_factor$", deviation=0.1, mean=1.0),
    Rule(r"^sa3_vae_large:.*(to_out|ff\.ff\.(0\.proj|2))\.weight$", gain=0.3),
    Rule(r"\.layers\.\d+\.alpha$", deviation=0.1, mean=-1.0),
    Rule(r"(\.weight_g|\.weight\.original0)$", deviation=0.1, mean=0.6),
)
"""Matched against "MODEL:KEY"."""


def sd15_weights(model: str, key: str, shape: Sequence[int], *, is_upscaler: bool) -> NDArray[np.generic]:
    """Draw one tensor of a Stable Diffusion 1.5 file or of what goes with it: float32, or int64 for position ids."""
    if key.endswith("position_ids"):
        return np.arange(shape[-1], dtype=np.int64).reshape(shape)
    if key.endswith(".alpha"):
        return np.full(shape, 2.0, np.float32)
    drawn = draw_noise(model, key, shape)
    if key.endswith("bias"):
        is_image = is_upscaler and tuple(shape) == (3,)
        return drawn * np.float32(0.05) + np.float32(0.5 if is_image else 0.0)
    if len(shape) == 1 and key.endswith(".weight"):  # normalisation layers
        return 1 + np.float32(0.1) * drawn
    rule = _first((*CONTROL_RULES, *ADAPTER_RULES, *SD15_RULES), key)
    if is_upscaler:
        rule = Rule("", gain=0.35 if shape[0] == 3 else 1.3)
    return _carry_latent_sd15(key, drawn * _deviation(rule, shape) + np.float32(rule.mean))


def family_weights(model: str, key: str, shape: Sequence[int], last_block: int | None) -> Weights:
    """Draw one float32 tensor of any other family; `last_block` is the index of a U-Net's last output block."""
    if key.endswith(".alpha") and np.prod(shape) == 1:
        return np.full(shape, 2.0, np.float32)
    if key.endswith(("rope.inv_freq", "rope.freqs")):
        return _frequencies(shape)
    if key.endswith(".filter"):
        return _low_pass(shape)
    if key in CONSTANTS:
        return np.full(shape, CONSTANTS[key], np.float32)
    drawn = draw_noise(model, key, shape)
    if key.endswith("bias"):
        drawn *= np.float32(0.05)
        if key.endswith("norm1.bias") and ".transformer_blocks." in key and model.startswith("sd2_v"):
            drawn *= np.float32(4)  # v-prediction of SD 2 is known by their deviation, above 0.09
        drawn += np.float32(MEANS_OF_BIASES.get(key, 0.0))
        return drawn
    rule = _first((*CONTROL_RULES, *ADAPTER_RULES), key)
    if rule is PLAIN:
        rule = _first(FAMILY_RULES, f"{model}:{key}")
    if rule is PLAIN and len(shape) == 1:  # normalisation layers
        return 1 + np.float32(0.1) * drawn
    return _carry_latent(key, drawn * _deviation(rule, shape) + np.float32(rule.mean), last_block)


def _frequencies(shape: Sequence[int]) -> Weights:
    """Angular frequencies of rotary positions, from 1 down to 1/10000."""
    frequencies: Weights = (10000.0 ** -(np.arange(shape[0]) / shape[0])).astype(np.float32).reshape(tuple(shape))
    return frequencies


def _low_pass(shape: Sequence[int]) -> Weights:
    """Draw the half-band low-pass filter of an alias-free activation: a sinc under a Kaiser window, of sum 1."""
    length = shape[-1]
    attenuation = 2.285 * (length // 2 - 1) * np.pi * 1.2 + 7.95
    beta = (
        0.1102 * (attenuation - 8.7)
        if attenuation > 50
        else 0.5842 * (attenuation - 21) ** 0.4 + 0.07886 * (attenuation - 21)
    )
    time = np.arange(length) - (length - 1) / 2
    window = np.kaiser(length, beta) * np.sinc(0.5 * time)
    low_pass: Weights = (window / window.sum()).astype(np.float32).reshape(tuple(shape))
    return low_pass


def draw_noise(model: str, key: str, shape: Sequence[int]) -> Weights:
    """Draw standard normal float32 numbers for a key of a model."""
    seed = int.from_bytes(hashlib.sha256(f"{model}:{key}".encode()).digest()[:8], "big")
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(tuple(shape), dtype=np.float32)


def _first(rules: Sequence[Rule], text: str) -> Rule:
    return next((rule for rule in rules if re.search(rule.pattern, text)), PLAIN)


def _deviation(rule: Rule, shape: Sequence[int]) -> np.float32:
    if rule.deviation is not None:
        return np.float32(rule.deviation)
    fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    return np.float32((rule.gain or 0.0) / fan_in**0.5)


def _carry_latent_sd15(key: str, weights: Weights) -> Weights:
    """Let channels 0..3 carry +latent and 4..7 -latent past a U-Net of width 320 (silu(a) - silu(-a) = a)."""
    if key.endswith("diffusion_model.input_blocks.0.0.weight"):
        _carry_in(weights)
    elif re.search(r"diffusion_model\.output_blocks\.\d+\.0\.skip_connection\.weight$", key):
        if weights.shape[:2] == (320, 640):
            _carry_across(weights)
    elif re.search(r"diffusion_model\.output_blocks\.(3|11)\.(0\.out_layers\.3|1\.proj_out)\.weight$", key):
        if weights.shape[0] == 320:
            weights[:10] *= np.float32(0.05)
    elif key.endswith("diffusion_model.out.2.weight"):
        _carry_out(weights)
    return weights


def _carry_latent(key: str, weights: Weights, last_block: int | None) -> Weights:
    """Let channels 0..3 carry +latent and 4..7 -latent past a U-Net of any width."""
    key = f".{key}"
    if key.endswith(".input_blocks.0.0.weight"):
        _carry_in(weights)
    elif not last_block:
        pass
    elif key.endswith(f".output_blocks.{last_block}.0.skip_connection.weight"):
        _carry_across(weights)
    elif re.search(rf"\.output_blocks\.{last_block}\.(0\.out_layers\.3|1\.proj_out)\.weight$", key):
        weights[: weights.shape[0] // 32] *= np.float32(0.05)
    elif key.endswith(".out.2.weight"):
        _carry_out(weights)
    return weights


def _carry_in(weights: Weights) -> None:
    channels = np.arange(4)
    weights[:8] = 0
    weights[channels, channels, 1, 1], weights[channels + 4, channels, 1, 1] = 1, -1


def _carry_across(weights: Weights) -> None:
    weights[: weights.shape[0] // 32] = 0  # the whole first group of the output norm
    for channel in range(8):
        weights[channel, weights.shape[0] + channel] = 1


def _carry_out(weights: Weights) -> None:
    channels = np.arange(4)
    weights[:, :8] = 0
    weights[channels, channels, 1, 1], weights[channels, channels + 4, 1, 1] = 0.95, -0.95
