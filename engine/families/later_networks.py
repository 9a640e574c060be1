"""Networks that ComfyUI has and this engine has not, known by tensors that no family's network has.

Their files would otherwise be taken for those of a family whose layers they share, or be refused without a name. The
tensors are those by which ComfyUI 0.38.1 distinguishes them (`comfy/model_detection.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from darkroom.engine.families.base import Shapes

# Before the names of a network's tensors; the longest come first, since a shorter one would begin some of them.
PREFIXES = ("model.diffusion_model.", "diffusion_model.", "model.model.", "transformer.", "model.", "net.", "")

FLUX_BLOCK = "double_blocks.0.img_mlp.0.weight"
POOLED = "vector_in.in_layer.weight"
WAN_LAST = "head.modulation"
REFINER = "noise_refiner.0.attention.k_norm.weight"
TIME_NORM = "adaln_single.emb.timestep_embedder.linear_1.bias"
AUDIO_ROTATION = "transformer.rotary_pos_emb.inv_freq"


@dataclass(frozen=True, slots=True)
class LaterNetwork:
    """A network by its tensors: those that it has, those that it lacks, and lengths of dimensions of some.

    `sizes` maps a tensor's name to a dimension and its length.
    """

    label: str
    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def is_in(self, shapes: Shapes, prefix: str) -> bool:
        """Return True for a file that has the network behind a prefix."""
        if not all(prefix + name in shapes for name in (*self.has, *self.sizes)):
            return False
        if any(prefix + name in shapes for name in self.lacks):
            return False
        found = ((shapes[prefix + name], axis, length) for name, (axis, length) in self.sizes.items())
        return all(len(shape) > axis and shape[axis] == length for shape, axis, length in found)


# The more telling first where one has the tensors of another.
LATER_NETWORKS: tuple[LaterNetwork, ...] = (
    LaterNetwork("Ovis-Image", ("double_blocks.0.img_mlp.gate_proj.weight", "txt_in.weight")),
    LaterNetwork(
        "LongCat-Image",
        (FLUX_BLOCK, "img_in.weight"),
        (POOLED, "double_stream_modulation_img.lin.weight"),
        {"txt_in.weight": (1, 3584)},
    ),
    LaterNetwork(
        "HunyuanVideo 1.5",
        ("txt_in.individual_token_refiner.blocks.0.norm1.weight", "cond_type_embedding.weight"),
    ),
    LaterNetwork(
        "JoyImage", ("double_blocks.0.attn.img_attn_qkv.weight", "double_blocks.0.attn.img_attn_q_norm.weight")
    ),
    LaterNetwork("NewBie", ("clip_text_pooled_proj.0.weight", REFINER)),
    LaterNetwork("Ming-Image", ("__ming_image__", REFINER)),
    LaterNetwork(
        "Ming-Image", (REFINER,), ("cap_pad_token", "dec_net.cond_embed.weight"), {"cap_embedder.1.weight": (0, 3840)}
    ),
    LaterNetwork("PiD", ("lq_proj.latent_proj.0.weight",)),
    LaterNetwork("PixelDiT", ("core.pixel_embedder.proj.weight",)),
    LaterNetwork("Kandinsky 6", ("visual_embeddings.in_layer.weight", "audio_embeddings.in_layer.weight")),
    LaterNetwork("Kandinsky 5", ("visual_transformer_blocks.0.cross_attention.key_norm.weight",)),
    LaterNetwork("Boogu-Image", ("double_stream_layers.0.img_instruct_attn.processor.img_to_q.weight",)),
    LaterNetwork("Ideogram 4", ("embed_image_indicator.weight", "input_proj.weight")),
    LaterNetwork("Lens", ("transformer_blocks.0.attn.norm_added_q.weight", "transformer_blocks.0.img_mlp.w1.weight")),
    LaterNetwork("Mage-Flow", (), (), {"txt_norm.weight": (0, 2560), "proj_out.weight": (0, 128)}),
    LaterNetwork("Ernie-Image", ("layers.0.mlp.linear_fc2.weight",)),
    LaterNetwork("Anima", ("blocks.0.mlp.layer1.weight", "llm_adapter.blocks.0.cross_attn.q_proj.weight")),
    LaterNetwork("HiDream-O1", ("t_embedder1.mlp.0.weight", "x_embedder.proj1.weight")),
    LaterNetwork(
        "SenseNova U1.5",
        (
            "fm_modules.vision_model_mot_gen.embeddings.patch_embedding.weight",
            "language_model.model.layers.0.self_attn.q_proj_mot_gen.weight",
        ),
    ),
    LaterNetwork("Hunyuan3D 2.1", ("t_embedder.mlp.2.weight", "blocks.0.attn1.k_norm.weight"), ("mlp_t5.0.weight",)),
    LaterNetwork("TripoSplat", ("cam_out_layer.weight", "repo_layers.0.final_map.weight")),
    LaterNetwork("TRELLIS 2", ("img2shape.t_embedder.mlp.0.weight",)),
    LaterNetwork("TRELLIS 2", ("shape2txt.t_embedder.mlp.0.weight",)),
    LaterNetwork("MiniMax H3", ("video_patch_proj.weight", "audio_patch_proj.weight")),
    LaterNetwork("LTX-2", (TIME_NORM, "audio_adaln_single.linear.weight")),
    LaterNetwork("CogVideoX", ("blocks.0.norm1.linear.weight", "patch_embed.proj.weight")),
    LaterNetwork("SeedVR2", (), (), {"blocks.35.mlp.vid.proj_out.weight": (0, 3072)}),
    LaterNetwork("SeedVR2", ("blocks.31.mlp.all.proj_in_gate.weight",)),
    LaterNetwork("SeedVR2", ("blocks.35.mlp.all.proj_in_gate.weight",)),
    LaterNetwork("SCAIL-2", (WAN_LAST, "patch_embedding_mask.weight")),
    LaterNetwork("SCAIL", (WAN_LAST, "patch_embedding_pose.weight")),
    LaterNetwork("WanDancer", (WAN_LAST, "patch_embedding_global.weight")),
    LaterNetwork("ACE-Step 1.5", ("encoder.lyric_encoder.layers.0.input_layernorm.weight",)),
    LaterNetwork("Stable Audio 3", (AUDIO_ROTATION, "transformer.layers.0.self_attn.q_norm.gamma")),
    LaterNetwork("YuE 2", ("vae2llm.weight", "llm2vae.weight", "latent_pos_embed.pe")),
    LaterNetwork("RT-DETR v4", ("encoder.pan_blocks.1.cv4.conv.weight",)),
    LaterNetwork("SAM 3", ("detector.backbone.vision_backbone.trunk.blocks.0.attn.qkv.weight",)),
    LaterNetwork(
        "Depth Anything 3", ("backbone.embeddings.patch_embeddings.projection.weight", "head.projects.0.weight")
    ),
)


def later_network(shapes: Shapes) -> str | None:
    """Return the name of the family of a file's network that this engine has not, None for other files."""
    found = (item.label for item in LATER_NETWORKS for prefix in PREFIXES if item.is_in(shapes, prefix))
    return next(found, None)


def describe_later(shapes: Shapes) -> str | None:
    """Return the description of a file with such a network, for error messages; None for other files."""
    label = later_network(shapes)
    return None if label is None else f"a network of {label}, a family that this engine does not have"
