"""The transformer of Z-Image (Cai et al. 2025, arXiv 2511.22699), with the reference images of its Omni form.

Without references it is Lumina-Image 2.0's. With them each reference image, and the generated one, has a text before
it, and tokens of SigLIP 2 between both where the network has layers for them; each of these is filled up to a multiple
of 32 tokens. Texts, tokens of SigLIP 2 and images pass blocks of their own, then all of them pass the others together.
Tokens of references are modulated as at the end of denoising. `B` batch, `C` channels, `h w` latent cells, `L` tokens
of a text, `T` tokens, `D` hidden size. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.lumina2.layers import TIME_LAYER, JointBlock, Lumina2Config, lumina2_config
from darkroom.engine.families.lumina2.transformer import PAD_MULTIPLE, Drawn, Lumina2Transformer, filled_up
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import pad_to_patches
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.unet_layers import Options

VISION_EMBEDDER = "siglip_embedder.1.weight"
VISION_STEP = (
    8  # positions from one of SigLIP 2's patches to the next, of 16 pixels: those of latent patches are 2 apart
)


@dataclass(frozen=True, slots=True)
class ZImageConfig(Lumina2Config):
    """Configuration of the network. `vision_dim` are the channels of SigLIP 2's tokens, 0 where it reads none."""

    vision_dim: int = 0


def z_image_config(shapes: Shapes) -> ZImageConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    if TIME_LAYER not in shapes:
        raise KeyError(TIME_LAYER)
    base = lumina2_config(shapes)
    values = {name: getattr(base, name) for name in Lumina2Config.__dataclass_fields__}
    return ZImageConfig(**values, vision_dim=shapes[VISION_EMBEDDER][1] if VISION_EMBEDDER in shapes else 0)


@dataclass(slots=True)
class Stream:
    """Tokens of one kind, texts or images say, in parts [B, T, D] with their positions [1, T, 3]."""

    parts: list[torch.Tensor] = field(default_factory=list)
    positions: list[torch.Tensor] = field(default_factory=list)

    def add(self, tokens: torch.Tensor, positions: torch.Tensor) -> None:
        """Add a part behind the others."""
        self.parts.append(tokens)
        self.positions.append(positions)

    def tokens(self) -> torch.Tensor:
        """Return the tokens of all parts."""
        return torch.cat(self.parts, dim=1)

    def all_positions(self) -> torch.Tensor:
        """Return the positions of all parts."""
        return torch.cat(self.positions, dim=1)

    def num_tokens(self, num_parts: int) -> int:
        """Return the number of tokens of the first parts."""
        return sum(part.shape[1] for part in self.parts[:num_parts])


class ZImageTransformer(Lumina2Transformer):
    """`forward(x [B, C, h, w], timesteps [B], context [B, L, D])` -> `[B, C, h, w]`.

    `ref_latents` are reference images [B, C, h, w] of any size, `ref_contexts` the texts [B, L, D] before them, those
    behind the last one's follow the generated image's, and `siglip_feats` SigLIP 2's tokens [B, rows, columns, D'] of
    them. Any of the latter two may be fewer.
    """

    def __init__(self, config: ZImageConfig) -> None:
        super().__init__(config)
        self.vision_dim = config.vision_dim
        if config.vision_dim:
            self.siglip_embedder = nn.Sequential(
                RmsNorm(config.vision_dim, 1e-5), Linear(config.vision_dim, config.width)
            )
            self.siglip_refiner = nn.ModuleList(
                JointBlock(config, is_modulated=False) for _ in range(config.num_refiners)
            )
            self.siglip_pad_token = nn.Parameter(torch.empty(1, config.width))

    def forward(  # type: ignore[override]  # names of inputs that the network without references ignores
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        ref_latents: Sequence[torch.Tensor] = (),
        ref_contexts: Sequence[torch.Tensor] = (),
        siglip_feats: Sequence[torch.Tensor] = (),
        **kwargs: object,
    ) -> torch.Tensor:
        if not ref_latents:
            return super().forward(x, timesteps, context, y, control, transformer_options)
        options, (height, width) = transformer_options, x.shape[-2:]
        padded = pad_to_patches(x, self.patch_size)
        given = [pad_to_patches(item, self.patch_size) for item in ref_latents]
        texts, seen, images = self._streams([*given, padded], context, ref_contexts, siglip_feats, options)

        text_pe, image_pe = self.rotations(texts.all_positions()), self.rotations(images.all_positions())
        text, image = self.refined_text(texts.tokens(), text_pe, options), images.tokens()
        num_text, num_images = texts.num_tokens(len(given)), images.num_tokens(len(given))  # of references
        time, clean = (self.time_of(item, x.dtype) for item in (timesteps, torch.zeros_like(timesteps)))
        drawn = Drawn(padded, time, clean, image_pe[:, :, num_images:])
        image = self.refined_image(image, image_pe, drawn, text, options)

        tokens = [text[:, :num_text], image[:, :num_images], text[:, num_text:], image[:, num_images:]]
        pe = [text_pe[:, :, :num_text], image_pe[:, :, :num_images], text_pe[:, :, num_text:], drawn.pe]
        if seen.parts:
            vision_pe = self.rotations(seen.all_positions())
            tokens.insert(0, self._refined_vision(seen.tokens(), vision_pe, options))
            pe.insert(0, vision_pe)
        num_clean = sum(item.shape[1] for item in tokens[:-2])
        out = self.through(torch.cat(tokens, dim=1), torch.cat(pe, dim=2), drawn, image, options, num_clean)
        return -self.image_of(out, drawn)[..., :height, :width]

    def _streams(
        self,
        given: Sequence[torch.Tensor],
        context: torch.Tensor,
        contexts: Sequence[torch.Tensor],
        seen: Sequence[torch.Tensor],
        options: Options | None,
    ) -> tuple[Stream, Stream, Stream]:
        """Return texts, tokens of SigLIP 2 and images, those of references first. Texts are without their blocks."""
        texts, vision, images = Stream(), Stream(), Stream()
        after, num_references = 0, len(given) - 1
        for index, image in enumerate(given):
            is_drawn = index == num_references
            words = context if is_drawn else contexts[index] if index < len(contexts) else context[:, :0]
            tokens, positions, position = self._embedded_words(words, after)
            texts.add(tokens, positions)
            if self.vision_dim:
                position = after + words.shape[1] + 1  # positions of filling tokens are used again
                found = seen[index] if index < min(len(seen), num_references) else None
                vision.add(*self._embedded_vision(found, position + 1, tokens))
            images.add(*self.embedded_image(image, position, options))
            after = position + 1
        for words in contexts[num_references:]:
            tokens, positions, _ = self._embedded_words(words, after)
            texts.add(tokens, positions)
            after += words.shape[1]
        return texts, vision, images

    def _embedded_words(self, words: torch.Tensor, after: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return the tokens of a text, or filling tokens in place of none, as `embedded_text`."""
        if words.shape[1]:
            return self.embedded_text(words, after)
        filling = self.cap_pad_token.to(words).expand(words.shape[0], PAD_MULTIPLE, -1)
        positions = torch.zeros(1, PAD_MULTIPLE, 3, device=words.device)
        positions[..., 0] = torch.arange(after + 1, after + 1 + PAD_MULTIPLE, device=words.device)
        return filling, positions, after + 1 + PAD_MULTIPLE

    def _embedded_vision(
        self, seen: torch.Tensor | None, index: int, text: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return SigLIP 2's tokens [B, rows, columns, D'] of an image as [B, T, D] with their positions [1, T, 3].

        Filling tokens are in place of none, for as many items as those of `text` [B, L, D]. The tokens' channels are
        read as ComfyUI reads them, one channel of all tokens behind the other.
        """
        filling = self.siglip_pad_token
        if seen is None:
            filled = filling.to(text).expand(text.shape[0], PAD_MULTIPLE, -1)
            return filled, torch.zeros(1, PAD_MULTIPLE, 3, device=text.device)
        rows, columns, channels = seen.shape[1:]
        tokens = self.siglip_embedder(seen.permute(0, 3, 1, 2).reshape(seen.shape[0], rows * columns, channels))
        positions = torch.zeros(rows, columns, 3, device=seen.device)
        positions[..., 0] = index
        for axis, num in ((1, rows), (2, columns)):
            along = torch.linspace(0, VISION_STEP * num - 1, num, device=seen.device).floor()
            positions[..., axis] = along[:, None] if axis == 1 else along
        tokens = filled_up(tokens, filling)
        return tokens, functional.pad(positions.flatten(0, 1).unsqueeze(0), (0, 0, 0, tokens.shape[1] - rows * columns))

    def _refined_vision(self, tokens: torch.Tensor, pe: torch.Tensor, options: Options | None) -> torch.Tensor:
        for block in self.siglip_refiner:
            tokens = block(tokens, None, pe, options=options)
        return tokens
