"""Every transformer that denoises, and every control of one, as a small network with inputs.

Weights and inputs are drawn by the seed; norms have factors other than one, so that none can be left out unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.ace_step.lyric_encoder import LyricEncoderConfig
from darkroom.engine.families.ace_step.transformer import AceStepConfig, AceStepTransformer
from darkroom.engine.families.ace_step15.attention import Width
from darkroom.engine.families.ace_step15.transformer import AceStep15Config, AceStep15Transformer
from darkroom.engine.families.anima.text_adapter import TextAdapterConfig
from darkroom.engine.families.anima.transformer import AnimaConfig, AnimaTransformer
from darkroom.engine.families.aura_flow.transformer import AuraFlowConfig, AuraFlowTransformer
from darkroom.engine.families.boogu.transformer import BooguConfig, BooguTransformer
from darkroom.engine.families.chroma.transformer import ChromaConfig, ChromaTransformer
from darkroom.engine.families.chroma_radiance.transformer import ChromaRadianceConfig, ChromaRadianceTransformer
from darkroom.engine.families.cogvideox.transformer import CogVideoXConfig, CogVideoXTransformer
from darkroom.engine.families.cosmos1.transformer import Cosmos1Config, Cosmos1Transformer
from darkroom.engine.families.cosmos_predict2.transformer import CosmosPredict2Config, CosmosPredict2Transformer
from darkroom.engine.families.ernie_image.transformer import ErnieImageConfig, ErnieImageTransformer
from darkroom.engine.families.flux.controlnet import FluxControlNet, FluxControlNetConfig, HintKind
from darkroom.engine.families.flux.transformer import FluxConfig, FluxTransformer
from darkroom.engine.families.flux2.transformer import Flux2Config, Flux2Transformer
from darkroom.engine.families.hidream.transformer import HiDreamConfig, HiDreamTransformer
from darkroom.engine.families.hidream_o1.transformer import HiDreamO1Config, HiDreamO1Transformer
from darkroom.engine.families.hunyuan3d.transformer import Hunyuan3dConfig, Hunyuan3dTransformer
from darkroom.engine.families.hunyuan_dit.controlnet import HunyuanDitControlNet
from darkroom.engine.families.hunyuan_dit.transformer import HunyuanDitConfig, HunyuanDitTransformer
from darkroom.engine.families.hunyuan_video.transformer import HunyuanVideoConfig, HunyuanVideoTransformer
from darkroom.engine.families.hunyuan_video15.transformer import HunyuanVideo15Transformer
from darkroom.engine.families.ideogram4.transformer import Ideogram4Config, Ideogram4Transformer
from darkroom.engine.families.joyimage.transformer import JoyImageConfig, JoyImageTransformer
from darkroom.engine.families.kandinsky5.config import Kandinsky5Config
from darkroom.engine.families.kandinsky5.transformer import Kandinsky5Transformer
from darkroom.engine.families.krea2.transformer import FusionConfig, Krea2Config, Krea2Transformer
from darkroom.engine.families.lens.transformer import LensConfig, LensTransformer
from darkroom.engine.families.longcat_image.transformer import LongCatImageConfig, LongCatImageTransformer
from darkroom.engine.families.ltx2.config import Ltx2Config
from darkroom.engine.families.ltx2.transformer import Ltx2Transformer
from darkroom.engine.families.ltx_video.transformer import LtxVideoConfig, LtxVideoTransformer
from darkroom.engine.families.lumina2.layers import JointBlock, Lumina2Config
from darkroom.engine.families.lumina2.transformer import Lumina2Transformer
from darkroom.engine.families.mage_flow.transformer import MageFlowConfig, MageFlowTransformer
from darkroom.engine.families.minimax_h3.layers import MiniMaxH3Config
from darkroom.engine.families.minimax_h3.layout import Guide, Reference, flat, packed_layout
from darkroom.engine.families.minimax_h3.transformer import MiniMaxH3Transformer
from darkroom.engine.families.minimax_music3.transformer import MiniMaxMusic3Config, MiniMaxMusic3Transformer
from darkroom.engine.families.mochi.transformer import MochiConfig, MochiTransformer
from darkroom.engine.families.omnigen2.layers import OmniGen2Config
from darkroom.engine.families.omnigen2.transformer import OmniGen2Transformer
from darkroom.engine.families.pid.config import PiDConfig
from darkroom.engine.families.pid.transformer import PiDTransformer
from darkroom.engine.families.pixart.transformer import PixArtConfig, PixArtTransformer
from darkroom.engine.families.pixeldit.config import PixelDiTConfig
from darkroom.engine.families.pixeldit.transformer import PixelDiTTransformer
from darkroom.engine.families.qwen_image.diffsynth_control import ControlBlock
from darkroom.engine.families.qwen_image.transformer import QwenImageConfig, QwenImageControlNet, QwenImageTransformer
from darkroom.engine.families.qwen_image21.layers import QwenImage21Config
from darkroom.engine.families.qwen_image21.transformer import QwenImage21Transformer
from darkroom.engine.families.sd3.controlnet import (
    Sd3ControlNet,
    Sd3ControlNetConfig,
    Sd35ControlNet,
    Sd35ControlNetConfig,
)
from darkroom.engine.families.sd3.transformer import Sd3Config, Sd3Transformer
from darkroom.engine.families.seedvr2.layers import SeedVr2Config
from darkroom.engine.families.seedvr2.transformer import SeedVr2Transformer
from darkroom.engine.families.stable_audio.transformer import StableAudioConfig, StableAudioTransformer
from darkroom.engine.families.stable_audio3.transformer import StableAudio3Config, StableAudio3Transformer
from darkroom.engine.families.trellis2.transformer import Stage, Trellis2Config, Trellis2Transformer, turns_of
from darkroom.engine.families.triposplat.transformer import TripoSplatConfig, TripoSplatTransformer
from darkroom.engine.families.wan.animate import FaceAttention
from darkroom.engine.families.wan.animate2 import WanAnimate2Config, WanAnimate2Transformer
from darkroom.engine.families.wan.config import WanConfig
from darkroom.engine.families.wan.dancer import DancerConfig, DancerTransformer
from darkroom.engine.families.wan.humo import HumoConfig, HumoTransformer
from darkroom.engine.families.wan.s2v import WanS2vConfig, WanS2vTransformer
from darkroom.engine.families.wan.scail import ScailConfig, ScailTransformer
from darkroom.engine.families.wan.transformer import WanTransformer
from darkroom.engine.families.wan.uni3c import ControlBlock as CameraControlBlock
from darkroom.engine.families.wan.uni3c import Uni3cConfig
from darkroom.engine.families.wan.vace import WanVaceConfig, WanVaceTransformer
from darkroom.engine.families.z_image.transformer import ZImageConfig, ZImageTransformer
from darkroom.engine.families.z_image_pixel.transformer import ZImagePixelConfig, ZImagePixelTransformer
from darkroom.engine.formats.unfilled import give_memory, unfilled
from darkroom.engine.layers.qwen3_vl_vision import Qwen3VlVisionConfig
from darkroom.engine.layers.rotary import rotations

BATCH = 2


class Drawn:
    """Tensors drawn one after the other, of one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._generator = torch.Generator().manual_seed(1)
        self.dtype = dtype

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(self.dtype)

    def times(self, scale: float = 1.0) -> torch.Tensor:
        return torch.tensor([0.3, 0.8]) * scale


Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SmallTransformer:
    """A network, as a function without arguments, and its inputs, as one of what draws tensors.

    `families` are those whose checkpoints have this network.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[Drawn], Inputs]
    families: tuple[str, ...] = ()


def _image(channels: int, width: int, **more: Callable[[Drawn], Any]) -> Callable[[Drawn], Inputs]:
    return _of((channels, 6, 4), width, 1.0, more)


def _video(channels: int, width: int, scale: float = 1.0, **more: Callable[[Drawn], Any]) -> Callable[[Drawn], Inputs]:
    return _of((channels, 3, 4, 6), width, scale, more)


def _of(
    shape: tuple[int, ...], width: int, scale: float, more: Mapping[str, Callable[[Drawn], Any]]
) -> Callable[[Drawn], Inputs]:
    def inputs(drawn: Drawn) -> Inputs:
        given = {"x": drawn(BATCH, *shape), "timesteps": drawn.times(scale), "context": drawn(BATCH, 5, width)}
        return {**given, **{name: make(drawn) for name, make in more.items()}}

    return inputs


def _streams(channels: int, width: int) -> Callable[[Drawn], Inputs]:
    def inputs(drawn: Drawn) -> Inputs:
        streams = [drawn(BATCH, channels, 3, 4, 6), drawn(BATCH, 8, 5, 16)]
        times = torch.stack([drawn.times(), drawn.times() / 2, drawn.times()], dim=1)  # one a latent frame
        return {"x": streams, "timesteps": (times, drawn.times()), "context": drawn(BATCH, 5, width)}

    return inputs


def _hidream_o1(drawn: Drawn) -> Inputs:
    angles = drawn(1, 5 + 6, 64).float()
    return {
        "x": drawn(BATCH, 3, 64, 96), "timesteps": drawn.times(1000.0), "context": drawn(BATCH, 5, 1),
        "input_ids": torch.arange(5).expand(BATCH, -1), "cosines": angles.cos().expand(BATCH, -1, -1),
        "sines": angles.sin().expand(BATCH, -1, -1),
    }  # fmt: skip


TRELLIS2_CELLS = 9


def _trellis2(projected: int = 0) -> SmallTransformer:
    """A network of shapes and one of textures, which are sampled in cells; items of fewer are padded."""
    stages = (Stage.SHAPE, Stage.TEXTURE)
    config = Trellis2Config(
        stages=stages, hidden_size=256, num_blocks=2, num_heads=2, intermediate_size=96, context_dim=24,
        projected_dims=(projected, projected) if projected else (),
    )  # fmt: skip

    def inputs(drawn: Drawn) -> Inputs:
        cells = torch.arange(BATCH * TRELLIS2_CELLS * 3).view(BATCH, TRELLIS2_CELLS, 3) % 7
        given: Inputs = {
            "x": drawn(BATCH, 32, TRELLIS2_CELLS, 1), "timesteps": drawn.times(1000.0),
            "context": drawn(BATCH, 5, 24), "stage": str(Stage.TEXTURE), "turns": turns_of(cells, config.head_dim),
            "occupied": torch.arange(TRELLIS2_CELLS) < torch.tensor([[TRELLIS2_CELLS], [6]]),
            "shape_latent": drawn(BATCH, TRELLIS2_CELLS, 32),
        }  # fmt: skip
        return {**given, "projected": drawn(BATCH, TRELLIS2_CELLS, projected)} if projected else given

    return SmallTransformer(lambda: Trellis2Transformer(config), inputs, () if projected else ("trellis2",))


FLUX = FluxConfig(width=256, num_double=2, num_single=2, context_dim=24, label_dim=16)
FLUX_INPUTS = {"y": lambda drawn: drawn(BATCH, 16), "guidance": lambda drawn: torch.full((BATCH,), 3.5)}
CHROMA: dict[str, Any] = {
    "num_double": 2,
    "num_single": 2,
    "context_dim": 24,
    "approximator_width": 32,
    "approximator_layers": 1,
}
REFINED: dict[str, Any] = {"width": 256, "num_double": 2, "num_single": 2, "context_dim": 32, "num_refiners": 1}
QWEN = QwenImageConfig(width=256, num_blocks=2, context_dim=24)
SD3 = Sd3Config(num_blocks=3, width=128, context_dim=24, label_dim=16, position_side=16, norms_queries=True)
SD3_DUAL = Sd3Config(
    num_blocks=3, width=128, context_dim=24, label_dim=16, position_side=16, norms_queries=True,
    dual_blocks=frozenset({0}),
)  # fmt: skip
WAN: dict[str, Any] = {
    "width": 256,
    "num_blocks": 2,
    "inner_width": 96,
    "context_dim": 24,
    "in_channels": 4,
    "out_channels": 4,
}
Z_IMAGE_SIZES: dict[str, Any] = {
    "width": 256, "heads": 2, "key_heads": 2, "inner_width": 96, "num_layers": 2, "context_dim": 16, "time_width": 64,
    "time_inner": 64, "num_refiners": 1, "axes": (32, 48, 48), "theta": 256.0, "time_factor": 1000.0,
    "activates_time": False, "pads_tokens": True, "query_eps": 1.1920928955078125e-07,
}  # fmt: skip
Z_IMAGE = ZImageConfig(**Z_IMAGE_SIZES)
Z_IMAGE_PIXEL = ZImagePixelConfig(
    **Z_IMAGE_SIZES, patch=8, decoder_size=32, num_decoder_layers=2, num_frequencies=3, has_image_mark=True
)
Z_IMAGE_REFERENCES: dict[str, Any] = {
    "ref_latents": lambda drawn: [drawn(BATCH, 16, 4, 2), drawn(BATCH, 16, 2, 2)],
    "ref_contexts": lambda drawn: [drawn(BATCH, length, 16) for length in (2, 3, 1)],
    "siglip_feats": lambda drawn: [drawn(BATCH, 2, 3, 8)],
}
LUMINA = Lumina2Config(
    width=192, heads=2, key_heads=1, inner_width=96, num_layers=2, context_dim=16, time_width=64, time_inner=64,
    num_refiners=1,
)  # fmt: skip
HUNYUAN_DIT = HunyuanDitConfig(
    width=176, num_blocks=4, heads=2, inner_width=96, context_dim=24, second_dim=32, pooled_dim=16, num_first=4,
    num_second=6,
)  # fmt: skip
TEXTS_OF_HUNYUAN_DIT: dict[str, Callable[[Drawn], Any]] = {
    "text_embedding_mask": lambda drawn: torch.tensor([[1, 1, 1, 1, 0]] * BATCH),
    "encoder_hidden_states_t5": lambda drawn: drawn(BATCH, 6, 32),
    "text_embedding_mask_t5": lambda drawn: torch.tensor([[1, 1, 1, 0, 0, 0]] * BATCH),
}
MINIMAX_H3 = MiniMaxH3Config(
    hidden_size=256, num_layers=2, num_refiner_layers=1, num_heads=2, intermediate_size=96, in_channels=4,
    audio_channels=6, text_dim=24, time_input_dim=32, time_hidden_size=48, time_embed_dim=40,
)  # fmt: skip
H3_GUIDES = (Guide(1, torch.zeros(1, 4, 1, 4, 6), torch.zeros(1, 6, 2, 2)),)
H3_LAYOUT = packed_layout([1, 0, 0, 0, 1], (2, 4, 6), 3)
H3_GUIDED = packed_layout([1, 0, 0, 0, 1], (2, 4, 6), 3, H3_GUIDES, (Reference(torch.zeros(1, 4, 1, 2, 4)),))
AUDIO_VIDEO: dict[str, Callable[[Drawn], Any]] = {
    "x": lambda drawn: [drawn(BATCH, 4, 2, 4, 6), drawn(BATCH, 6, 2, 3)],
    "stretches": lambda drawn: flat(H3_LAYOUT.stretches),
    "positions": lambda drawn: torch.cat(H3_LAYOUT.positions).float()[None],
    "audio_scale": lambda drawn: 4.0,
}
GUIDED: dict[str, Callable[[Drawn], Any]] = {
    "stretches": lambda drawn: flat(H3_GUIDED.stretches),
    "positions": lambda drawn: torch.cat(H3_GUIDED.positions).float()[None],
    "given_video": lambda drawn: drawn(1, 8, 16).float().expand(BATCH, -1, -1),
    "given_audio": lambda drawn: drawn(1, 4, 6).float().expand(BATCH, -1, -1),
    "video_levels": lambda drawn: torch.tensor([[0.0, 0.5, 1.0]]).expand(BATCH, -1),
    "video_level_of": lambda drawn: torch.tensor([[0, 1, 2] * 4]).expand(BATCH, -1),
}
KANDINSKY5 = Kandinsky5Config(
    hidden_size=128, intermediate_size=96, time_dim=32, num_text_blocks=1, num_visual_blocks=2, head_dim=64,
    context_dim=24, label_dim=16,
)  # fmt: skip
COGVIDEOX = CogVideoXConfig(
    hidden_size=128, num_layers=2, intermediate_size=96, time_embed_dim=48, text_dim=24, in_channels=4, out_channels=4,
)  # fmt: skip
SPEECH = HumoConfig(**WAN, speech_dim=8, speech_inner=16, speech_width=24)
AUDIO = WanS2vConfig(**WAN, audio_layers=2, audio_dim=8, num_audio_blocks=1, control_channels=4)


class RefiningBlock(nn.Module):
    """A block of a control of Z-Image, with rotations."""

    def __init__(self) -> None:
        super().__init__()
        self.block = JointBlock(Z_IMAGE)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], dtype=torch.float32, device=x.device)[None, :, None].expand(-1, -1, 3)
        out: torch.Tensor = self.block(x, None, rotations(places, Z_IMAGE.axes, Z_IMAGE.theta), time)
        return out


TRANSFORMERS: dict[str, SmallTransformer] = {
    "flux": SmallTransformer(lambda: FluxTransformer(FLUX), _image(16, 24, **FLUX_INPUTS), ("flux",)),
    "flux with references": SmallTransformer(
        lambda: FluxTransformer(FLUX), _image(16, 24, **FLUX_INPUTS, ref_latents=lambda drawn: [drawn(2, 16, 4, 4)])
    ),
    "flux control": SmallTransformer(
        lambda: FluxControlNet(FluxControlNetConfig(FLUX, HintKind.LATENT, num_modes=2)),
        _image(16, 24, **FLUX_INPUTS, hint=lambda drawn: drawn(2, 16, 6, 4), control_type=lambda drawn: [1]),
    ),
    "flux2": SmallTransformer(
        lambda: Flux2Transformer(
            Flux2Config(width=256, num_double=2, num_single=2, context_dim=24, in_channels=8, out_channels=8)
        ),
        _of((8, 3, 2), 24, 1.0, {"guidance": lambda drawn: torch.full((BATCH,), 3.5)}),
        ("flux2",),
    ),
    "chroma": SmallTransformer(
        lambda: ChromaTransformer(ChromaConfig(width=256, **CHROMA)), _image(16, 24), ("chroma",)
    ),
    "chroma_radiance": SmallTransformer(
        lambda: ChromaRadianceTransformer(
            ChromaRadianceConfig(
                width=256, **CHROMA, pixel_width=8, num_pixel_layers=1, pixel_factor=2, num_frequencies=2
            )
        ),
        _of((3, 16, 32), 24, 1.0, {}),
        ("chroma_radiance",),
    ),
    "hunyuan_video": SmallTransformer(
        lambda: HunyuanVideoTransformer(
            HunyuanVideoConfig(
                **REFINED, patch=(1, 2, 2), in_channels=4, out_channels=4, label_dim=16, has_guidance=True
            )
        ),
        _video(
            4, 32, 1000.0, y=lambda drawn: drawn(BATCH, 16), guidance=lambda drawn: torch.full((BATCH,), 6.0),
            attention_mask=lambda drawn: torch.tensor([[1, 1, 1, 0, 0]] * BATCH),
        ),
        ("hunyuan_video",),
    ),
    "hunyuan_video with a first frame": SmallTransformer(
        lambda: HunyuanVideoTransformer(HunyuanVideoConfig(**REFINED, patch=(1, 2, 2), in_channels=4, out_channels=4)),
        _video(4, 32, 1000.0, guiding_frame_index=lambda drawn: torch.zeros(BATCH)),
    ),
    "hunyuan_image": SmallTransformer(
        lambda: HunyuanVideoTransformer(
            HunyuanVideoConfig(**REFINED, in_channels=8, out_channels=8, glyph_width=24, glyph_inner=32)
        ),
        _of((8, 3, 2), 32, 1000.0, {"txt_byt5": lambda drawn: drawn(BATCH, 3, 24)}),
        ("hunyuan_image",),
    ),
    "hunyuan_image_refiner": SmallTransformer(
        lambda: HunyuanVideoTransformer(HunyuanVideoConfig(**REFINED, patch=(1, 1, 1), in_channels=8, out_channels=8)),
        _of((8, 2, 2, 3), 32, 1000.0, {}),
        ("hunyuan_image_refiner",),
    ),
    "cogvideox": SmallTransformer(
        lambda: CogVideoXTransformer(replace(COGVIDEOX, offset_dim=48)),
        _video(4, 24, 1000.0, ofs=lambda drawn: torch.full((BATCH,), 2.0)),
        ("cogvideox",),
    ),
    "cogvideox of one frame a patch": SmallTransformer(
        lambda: CogVideoXTransformer(replace(COGVIDEOX, patch_frames=1)), _video(4, 24, 1000.0)
    ),
    "kandinsky5": SmallTransformer(
        lambda: Kandinsky5Transformer(KANDINSKY5),
        _video(
            33, 24, 1000.0, y=lambda drawn: drawn(BATCH, 16), time_dim_replace=lambda drawn: drawn(BATCH, 16, 1, 4, 6)
        ),
        ("kandinsky5",),
    ),
    "kandinsky5_image": SmallTransformer(
        lambda: Kandinsky5Transformer(replace(KANDINSKY5, hidden_size=256, head_dim=128, in_channels=16)),
        _image(16, 24, y=lambda drawn: drawn(BATCH, 16)),
        ("kandinsky5_image",),
    ),
    "hunyuan_video15": SmallTransformer(
        lambda: HunyuanVideo15Transformer(
            HunyuanVideoConfig(
                **REFINED, patch=(1, 1, 1), in_channels=8, out_channels=8, glyph_width=24, glyph_inner=32,
                has_end_time=True, sums_times=True, image_dim=16, has_kinds=True,
            )
        ),
        _of(
            (8, 2, 2, 3), 32, 1000.0,
            {"txt_byt5": lambda drawn: drawn(BATCH, 3, 24), "clip_fea": lambda drawn: drawn(BATCH, 4, 16)},
        ),
        ("hunyuan_video15",),
    ),
    "hunyuan3d": SmallTransformer(
        lambda: Hunyuan3dTransformer(
            Hunyuan3dConfig(width=64, num_double=2, num_single=2, context_dim=24, latent_channels=8, head_width=16)
        ),
        _of((8, 12), 24, 1.0, {}),
        ("hunyuan3d",),
    ),
    "trellis2": _trellis2(),
    "trellis2 with projected features": _trellis2(projected=20),
    "qwen_image": SmallTransformer(
        lambda: QwenImageTransformer(QWEN), _of((16, 1, 6, 4), 24, 1.0, {}), ("qwen_image",)
    ),
    "qwen_image with references at time 0": SmallTransformer(
        lambda: QwenImageTransformer(QWEN),
        _of(
            (16, 1, 6, 4), 24, 1.0,
            {
                "ref_latents": lambda drawn: [drawn(BATCH, 16, 1, 4, 4)],
                "ref_latents_method": lambda drawn: "index_timestep_zero",
            },
        ),
    ),
    "qwen_image control": SmallTransformer(
        lambda: QwenImageControlNet(
            QwenImageConfig(width=256, num_blocks=2, context_dim=24, hint_channels=16)
        ),
        _of((16, 1, 6, 4), 24, 1.0, {"hint": lambda drawn: drawn(BATCH, 16, 1, 6, 4)}),
    ),
    "qwen_image control of blocks": SmallTransformer(
        lambda: ControlBlock(256), lambda drawn: {"tokens": drawn(2, 6, 256), "seen": drawn(1, 6, 256)}
    ),
    "qwen_image21": SmallTransformer(
        lambda: QwenImage21Transformer(
            QwenImage21Config(width=256, num_blocks=2, context_dim=24, inner_width=96, in_channels=8)
        ),
        _of(
            (8, 3, 2), 24, 1.0,
            {"ref_latents": lambda drawn: [drawn(BATCH, 8, 2, 2)], "image_slots": lambda drawn: [2]},
        ),
        ("qwen_image21",),
    ),
    "z_image": SmallTransformer(lambda: ZImageTransformer(Z_IMAGE), _image(16, 16), ("z_image",)),
    "z_image with references": SmallTransformer(
        lambda: ZImageTransformer(replace(Z_IMAGE, vision_dim=8)), _image(16, 16, **Z_IMAGE_REFERENCES)
    ),
    "z_image_pixel": SmallTransformer(
        lambda: ZImagePixelTransformer(Z_IMAGE_PIXEL), _of((3, 16, 24), 16, 1.0, {}), ("z_image_pixel",)
    ),
    "z_image control": SmallTransformer(RefiningBlock, lambda drawn: {"x": drawn(2, 7, 256), "time": drawn(2, 64)}),
    "lumina2": SmallTransformer(
        lambda: Lumina2Transformer(LUMINA),
        _image(16, 16, attention_mask=lambda drawn: torch.tensor([[1, 1, 1, 1, 0]] * BATCH)),
        ("lumina2",),
    ),
    "omnigen2": SmallTransformer(
        lambda: OmniGen2Transformer(
            OmniGen2Config(
                width=240, heads=2, key_heads=1, inner_width=96, num_layers=1, context_dim=16, time_width=64,
                num_refiners=1,
            )
        ),
        _image(16, 16, ref_latents=lambda drawn: [drawn(BATCH, 16, 4, 4)]),
        ("omnigen2",),
    ),
    "hidream": SmallTransformer(
        lambda: HiDreamTransformer(
            HiDreamConfig(
                width=256, num_double=1, num_single=2, text_dim=24, language_dim=16, label_dim=16, expert_width=64,
                shared_width=32, text_width=64,
            )
        ),
        _of(
            (16, 6, 4), 24, 1000.0,
            {
                "y": lambda drawn: drawn(BATCH, 16),
                "encoder_hidden_states_llama3": lambda drawn: drawn(BATCH, 3, 5, 16),
            },
        ),
        ("hidream",),
    ),
    "sd3": SmallTransformer(lambda: Sd3Transformer(SD3), _image(16, 24, y=lambda drawn: drawn(BATCH, 16)), ("sd3",)),
    "sd3 with dual blocks": SmallTransformer(
        lambda: Sd3Transformer(SD3_DUAL), _image(16, 24, y=lambda drawn: drawn(BATCH, 16))
    ),
    "sd3 with layers of the text": SmallTransformer(
        lambda: Sd3Transformer(replace(SD3, num_text_layers=1)), _image(16, 24, y=lambda drawn: drawn(BATCH, 16))
    ),
    "sd3 control": SmallTransformer(
        lambda: Sd3ControlNet(Sd3ControlNetConfig(replace(SD3, num_blocks=2))),
        _image(16, 24, y=lambda drawn: drawn(BATCH, 16), hint=lambda drawn: drawn(BATCH, 16, 6, 4)),
    ),
    "sd3 control of patches": SmallTransformer(
        lambda: Sd35ControlNet(Sd35ControlNetConfig(num_blocks=2, width=128, embeds_twice=True, label_dim=16)),
        _image(
            16, 24, y=lambda drawn: drawn(BATCH, 16), hint=lambda drawn: drawn(BATCH, 16, 6, 4),
            borrowed=lambda drawn: {
                "mlp.0.weight": drawn(128, 16) / 4, "mlp.0.bias": drawn(128), "mlp.2.weight": drawn(128, 128) / 12,
                "mlp.2.bias": drawn(128),
            },
        ),
    ),
    "wan": SmallTransformer(
        lambda: WanTransformer(WanConfig(**WAN)), _video(4, 24, 1000.0), ("wan", "wan22")
    ),
    "wan with a level for each frame": SmallTransformer(
        lambda: WanTransformer(WanConfig(**WAN, image_dim=16, image_places=6)),
        lambda drawn: {
            "x": drawn(BATCH, 4, 3, 4, 6),
            "timesteps": torch.tensor([[0.0, 500.0, 500.0]] * BATCH),
            "context": drawn(BATCH, 5, 24),
            "clip_fea": drawn(BATCH, 6, 16),
        },
    ),
    "wan with controls": SmallTransformer(
        lambda: WanVaceTransformer(WanVaceConfig(**WAN, num_control_blocks=1, control_channels=8)),
        _video(
            4, 24, 1000.0, vace_context=lambda drawn: drawn(BATCH, 1, 8, 3, 4, 6), vace_strength=lambda drawn: [0.7]
        ),
    ),
    "wan with audio": SmallTransformer(
        lambda: WanS2vTransformer(AUDIO),
        _video(4, 24, 1000.0, audio_embed=lambda drawn: drawn(BATCH, 2, 8, 12)),
    ),
    "wan with speech": SmallTransformer(
        lambda: HumoTransformer(SPEECH),
        _video(4, 24, 1000.0, audio_embed=lambda drawn: drawn(BATCH, 3, 8, 5, 8)),
    ),
    "wan with poses of a video": SmallTransformer(
        lambda: WanAnimate2Transformer(WanAnimate2Config(**{**WAN, "in_channels": 12}, image_dim=16)),
        _video(12, 24, 1000.0, pose_latents=lambda drawn: drawn(BATCH, 4, 2, 4, 6)),
    ),
    "wan with drawn poses": SmallTransformer(
        lambda: ScailTransformer(ScailConfig(**{**WAN, "in_channels": 5}, image_dim=16, mask_channels=3)),
        _video(
            5, 24, 1000.0,
            pose_latents=lambda drawn: drawn(BATCH, 5, 3, 2, 3),
            sam_latents=lambda drawn: drawn(BATCH, 3, 3, 2, 3),
            reference_latent=lambda drawn: drawn(BATCH, 5, 1, 4, 6),
            ref_mask_latents=lambda drawn: drawn(BATCH, 3, 4, 4, 6),
        ),
    ),
    "wan with music": SmallTransformer(
        lambda: DancerTransformer(
            DancerConfig(
                **{**WAN, "in_channels": 12}, image_dim=16, num_features=5, music_width=32, music_inner=24,
                num_music_layers=1, num_music_blocks=1,
            )
        ),
        _of((12, 3, 4, 8), 24, 1000.0, {"audio_embed": lambda drawn: drawn(BATCH, 9, 5), "fps": lambda drawn: 7.5}),
    ),
    "wan control of cameras": SmallTransformer(
        lambda: CameraControlBlock(Uni3cConfig(192, 1, 96, 36, 192, 128)),
        lambda drawn: {
            "x": drawn(2, 12, 192), "time": drawn(2, 128), "pe": rotations(drawn(1, 12, 3), (4, 4, 4)).transpose(1, 2),
        },
    ),
    "wan with faces": SmallTransformer(
        lambda: FaceAttention(256), lambda drawn: {"x": drawn(2, 12, 256), "faces": drawn(2, 3, 5, 256)}
    ),
    "ltx_video": SmallTransformer(
        lambda: LtxVideoTransformer(
            LtxVideoConfig(width=128, num_blocks=2, context_dim=24, in_channels=8)
        ),
        _video(8, 24, attention_mask=lambda drawn: torch.tensor([[1, 1, 1, 0, 0]] * BATCH)),
        ("ltx_video",),
    ),
    "ltx2": SmallTransformer(
        lambda: Ltx2Transformer(
            Ltx2Config(
                num_blocks=2, heads=4, head_dim=32, audio_heads=4, audio_head_dim=16, in_channels=8, text_dim=24,
                connectors=None,
            )
        ),
        _streams(8, 48),
        ("ltx2",),
    ),
    "ltx2 with gates": SmallTransformer(
        lambda: Ltx2Transformer(
            Ltx2Config(
                num_blocks=2, heads=4, head_dim=32, audio_heads=4, audio_head_dim=16, in_channels=8, text_dim=192,
                text_projection="none", projects_first=True, connectors=None, is_gated=True, modulates_text=True,
                times_text=True,
            )
        ),
        _streams(8, 192),
    ),
    "seedvr2": SmallTransformer(
        lambda: SeedVr2Transformer(
            SeedVr2Config(hidden_size=128, num_layers=4, num_separate=2, intermediate_size=256, text_dim=24)
        ),
        _video(16, 24, 1000.0, condition=lambda drawn: drawn(BATCH, 17, 3, 4, 6)),
        ("seedvr2",),
    ),
    "mochi": SmallTransformer(
        lambda: MochiTransformer(
            MochiConfig(width=128, text_width=64, num_blocks=2, heads=2, context_dim=24, in_channels=4)
        ),
        _video(4, 24, num_tokens=lambda drawn: 4),
        ("mochi",),
    ),
    "cosmos1": SmallTransformer(
        lambda: Cosmos1Transformer(
            Cosmos1Config(
                width=256, num_blocks=2, context_dim=24, inner_width=96, rank=16, in_channels=4, out_channels=4,
                stretch=(2.0, 1.0, 1.0), places=(4, 4, 4),
            )
        ),
        _video(4, 24),
        ("cosmos1",),
    ),
    "cosmos_predict2": SmallTransformer(
        lambda: CosmosPredict2Transformer(
            CosmosPredict2Config(
                width=256, num_blocks=2, context_dim=24, inner_width=96, rank=16, in_channels=4, out_channels=4
            )
        ),
        _video(4, 24),
        ("cosmos_predict2",),
    ),
    "joyimage": SmallTransformer(
        lambda: JoyImageTransformer(
            JoyImageConfig(hidden_size=256, num_layers=2, context_dim=24, intermediate_size=96)
        ),
        _of((16, 1, 6, 4), 24, 1000.0, {"ref_latents": lambda drawn: [drawn(BATCH, 16, 1, 4, 4)]}),
        ("joyimage",),
    ),
    "boogu": SmallTransformer(
        lambda: BooguTransformer(
            BooguConfig(
                width=240, heads=2, key_heads=1, inner_width=96, num_layers=1, context_dim=24, time_width=240,
                num_refiners=1, num_double=1,
            )
        ),
        _image(16, 24, ref_latents=lambda drawn: [drawn(BATCH, 16, 4, 4)]),
        ("boogu",),
    ),
    "lens": SmallTransformer(
        lambda: LensTransformer(
            LensConfig(hidden_size=128, intermediate_size=96, num_layers=2, in_channels=16, text_dim=6)
        ),
        _of((16, 6, 4), 24, 1.0, {}),
        ("lens",),
    ),
    "pixeldit": SmallTransformer(
        lambda: PixelDiTTransformer(
            PixelDiTConfig(
                hidden_size=128, intermediate_size=96, num_layers=2, context_dim=24, max_text_tokens=8,
                pixel_attention_size=144, num_pixel_layers=1,
            )
        ),
        _of((3, 48, 32), 24, 1000.0, {}),
        ("pixeldit",),
    ),
    "pid": SmallTransformer(
        lambda: PiDTransformer(
            PiDConfig(
                hidden_size=128, intermediate_size=96, num_layers=2, context_dim=24, max_text_tokens=8,
                pixel_attention_size=144, num_pixel_layers=1, latent_size=16, num_latent_blocks=1, num_features=1,
                is_later=True,
            )
        ),
        _of(
            (3, 48, 32), 24, 1000.0,
            {"lq_latent": lambda drawn: drawn(BATCH, 16, 3, 2), "degrade_sigma": lambda drawn: drawn.times()},
        ),
        ("pid",),
    ),
    "ideogram4": SmallTransformer(
        lambda: Ideogram4Transformer(
            Ideogram4Config(
                hidden_size=256, head_dim=128, intermediate_size=96, num_layers=2, adaln_dim=16, context_dim=24,
                in_channels=16,
            )
        ),
        _of((16, 6, 4), 24, 1.0, {}),
        ("ideogram4",),
    ),
    "ernie_image": SmallTransformer(
        lambda: ErnieImageTransformer(
            ErnieImageConfig(
                hidden_size=256, intermediate_size=96, num_layers=2, context_dim=24, in_channels=16
            )
        ),
        _of((16, 6, 4), 24, 1000.0, {}),
        ("ernie_image",),
    ),
    "hidream_o1": SmallTransformer(
        lambda: HiDreamO1Transformer(
            HiDreamO1Config(
                vision=Qwen3VlVisionConfig(
                    width=64, inner_width=32, num_blocks=1, out_width=256, table_side=4, is_tapped=False
                ),
                hidden_size=256, intermediate_size=96, num_layers=2, key_heads=1, vocabulary_size=16,
            )
        ),
        _hidream_o1,
        ("hidream_o1",),
    ),
    "longcat_image": SmallTransformer(
        lambda: LongCatImageTransformer(LongCatImageConfig(width=256, num_double=2, num_single=2, context_dim=24)),
        _image(16, 24, ref_latents=lambda drawn: [drawn(BATCH, 16, 4, 4)]),
        ("longcat_image",),
    ),
    "mage_flow": SmallTransformer(
        lambda: MageFlowTransformer(
            MageFlowConfig(width=256, num_blocks=2, context_dim=24, in_channels=16, out_channels=16)
        ),
        _image(16, 24, ref_latents=lambda drawn: [drawn(BATCH, 16, 3, 5)]),
        ("mage_flow",),
    ),
    "anima": SmallTransformer(
        lambda: AnimaTransformer(
            AnimaConfig(
                width=256, num_blocks=2, context_dim=24, inner_width=96, rank=16, in_channels=4, out_channels=4,
                adapter=TextAdapterConfig(
                    source_dim=16, text_dim=24, hidden_size=24, head_dim=8, num_blocks=1, intermediate_size=32
                ),
            )
        ),
        _video(4, 24),
        ("anima",),
    ),
    "pixart": SmallTransformer(
        lambda: PixArtTransformer(PixArtConfig(width=144, num_blocks=2, context_dim=24)),
        _of((4, 6, 4), 24, 1000.0, {}),
        ("pixart",),
    ),
    "aura_flow": SmallTransformer(
        lambda: AuraFlowTransformer(
            AuraFlowConfig(
                width=256, num_double=1, num_single=2, context_dim=24, time_dim=64, inner_width=96, position_side=8
            )
        ),
        _image(4, 24),
        ("aura_flow",),
    ),
    "hunyuan_dit": SmallTransformer(
        lambda: HunyuanDitTransformer(HUNYUAN_DIT), _of((4, 6, 4), 24, 1000.0, TEXTS_OF_HUNYUAN_DIT), ("hunyuan_dit",)
    ),
    "hunyuan_dit control": SmallTransformer(
        lambda: HunyuanDitControlNet(HUNYUAN_DIT),
        _of((4, 6, 4), 24, 1000.0, {**TEXTS_OF_HUNYUAN_DIT, "hint": lambda drawn: drawn(BATCH, 4, 6, 4)}),
    ),
    "krea2": SmallTransformer(
        lambda: Krea2Transformer(
            Krea2Config(
                width=256, key_heads=1, inner_width=96, num_blocks=2,
                text=FusionConfig(num_layers=3, width=32, heads=2, key_heads=2, inner_width=64),
            )
        ),
        _of((16, 1, 6, 4), 96, 1.0, {}),
        ("krea2",),
    ),
    "krea2 with references at time 0": SmallTransformer(
        lambda: Krea2Transformer(
            Krea2Config(
                width=256, key_heads=1, inner_width=96, num_blocks=2,
                text=FusionConfig(num_layers=3, width=32, heads=2, key_heads=2, inner_width=64),
            )
        ),
        _of(
            (16, 1, 6, 4), 96, 1.0,
            {
                "ref_latents": lambda drawn: [drawn(BATCH, 16, 1, 4, 4)],
                "ref_latents_method": lambda drawn: "index_timestep_zero",
            },
        ),
    ),
    "minimax_h3": SmallTransformer(
        lambda: MiniMaxH3Transformer(MINIMAX_H3),
        _of((4, 2, 4, 6), 24, 1000.0, AUDIO_VIDEO),
        ("minimax_h3",),
    ),
    "minimax_h3 with guides and masks": SmallTransformer(
        lambda: MiniMaxH3Transformer(replace(MINIMAX_H3, curve_points=8)),
        _of((4, 2, 4, 6), 24, 1000.0, {**AUDIO_VIDEO, **GUIDED}),
    ),
    "minimax_h3 with gates": SmallTransformer(
        lambda: MiniMaxH3Transformer(replace(MINIMAX_H3, gate_compress=True)),
        _of((4, 2, 4, 6), 24, 1000.0, AUDIO_VIDEO),
    ),
    "ace_step": SmallTransformer(
        lambda: AceStepTransformer(
            AceStepConfig(
                width=128, num_blocks=2, context_dim=24, in_channels=2, speaker_dim=16, num_lyric_tokens=20,
                lyrics=LyricEncoderConfig(width=32, num_blocks=1, heads=2, inner_width=64),
            )
        ),
        _of((2, 16, 12), 24, 1000.0, {"lyric_token_idx": lambda drawn: torch.tensor([[1, 5, 7]] * BATCH)}),
        ("ace_step",),
    ),
    "minimax_music3": SmallTransformer(
        lambda: MiniMaxMusic3Transformer(
            MiniMaxMusic3Config(hidden_size=128, num_layers=2, condition_dim=32, state_dim=32)
        ),
        _of((128, 11), 256, 1.0, {"conditioning_scale": lambda drawn: drawn(BATCH, 1, 1)}),
        ("minimax_music3",),
    ),
    "ace_step15": SmallTransformer(
        lambda: AceStep15Transformer(
            AceStep15Config(
                width=Width(128, 256, 2, 1), encoder_width=Width(64, 128, 2, 1), num_layers=2, num_lyric_layers=1,
                num_timbre_layers=1, num_tokenizer_layers=1, num_detokenizer_layers=1, context_dim=24, in_channels=8,
            )
        ),
        _of(
            (8, 11), 24, 1.0,
            {
                "lyric_embed": lambda drawn: drawn(BATCH, 4, 24),
                "refer_audio": lambda drawn: drawn(BATCH, 8, 11),
                "audio_codes": lambda drawn: torch.tensor([[1, 40000]] * BATCH),
            },
        ),
        ("ace_step15",),
    ),
    "stable_audio3": SmallTransformer(
        lambda: StableAudio3Transformer(
            StableAudio3Config(
                hidden_size=128, num_layers=2, intermediate_size=128, context_dim=64, text_dim=128, in_channels=8,
                local_dim=9, num_memory_tokens=3,
            )
        ),
        _of(
            (8, 12), 64, 1.0,
            {
                "seconds_total": lambda drawn: 20.0,
                "text_lengths": lambda drawn: torch.tensor([2] * BATCH),
                "local_add_cond": lambda drawn: drawn(BATCH, 9, 12),
            },
        ),
        ("stable_audio3",),
    ),
    "stable_audio": SmallTransformer(
        lambda: StableAudioTransformer(StableAudioConfig(width=128, num_blocks=2, context_dim=64, in_channels=8)),
        _of(
            (8, 12), 64, 1.0,
            {
                "seconds_start": lambda drawn: 0.0,
                "seconds_total": lambda drawn: 20.0,
            },
        ),
        ("stable_audio",),
    ),
    "triposplat": SmallTransformer(
        lambda: TripoSplatTransformer(
            TripoSplatConfig(
                hidden_size=128, intermediate_size=128, num_layers=2, num_refiner_layers=1, num_heads=2,
                position_dim=8, context_dim=64, cell_dim=128,
            )
        ),
        lambda drawn: {
            "x": [drawn(BATCH, 12, 16), drawn(BATCH, 1, 5)],
            "timesteps": drawn.times(),
            "context": drawn(BATCH, 6, 64),
            "ref_latents": [drawn(BATCH, 128, 2, 2)],
        },
        ("triposplat",),
    ),
}  # fmt: skip


def small_transformer(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Inputs]:
    """Build the network of this name with random weights of a type, and its inputs."""
    made = TRANSFORMERS[name]
    with unfilled():
        network = made.build().requires_grad_(False).eval()
    give_memory(network, "cpu")
    generator = torch.Generator().manual_seed(0)
    for parameter in (item for _, item in sorted(network.named_parameters())):
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 0
        parameter.normal_(0.0, fan_in**-0.5 if fan_in > 1 else 0.2, generator=generator)
        if fan_in <= 1:
            parameter.add_(1.0)
    return network.to(dtype), made.inputs(Drawn(dtype))
