"""Networks that ComfyUI has and this engine has not, known by tensors that no family's network has.

Their files would otherwise be taken for those of a family whose layers they share, or be refused without a name. The
tensors are those by which ComfyUI 0.38.1 distinguishes them (`comfy/model_detection.py`). Some have the tensors of
a network that is here, and are known by a type in the file's metadata that is none of those here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from darkroom.engine.families.base import Shapes

# Before the names of a network's tensors; the longest come first, since a shorter one would begin some of them.
PREFIXES = ("model.diffusion_model.", "diffusion_model.", "model.model.", "transformer.", "model.", "net.", "")

WAN_LAST, MODEL_TYPE = "head.modulation", "model_type"
WAN_TYPES = (
    "t2v", "i2v", "vace", "camera", "camera_2.2", "s2v", "humo", "animate", "animate2", "flow_rvs", "scail", "scail2",
    "wandancer",
)  # fmt: skip
REFINER = "noise_refiner.0.attention.k_norm.weight"


@dataclass(frozen=True, slots=True)
class LaterNetwork:
    """A network by its tensors: those that it has, those that it lacks, and lengths of dimensions of some.

    `sizes` maps a tensor's name to a dimension and its length. `types` are the values of `model_type` in the
    configuration of the file's metadata by which a network of the family that is here is known: it has another one.
    They are empty where its tensors are enough. `part` says which one of the family's networks it is.
    """

    label: str
    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    types: tuple[str, ...] = ()
    part: str = "a network"

    def is_in(self, shapes: Shapes, prefix: str, config: Mapping[str, object]) -> bool:
        """Return True for a file that has the network behind a prefix. `config` is its metadata's configuration."""
        if self.types and config.get(MODEL_TYPE, self.types[0]) in self.types:
            return False
        if not all(prefix + name in shapes for name in (*self.has, *self.sizes)):
            return False
        if any(prefix + name in shapes for name in self.lacks):
            return False
        found = ((shapes[prefix + name], axis, length) for name, (axis, length) in self.sizes.items())
        return all(len(shape) > axis and shape[axis] == length for shape, axis, length in found)


# The more telling first where one has the tensors of another.
LATER_NETWORKS: tuple[LaterNetwork, ...] = (
    LaterNetwork("Ovis-Image", ("double_blocks.0.img_mlp.gate_proj.weight", "txt_in.weight")),
    LaterNetwork("NewBie", ("clip_text_pooled_proj.0.weight", REFINER)),
    LaterNetwork("Ming-Image", ("__ming_image__", REFINER)),
    LaterNetwork(
        "Ming-Image", (REFINER,), ("cap_pad_token", "dec_net.cond_embed.weight"), {"cap_embedder.1.weight": (0, 3840)}
    ),
    LaterNetwork("Kandinsky 6", ("visual_embeddings.in_layer.weight", "audio_embeddings.in_layer.weight")),
    LaterNetwork(
        "SenseNova U1.5",
        (
            "fm_modules.vision_model_mot_gen.embeddings.patch_embedding.weight",
            "language_model.model.layers.0.self_attn.q_proj_mot_gen.weight",
        ),
    ),
    LaterNetwork("Hunyuan3D 2.1", ("t_embedder.mlp.2.weight", "blocks.0.attn1.k_norm.weight"), ("mlp_t5.0.weight",)),
    LaterNetwork("Wan of another type", (WAN_LAST,), types=WAN_TYPES),
    LaterNetwork("YuE 2", ("vae2llm.weight", "llm2vae.weight", "latent_pos_embed.pe")),
    LaterNetwork(
        "Depth Anything 3", ("backbone.embeddings.patch_embeddings.projection.weight", "head.projects.0.weight")
    ),
)
LATER_PARTS: tuple[LaterNetwork, ...] = (
    LaterNetwork("NewBie", ("encoder.layers.0.mixer.Wqkv.weight",), part="Jina CLIP 2, a text encoder"),
    LaterNetwork("Qwen3.5", ("language_model.layers.0.linear_attn.A_log",), part="the language model"),
)  # fmt: skip


NO_METADATA: Mapping[str, str] = {}


def later_network(shapes: Shapes, metadata: Mapping[str, str] = NO_METADATA) -> LaterNetwork | None:
    """Return the network of a file whose family this engine has not, None for other files."""
    config = described_network(metadata)
    known = (*LATER_NETWORKS, *LATER_PARTS)
    return next((item for item in known for prefix in PREFIXES if item.is_in(shapes, prefix, config)), None)


def describe_later(shapes: Shapes, metadata: Mapping[str, str] = NO_METADATA) -> str | None:
    """Return the description of a file with such a network, for error messages; None for other files."""
    found = later_network(shapes, metadata)
    return None if found is None else f"{found.part} of {found.label}, a family that this engine does not have"


def described_network(metadata: Mapping[str, str]) -> Mapping[str, object]:
    """Return the configuration of the network that a file's metadata gives, empty without one."""
    try:
        config = json.loads(metadata.get("config", "{}"))
    except (ValueError, TypeError, RecursionError):
        return {}
    transformer = config.get("transformer") if isinstance(config, Mapping) else None
    return transformer if isinstance(transformer, Mapping) else {}
