"""The transformers of Wan as denoising networks: which of them a file holds, and how it is built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from torch import nn

from darkroom.engine.families.base import Match, TensorIndex
from darkroom.engine.families.transformer_files import PREFIX, detect_by, transformer
from darkroom.engine.families.wan.animate import FACES, WanAnimateConfig, WanAnimateTransformer, wan_animate_config
from darkroom.engine.families.wan.animate2 import MODEL_TYPE as ANIMATE2
from darkroom.engine.families.wan.animate2 import WanAnimate2Config, WanAnimate2Transformer
from darkroom.engine.families.wan.config import FIRST, FLOAT32_ENDS, MARK, WanConfig, wan_config
from darkroom.engine.families.wan.humo import SPEECH, HumoConfig, HumoTransformer, humo_config
from darkroom.engine.families.wan.s2v import AUDIO, WanS2vConfig, WanS2vTransformer, wan_s2v_config
from darkroom.engine.families.wan.transformer import WanTransformer
from darkroom.engine.families.wan.vace import (
    CAMERA,
    CONTROLS,
    WanCameraConfig,
    WanCameraTransformer,
    WanVaceConfig,
    WanVaceTransformer,
    wan_camera_config,
    wan_vace_config,
)
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.settings import DtypePolicy

PREFIXES = (PREFIX, "diffusion_model.", "model.", "")  # of files of the network alone
HEAD = "head.head.weight"
PATCH_CELLS = 4
METADATA = "config"  # the key of a file's metadata
# Configurations by a layer that only such a network has, in ComfyUI's order.
CONFIGURATIONS = {
    CONTROLS: wan_vace_config,
    CAMERA: wan_camera_config,
    AUDIO: wan_s2v_config,
    SPEECH: humo_config,
    FACES: wan_animate_config,
}
NETWORKS: dict[type[WanConfig], type[WanTransformer]] = {
    WanConfig: WanTransformer,
    WanVaceConfig: WanVaceTransformer,
    WanCameraConfig: WanCameraTransformer,
    WanS2vConfig: WanS2vTransformer,
    HumoConfig: HumoTransformer,
    WanAnimateConfig: WanAnimateTransformer,
    WanAnimate2Config: WanAnimate2Transformer,
}
# Configurations of networks that have the tensors of another one, by the type in the file's metadata.
DESCRIBED: dict[str, type[WanConfig]] = {ANIMATE2: WanAnimate2Config}


def configure(shapes: Shapes) -> WanConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    found = next((make for layer, make in CONFIGURATIONS.items() if layer in shapes), wan_config)
    return found(shapes)


def build(config: WanConfig) -> nn.Module:
    """Return the network of a configuration."""
    kind: Any = NETWORKS[type(config)]
    made: nn.Module = kind(config)
    return made


def described(metadata: Mapping[str, str]) -> Mapping[str, object]:
    """Return the configuration of the network in a file's metadata, empty for a file without one."""
    try:
        config = json.loads(metadata.get(METADATA, "{}"))
    except (ValueError, RecursionError):
        return {}
    transformer = config.get("transformer") if isinstance(config, dict) else None
    return transformer if isinstance(transformer, dict) else {}


def described_type(metadata: Mapping[str, str]) -> str:
    """Return the type of a network that its tensors do not tell, by a file's metadata; "" for other networks."""
    found = described(metadata).get("model_type")
    return found if isinstance(found, str) and found in DESCRIBED else ""


def as_described(config: WanConfig, metadata: Mapping[str, str]) -> WanConfig:
    """Return the configuration of the network that the metadata name."""
    kind = DESCRIBED.get(described_type(metadata))
    return config if kind is None or type(config) is not WanConfig else kind(**asdict(config))


def description(config: WanConfig) -> dict[str, dict[str, Any]]:
    """Return the metadata by which the network of a configuration is known from others of its tensors."""
    named = next((name for name, kind in DESCRIBED.items() if type(config) is kind), None)
    return {} if named is None else {METADATA: {"transformer": {"model_type": named}}}


NETWORK = replace(
    transformer(
        MARK,
        configure=configure,
        build=build,
        dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
        prefixes=PREFIXES,
    ),
    float32_ends=FLOAT32_ENDS,
    as_described=as_described,
    description=description,
)
find = detect_by(NETWORK, needs=(FIRST, HEAD))


def channels_of(index: TensorIndex, match: Match) -> tuple[int, int]:
    """Return the numbers of input and output channels of the network."""
    entering, leaving = (index.shapes[str(match.names[name])] for name in (FIRST, HEAD))
    return entering[1], leaving[0] // PATCH_CELLS
