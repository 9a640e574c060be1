"""The VAE value that fits a network."""

from __future__ import annotations

from darkroom.engine.models.audio_vae import AudioVae
from darkroom.engine.models.faded_video_vae import FadedVideoVae
from darkroom.engine.models.shape_vae import ShapeVae
from darkroom.engine.models.splat_vae import SplatVae
from darkroom.engine.models.stretched_audio_vae import StretchedAudioVae
from darkroom.engine.models.vae import Vae
from darkroom.engine.models.video_vae import VideoVae
from darkroom.engine.models.voxel_vae import VoxelVae
from darkroom.engine.models.weight_handle import WeightHandle


def vae_of(weights: WeightHandle) -> Vae:
    """Return the VAE of a network, by whether it is of audio, of shapes, of splats, of voxels, or compresses time."""
    if getattr(weights.module, "is_of_audio", False):
        works_in_stretches = getattr(weights.module, "works_in_stretches", False)
        return StretchedAudioVae(weights) if works_in_stretches else AudioVae(weights)
    if getattr(weights.module, "is_of_shapes", False):
        return ShapeVae(weights)
    if getattr(weights.module, "is_of_splats", False):
        return SplatVae(weights)
    if getattr(weights.module, "is_of_voxels", False):
        return VoxelVae(weights)
    is_of_videos = getattr(weights.module, "latent_dim", 2) == VideoVae.latent_dim
    if is_of_videos and getattr(weights.module, "fades_tiles", False):
        return FadedVideoVae(weights)
    return VideoVae(weights) if is_of_videos else Vae(weights)
