"""Values that flow between nodes, and their sockets.

Plain values are ComfyUI's: IMAGE float32 `[B, H, W, C]` in 0..1, MASK float32 `[B, H, W]`, LATENT a dictionary with
`samples` `[B, C, h, w]` and perhaps `noise_mask` and `batch_index`, CONDITIONING a list of `[tensor [1, T, D], dict]`.
MODEL, CLIP, VAE, SAMPLER, GUIDER and NOISE are objects with the public members that ComfyUI's custom nodes use; each
has a file of its own. Sockets whose values only custom nodes make or read are typed `Any`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, Protocol, TypedDict

import torch

from darkroom.engine.diffusion.sample import Guider, Sampler
from darkroom.engine.images.packed_masks import TrackData
from darkroom.engine.images.svg import Svg
from darkroom.engine.media.file_3d import File3D
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.splats.splat import Splat
from darkroom.engine.media.video import Audio, VideoInput
from darkroom.engine.models.clip import Clip
from darkroom.engine.models.kinds.audio_encoder_value import AudioEncoder, AudioEncoderOutput
from darkroom.engine.models.kinds.background_removal.background_remover import BackgroundRemover
from darkroom.engine.models.kinds.face_landmarks.face_landmarker import FaceLandmarker
from darkroom.engine.models.kinds.face_landmarks.faces import FaceLandmarks
from darkroom.engine.models.kinds.frame_interpolation.frame_interpolator import FrameInterpolator
from darkroom.engine.models.kinds.geometry.depth_estimator import DepthEstimator, DepthGeometry
from darkroom.engine.models.kinds.geometry.geometry_estimator import GeometryEstimator, MogeGeometry
from darkroom.engine.models.kinds.optical_flow.flow_estimator import FlowEstimator
from darkroom.engine.models.model import Model
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.shape_vae import Voxel
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.markers import Hidden, Socket, Streams


class Latent(TypedDict):
    """LATENT dictionary. `samples` is unscaled: already divided by the family's latent scale factor."""

    samples: torch.Tensor  # [B, C, h, w]
    noise_mask: NotRequired[torch.Tensor]  # [B, 1, H, W], 1 where the sampler may paint
    batch_index: NotRequired[list[int]]  # which draw of the seed's noise each item uses
    type: NotRequired[str]  # "audio": a latent of audio
    sample_rate: NotRequired[int]  # of the audio that it was encoded from, in Hz
    downscale_ratio_spacial: NotRequired[int]  # pixels a side of a cell of an empty latent
    downscale_ratio_temporal: NotRequired[int]  # samples at 44.1 kHz of a cell of an empty latent of audio


class Noise(Protocol):
    """A source of noise for the custom sampling nodes."""

    seed: int

    def generate_noise(self, input_latent: Latent) -> torch.Tensor: ...


class ControlNet(Protocol):
    """Interface that guidance and nodes use for a ControlNet; chained nets are linked by `previous_controlnet`."""

    previous_controlnet: ControlNet | None
    extra_hooks: Any

    def copy(self) -> ControlNet: ...

    def set_cond_hint(
        self, cond_hint: torch.Tensor, strength: float = ..., timestep_percent_range: tuple[float, float] = ...
    ) -> ControlNet: ...

    def set_previous_controlnet(self, controlnet: ControlNet) -> ControlNet: ...

    def get_control(
        self,
        x_noisy: torch.Tensor,
        t: torch.Tensor,
        cond: dict[str, object],
        batched_number: int,
        options: dict[str, object],
    ) -> object: ...

    def pre_run(self, model: object, percent_to_timestep_function: object) -> None: ...

    def cleanup(self) -> None: ...

    def get_models(self) -> list[ModulePatcher]: ...

    def inference_memory_requirements(self, dtype: torch.dtype) -> int: ...


Conditioning = list[list[Any]]  # [[tensor [1, T, D], {"pooled_output": ..., ...}], ...]

IMAGE = Annotated[torch.Tensor, Socket("IMAGE")]
FRAMES = Annotated[torch.Tensor | FrameStream, Socket("IMAGE"), Streams()]  # in pieces where both nodes agree to it
MASK = Annotated[torch.Tensor, Socket("MASK")]
LATENT = Annotated[Latent, Socket("LATENT")]
CONDITIONING = Annotated[Conditioning, Socket("CONDITIONING")]
MODEL = Annotated[Model, Socket("MODEL")]
CLIP = Annotated[Clip, Socket("CLIP")]
VAE = Annotated[Vae, Socket("VAE")]
CONTROL_NET = Annotated[ControlNet, Socket("CONTROL_NET")]
SAMPLER = Annotated[Sampler, Socket("SAMPLER")]
SIGMAS = Annotated[torch.Tensor, Socket("SIGMAS")]
NOISE = Annotated[Noise, Socket("NOISE")]
GUIDER = Annotated[Guider, Socket("GUIDER")]

HOOKS = Annotated[Any, Socket("HOOKS")]
HOOK_KEYFRAMES = Annotated[Any, Socket("HOOK_KEYFRAMES")]
TIMESTEPS_RANGE = Annotated[tuple[float, float], Socket("TIMESTEPS_RANGE")]
LATENT_OPERATION = Annotated[Any, Socket("LATENT_OPERATION")]
UPSCALE_MODEL = Annotated[Any, Socket("UPSCALE_MODEL")]
LATENT_UPSCALE_MODEL = Annotated[Any, Socket("LATENT_UPSCALE_MODEL")]
CLIP_VISION = Annotated[Any, Socket("CLIP_VISION")]
CLIP_VISION_OUTPUT = Annotated[Any, Socket("CLIP_VISION_OUTPUT")]
PHOTOMAKER = Annotated[Any, Socket("PHOTOMAKER")]
STYLE_MODEL = Annotated[Any, Socket("STYLE_MODEL")]
MODEL_PATCH = Annotated[Any, Socket("MODEL_PATCH")]
GLIGEN = Annotated[Any, Socket("GLIGEN")]
IC_LORA_PARAMETERS = Annotated[Mapping[str, Any], Socket("IC_LORA_PARAMETERS")]
SVG = Annotated[Svg, Socket("SVG")]
AUDIO = Annotated[Audio, Socket("AUDIO")]
AUDIO_ENCODER = Annotated[AudioEncoder, Socket("AUDIO_ENCODER")]
AUDIO_ENCODER_OUTPUT = Annotated[AudioEncoderOutput, Socket("AUDIO_ENCODER_OUTPUT")]
INTERP_MODEL = Annotated[FrameInterpolator, Socket("INTERP_MODEL")]
OPTICAL_FLOW = Annotated[FlowEstimator, Socket("OPTICAL_FLOW")]
BACKGROUND_REMOVAL = Annotated[BackgroundRemover, Socket("BACKGROUND_REMOVAL")]
DA3_MODEL = Annotated[DepthEstimator, Socket("DA3_MODEL")]
DA3_GEOMETRY = Annotated[DepthGeometry, Socket("DA3_GEOMETRY")]
FACE_DETECTION_MODEL = Annotated[FaceLandmarker, Socket("FACE_DETECTION_MODEL")]
FACE_LANDMARKS = Annotated[FaceLandmarks, Socket("FACE_LANDMARKS")]
MOGE_MODEL = Annotated[GeometryEstimator, Socket("MOGE_MODEL")]
MOGE_GEOMETRY = Annotated[MogeGeometry, Socket("MOGE_GEOMETRY")]
SAM3_TRACK_DATA = Annotated[TrackData, Socket("SAM3_TRACK_DATA")]
VOXEL = Annotated[Voxel, Socket("VOXEL")]
MESH = Annotated[Mesh, Socket("MESH")]
SPLAT = Annotated[Splat, Socket("SPLAT")]
FILE_3D = Annotated[File3D, Socket("FILE_3D")]
CAMERA = Annotated[Any, Socket("LOAD3D_CAMERA")]
VIDEO = Annotated[VideoInput, Socket("VIDEO")]

# Sockets that carry a widget's value, for inputs without a widget of their own and for outputs.
INT = Annotated[int, Socket("INT")]
FLOAT = Annotated[float, Socket("FLOAT")]
FLOATS = Annotated[list[float], Socket("FLOATS")]
STRING = Annotated[str, Socket("STRING")]
BOOLEAN = Annotated[bool, Socket("BOOLEAN")]
COMBO = Annotated[Any, Socket("COMBO")]
ANY = Annotated[Any, Socket("*")]

Prompt = Annotated[Any, Hidden("PROMPT")]  # filled in by the engine, for the metadata of saved files
ExtraPngInfo = Annotated[Any, Hidden("EXTRA_PNGINFO")]
