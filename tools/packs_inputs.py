"""Made-up inputs of nodes, and small sizes for workflows: what `tools.packs_compare` sends to both engines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_DEPTH = 4  # nodes behind one another that make a value of a pack's own type
SMALL_PX = 64
MAX_COUNT = 4
# Of names of files: which are taken where a workflow's own is not there, the first that occurs.
SMALL_FILES = (
    "sd15_small.",
    "control_small.",
    "lora_a",
    "photo_a.png",
    "embed_a",
    "rrdb_x2",
    "vae_kl",
    "small",
    "sound_a",
    "video_a",
)
# Beginnings and parts of names of whole numbers that are sizes in pixels, or counts.
SIZES = ("width", "height", "size", "resolution", "side", "length_px", "tile_w", "tile_h")
NOT_SIZES = ("font", "grid", "batch", "kernel", "stroke", "line", "blur", "shadow", "max_", "scale", "point", "chunk")
COUNTS = (
    "steps",
    "batch_size",
    "frames",
    "length",
    "frame_load_cap",
    "num_frames",
    "multiplier",
    "iterations",
    "cycle",
)
NEUTRAL: Mapping[str, Any] = {"INT": 1, "FLOAT": 1.0, "STRING": "a red fox", "BOOLEAN": False}
PRIMITIVES = {"INT": "Int", "FLOAT": "Float", "STRING": "String", "BOOLEAN": "Boolean"}  # ends of nodes' names
# Nodes that make a value of a type: a value in capitals is a link to the node of that type.
MAKERS: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
    "MODEL": ("CheckpointLoaderSimple", 0, {"ckpt_name": "sd15_small.safetensors"}),
    "CLIP": ("CheckpointLoaderSimple", 1, {"ckpt_name": "sd15_small.safetensors"}),
    "VAE": ("CheckpointLoaderSimple", 2, {"ckpt_name": "sd15_small.safetensors"}),
    "CONDITIONING": ("CLIPTextEncode", 0, {"text": "a (red:1.2) fox", "clip": "CLIP"}),
    "IMAGE": ("LoadImage", 0, {"image": "rgba.png"}),
    "MASK": ("LoadImage", 1, {"image": "rgba.png"}),
    "LATENT": ("VAEEncode", 0, {"pixels": "SMALL_IMAGE", "vae": "VAE"}),
    "SMALL_IMAGE": (
        "ImageScale", 0,
        {"image": "IMAGE", "upscale_method": "bilinear", "width": 64, "height": 64, "crop": "disabled"},
    ),
    "SAMPLER": ("KSamplerSelect", 0, {"sampler_name": "euler"}),
    "NOISE": ("RandomNoise", 0, {"noise_seed": 1}),
    "SIGMAS": ("BasicScheduler", 0, {"model": "MODEL", "scheduler": "normal", "steps": 2, "denoise": 1.0}),
    "GUIDER": ("BasicGuider", 0, {"model": "MODEL", "conditioning": "CONDITIONING"}),
    "CONTROL_NET": ("ControlNetLoader", 0, {"control_net_name": "control_small.safetensors"}),
    "UPSCALE_MODEL": ("UpscaleModelLoader", 0, {"model_name": "rrdb_x2_new.safetensors"}),
    "CLIP_VISION": ("CLIPVisionLoader", 0, {"clip_name": "clip_vision_l.safetensors"}),
    "CLIP_VISION_OUTPUT": ("CLIPVisionEncode", 0, {"clip_vision": "CLIP_VISION", "image": "IMAGE", "crop": "center"}),
    "AUDIO": ("LoadAudio", 0, {"audio": "sound_a.flac"}),
    "VIDEO": ("LoadVideo", 0, {"file": "video_a.mp4"}),
}  # fmt: skip

Prompt = dict[str, dict[str, Any]]


class NotMakeable(Exception):
    """An input for which no value can be made up."""


class Sources:
    """Nodes, added to `prompt`, that make values of each type: ComfyUI's own, and others of the pack."""

    def __init__(self, info: Mapping[str, Any], prompt: Prompt, pack_nodes: Sequence[str]) -> None:
        self.prompt = prompt
        self._info, self._pack = info, pack_nodes
        self._links: dict[str, list[Any]] = {}

    def inputs(self, class_type: str, depth: int = MAX_DEPTH) -> dict[str, Any]:
        """Return values for all inputs of a node that are required, and for optional ones that are no links.

        A node without a link among the required ones gets the optional links as well.
        """
        declared = self._info[class_type]["input"]
        made = {name: self._value(name, item, depth) for name, item in declared.get("required", {}).items()}
        has_link = any(isinstance(value, list) for value in made.values())
        for name, item in (declared.get("optional") or {}).items():
            kind = item[0] if item else None
            if not has_link or isinstance(kind, list) or kind in NEUTRAL or kind == "COMBO":
                try:
                    made[name] = self._value(name, item, depth)
                except NotMakeable:
                    continue
        return made

    def _value(self, name: str, item: Sequence[Any], depth: int) -> Any:
        kind = item[0] if item else "*"
        options = item[1] if len(item) > 1 and isinstance(item[1], dict) else {}
        choices = kind if isinstance(kind, list) else options.get("options") if kind == "COMBO" else None
        if choices is not None:
            return _choice(name, choices, options.get("default"))
        if kind in NEUTRAL and not options.get("forceInput"):
            default = options.get("default", NEUTRAL[kind])
            if kind == "STRING":
                return default if isinstance(default, str) and default else NEUTRAL[kind]
            return small(name, default, options) if kind == "INT" else default
        return self.link(str(kind), depth)

    def link(self, wanted: str, depth: int = MAX_DEPTH) -> list[Any]:
        """Return a link to a node that gives a value of a type. Raises NotMakeable."""
        for kind in wanted.split(","):
            kind = "IMAGE" if kind == "*" else kind
            if kind in self._links:
                return self._links[kind]
            if kind in MAKERS:
                class_type, slot, given = MAKERS[kind]
                inputs = {name: self.link(value, depth) if value in MAKERS else value for name, value in given.items()}
                return self._add(kind, class_type, inputs, slot)
        if wanted in NEUTRAL and "PrimitiveString" in self._info:
            return self._add(wanted, f"Primitive{PRIMITIVES[wanted]}", {"value": NEUTRAL[wanted]}, 0)
        if depth:
            for class_type in self._pack:
                outputs = self._info[class_type]["output"]
                if wanted in outputs:
                    try:
                        inputs = self.inputs(class_type, depth - 1)
                    except NotMakeable:
                        continue
                    return self._add(wanted, class_type, inputs, outputs.index(wanted))
        raise NotMakeable(f"it takes a {wanted}")

    def _add(self, kind: str, class_type: str, inputs: Mapping[str, Any], slot: int) -> list[Any]:
        same = next((key for key, node in self.prompt.items()
                     if node["class_type"] == class_type and node["inputs"] == inputs), None)  # fmt: skip
        node_id = same or f"{class_type}-{len(self.prompt)}"
        self.prompt[node_id] = {"class_type": class_type, "inputs": dict(inputs)}
        self._links[kind] = [node_id, slot]
        return self._links[kind]


def _choice(name: str, choices: Sequence[Any], default: Any) -> Any:
    if not choices:
        raise NotMakeable(f"{name} has no choice")
    if default in choices:
        return default
    plain = [choice for choice in choices if not isinstance(choice, dict)]
    for part in SMALL_FILES:
        found = next((choice for choice in plain if isinstance(choice, str) and part in choice), None)
        if found is not None:
            return found
    if not plain:
        return choices[0].get("key", choices[0].get("content"))
    return plain[0]


def small(name: str, value: Any, options: Mapping[str, Any]) -> Any:
    """Return a whole number made small where its name says that it is a size in pixels or a count."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    lower = name.lower()
    is_size = any(part in lower for part in SIZES) and not any(part in lower for part in NOT_SIZES)
    limit = SMALL_PX if is_size and value > SMALL_PX else MAX_COUNT if lower in COUNTS and value > MAX_COUNT else value
    if limit == value:
        return value
    least = options.get("min", 0)
    return max(limit, least) if isinstance(least, (int, float)) else limit


def shrink(prompt: Prompt, info: Mapping[str, Any]) -> Prompt:
    """Return a workflow with small sizes and counts, and with the files that are there in place of others."""
    made: Prompt = {}
    for key, node in prompt.items():
        sections = info[node["class_type"]]["input"]
        declared = {**(sections.get("required") or {}), **(sections.get("optional") or {})}
        inputs = {name: _small_value(name, value, declared.get(name)) for name, value in node["inputs"].items()}
        made[key] = {"class_type": node["class_type"], "inputs": inputs}
    return made


def _small_value(name: str, value: Any, item: Sequence[Any] | None) -> Any:
    if not item or (isinstance(value, list) and len(value) == 2):
        return value
    kind, options = item[0], item[1] if len(item) > 1 and isinstance(item[1], dict) else {}
    choices = kind if isinstance(kind, list) else options.get("options") if kind == "COMBO" else None
    if choices:
        is_there = value in choices or any(isinstance(choice, dict) for choice in choices)
        return value if is_there else _choice(name, choices, options.get("default"))
    return small(name, value, options) if kind == "INT" else value
