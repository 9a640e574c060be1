"""The transformers of Wan as denoising networks: which of them a file holds, and how it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from torch import nn

from darkroom.engine.families.base import Match, TensorIndex
from darkroom.engine.families.later_networks import described_network
from darkroom.engine.families.transformer_files import PREFIX, detect_by, transformer
from darkroom.engine.families.wan.animate import FACES, WanAnimateConfig, WanAnimateTransformer, wan_animate_config
from darkroom.engine.families.wan.animate2 import WanAnimate2Config, WanAnimate2Transformer
from darkroom.engine.families.wan.causal import WanCausalConfig, WanCausalTransformer
from darkroom.engine.families.wan.config import FIRST, FLOAT32_ENDS, MARK, WanConfig, wan_config
from darkroom.engine.families.wan.dancer import (
    KEY_FRAMES,
    DancerConfig,
    DancerTransformer,
    dancer_config,
    with_single_layers,
)
from darkroom.engine.families.wan.flow_rvs import FlowRvsConfig
from darkroom.engine.families.wan.humo import SPEECH, HumoConfig, HumoTransformer, humo_config
from darkroom.engine.families.wan.s2v import AUDIO, WanS2vConfig, WanS2vTransformer, wan_s2v_config
from darkroom.engine.families.wan.scail import COLOURS, POSES, ScailConfig, ScailTransformer, scail_config
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
    COLOURS: scail_config,
    POSES: scail_config,
    KEY_FRAMES: dancer_config,
}
NETWORKS: dict[type[WanConfig], type[WanTransformer]] = {
    WanConfig: WanTransformer,
    WanVaceConfig: WanVaceTransformer,
    WanCameraConfig: WanCameraTransformer,
    WanS2vConfig: WanS2vTransformer,
    HumoConfig: HumoTransformer,
    WanAnimateConfig: WanAnimateTransformer,
    WanAnimate2Config: WanAnimate2Transformer,
    WanCausalConfig: WanCausalTransformer,
    FlowRvsConfig: WanTransformer,
    ScailConfig: ScailTransformer,
    DancerConfig: DancerTransformer,
}
# Networks that have the tensors of another one: variant -> configuration, and what the file's metadata have of it.
ANIMATE2, CAUSAL, FLOW_RVS = "animate2", "causal", "flow_rvs"
DESCRIBED: dict[str, tuple[type[WanConfig], Mapping[str, object]]] = {
    ANIMATE2: (WanAnimate2Config, {"model_type": "animate2"}),
    CAUSAL: (WanCausalConfig, {"causal_ar": True}),
    FLOW_RVS: (FlowRvsConfig, {"model_type": "flow_rvs"}),
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


def described_variant(metadata: Mapping[str, str]) -> str:
    """Return the variant of a network that its tensors do not tell, by a file's metadata; "" for other networks."""
    found = described_network(metadata)
    fitting = (name for name, (_, told) in DESCRIBED.items() if all(found.get(key) == told[key] for key in told))
    return next(fitting, "")


def as_described(config: WanConfig, metadata: Mapping[str, str]) -> WanConfig:
    """Return the configuration of the network that the metadata name."""
    variant = described_variant(metadata)
    if not variant or type(config) is not WanConfig or (variant == CAUSAL and config.image_dim):
        return config
    return DESCRIBED[variant][0](**asdict(config))


def description(config: WanConfig) -> dict[str, dict[str, object]]:
    """Return the metadata by which the network of a configuration is known from others of its tensors."""
    found = next((told for kind, told in DESCRIBED.values() if type(config) is kind), None)
    return {} if found is None else {METADATA: {"transformer": dict(found)}}


TRANSFORMER = transformer(
    MARK,
    configure=configure,
    build=build,
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
    prefixes=PREFIXES,
)
NETWORK = replace(
    TRANSFORMER,
    layouts=tuple(map(with_single_layers, TRANSFORMER.layouts)),
    in_checkpoint=tuple(map(with_single_layers, TRANSFORMER.in_checkpoint)),
    float32_ends=FLOAT32_ENDS,
    as_described=as_described,
    description=description,
)
find = detect_by(NETWORK, needs=(FIRST, HEAD))


def channels_of(index: TensorIndex, match: Match) -> tuple[int, int]:
    """Return the numbers of input and output channels of the network."""
    entering, leaving = (index.shapes[str(match.names[name])] for name in (FIRST, HEAD))
    return entering[1], leaving[0] // PATCH_CELLS
