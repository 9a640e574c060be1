"""The transformers of Wan as denoising networks: which of them a file holds, and how it is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from engine.architectures.latent_unet_shapes import Shapes
from engine.architectures.video_transformer import (
    FIRST,
    FLOAT32_ENDS,
    MARK,
    VideoTransformer,
    VideoTransformerConfig,
    video_transformer_config,
)
from engine.architectures.video_transformer_controls import (
    CAMERA,
    CONTROLS,
    CameraVideoConfig,
    CameraVideoTransformer,
    ControlledVideoConfig,
    ControlledVideoTransformer,
    camera_video_config,
    controlled_video_config,
)
from engine.architectures.video_transformer_faces import (
    FACES,
    AnimatedVideoConfig,
    AnimatedVideoTransformer,
    animated_video_config,
)
from engine.architectures.video_transformer_sound import (
    SOUND,
    SoundVideoConfig,
    SoundVideoTransformer,
    sound_video_config,
)
from engine.architectures.video_transformer_speech import (
    SPEECH,
    SpeechVideoConfig,
    SpeechVideoTransformer,
    speech_video_config,
)
from engine.families.base import Match, TensorIndex
from engine.families.parts.transformer import PREFIX, detect_by, transformer
from engine.settings import DtypePolicy

PREFIXES = (PREFIX, "diffusion_model.", "model.", "")  # of files of the network alone
HEAD = "head.head.weight"
PATCH_CELLS = 4
# Configurations by a layer that only such a network has, in ComfyUI's order.
CONFIGURATIONS = {
    CONTROLS: controlled_video_config,
    CAMERA: camera_video_config,
    SOUND: sound_video_config,
    SPEECH: speech_video_config,
    FACES: animated_video_config,
}
NETWORKS: dict[type[VideoTransformerConfig], type[VideoTransformer]] = {
    VideoTransformerConfig: VideoTransformer,
    ControlledVideoConfig: ControlledVideoTransformer,
    CameraVideoConfig: CameraVideoTransformer,
    SoundVideoConfig: SoundVideoTransformer,
    SpeechVideoConfig: SpeechVideoTransformer,
    AnimatedVideoConfig: AnimatedVideoTransformer,
}


def configure(shapes: Shapes) -> VideoTransformerConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    found = next((make for layer, make in CONFIGURATIONS.items() if layer in shapes), video_transformer_config)
    return found(shapes)


def build(config: VideoTransformerConfig) -> nn.Module:
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
    """Return how many channels enter and leave the network."""
    entering, leaving = (index.shapes[str(match.names[name])] for name in (FIRST, HEAD))
    return entering[1], leaving[0] // PATCH_CELLS
