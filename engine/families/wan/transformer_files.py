"""The transformers of Wan as denoising networks: which of them a file holds, and how it is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from darkroom.engine.families.base import Match, TensorIndex
from darkroom.engine.families.transformer_files import PREFIX, detect_by, transformer
from darkroom.engine.families.wan.animate import FACES, WanAnimateConfig, WanAnimateTransformer, wan_animate_config
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
}


def configure(shapes: Shapes) -> WanConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    found = next((make for layer, make in CONFIGURATIONS.items() if layer in shapes), wan_config)
    return found(shapes)


def build(config: WanConfig) -> nn.Module:
    """Return the network of a configuration."""
    kind: Any = NETWORKS[type(config)]
    made: nn.Module = kind(config)
    return made


NETWORK = replace(
    transformer(
        MARK,
        configure=configure,
        build=build,
        dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
        prefixes=PREFIXES,
    ),
    float32_ends=FLOAT32_ENDS,
)
find = detect_by(NETWORK, needs=(FIRST, HEAD))


def channels_of(index: TensorIndex, match: Match) -> tuple[int, int]:
    """Return the numbers of input and output channels of the network."""
    entering, leaving = (index.shapes[str(match.names[name])] for name in (FIRST, HEAD))
    return entering[1], leaving[0] // PATCH_CELLS
