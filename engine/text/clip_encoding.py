"""Encoding of prompts with weights, given as chunks of tokens, to conditioning by CLIP text encoders.

`B` chunks, `T` tokens, `D` width. A model's encoders form a set, each under its slot (`l`, `g`, `h`...). The modules
are called `clip_<slot>`, as in ComfyUI, because LoRA files and custom nodes use these names of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.engine.text.chunk_encoding import ChunkEncoder, Encoded, TokenWeights
from darkroom.engine.text.encoder_members import Result, encoded_of, result_of
from darkroom.engine.text.state_projection import StateProjection

START_TOKEN, END_TOKEN = 49406, 49407


@dataclass(frozen=True, slots=True)
class ClipEncoding:
    """Settings with which a model uses one of its text encoders.

    `layer` is the layer whose output is the conditioning unless a node asks for another one: None is the last, -2 the
    one before. `num_layers` is from where it is counted, in files too that leave out the layers behind it; None means
    that no file does. `normalises_layer` says that the output of a chosen layer passes the final norm, as that of the
    last one always does. `masks_padding`: no token attends to the padding. `embedding_width` is that of the textual
    inversions made for it.
    """

    slot: str
    embedding_width: int
    pad_token: int = END_TOKEN
    layer: int | None = None
    projects_pooled: bool = True
    num_layers: int | None = None
    normalises_layer: bool = True
    masks_padding: bool = False

    @property
    def key(self) -> str:
        """ComfyUI's name of the encoder."""
        return f"clip_{self.slot}"

    @property
    def start_token(self) -> int:
        return START_TOKEN

    @property
    def end_token(self) -> int:
        return END_TOKEN


class ClipEncoder(ChunkEncoder):
    """An encoder of chunks of tokens. `transformer` is `engine/layers/clip_text.py::ClipTextModel`."""

    encoding: ClipEncoding

    def encode(
        self, chunks: Sequence[Sequence[Any]], layer_idx: int | None = None, project_pooled: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (conditioning [B, T, D], pooled [B, D]), float32. A layer beyond the first means the last one.

        The pooled output is projected where both the caller and the encoding want that.
        """
        embedded = [self._embed(chunk) for chunk in chunks]
        embeds = torch.stack([rows for rows, _ in embedded])
        layer = self._layer(self.encoding.layer if layer_idx is None else layer_idx)
        places = [_pooled_place(chunk, num_rows) for chunk, (_, num_rows) in zip(chunks, embedded, strict=True)]
        ends = torch.tensor(places, device=embeds.device)
        mask = _without_padding(ends, embeds) if self.encoding.masks_padding else None
        last, chosen = self.transformer.text_model(
            embeds, layer, normalises_layer=self.encoding.normalises_layer, mask=mask
        )
        pooled = last[torch.arange(last.shape[0], device=last.device), ends]
        if project_pooled and self.encoding.projects_pooled:
            pooled = self.transformer.text_projection(pooled)
        return chosen.float(), pooled.float()

    def encode_chunks(self, chunks: Sequence[Sequence[Any]], layer_idx: int | None, *, project_pooled: bool) -> Encoded:
        return Encoded(*self.encode(chunks, layer_idx, project_pooled))

    def empty(self, length: int) -> list[int]:
        return [START_TOKEN, END_TOKEN, *[self.encoding.pad_token] * (length - 2)]

    def _layer(self, layer_idx: int | None) -> int | None:
        """Return the index of a layer of the network, None for the last one."""
        counted = self.encoding.num_layers or self.num_layers
        if layer_idx is None or abs(layer_idx) > counted:
            return None
        index = layer_idx % counted
        return index if index < self.num_layers else None


def _pooled_place(chunk: Sequence[Any], num_rows: Sequence[int]) -> int:
    """Return the place of the row whose output is the pooled one.

    It is the first end token's, moved on by the embeddings behind it, as in ComfyUI, which counts them in wherever they
    are; only a prompt that spells an end token out has any there.
    """
    num_counted, has_ended = 0, False
    for token, num in zip(chunk, num_rows, strict=True):
        is_number = not isinstance(token, torch.Tensor)
        num_counted += 0 if is_number and has_ended else num
        has_ended = has_ended or (is_number and int(token) == END_TOKEN)
    return num_counted - 1


def _without_padding(ends: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
    """Return the mask [B, 1, T, T] by which tokens of `embeds` [B, T, D] attend to those before them, up to the end."""
    places = torch.arange(embeds.shape[1], device=embeds.device)
    is_seen = (places[None, :] <= places[:, None])[None] & (places[None, None, :] <= ends[:, None, None])
    mask = torch.zeros(is_seen.shape, dtype=embeds.dtype, device=embeds.device)
    return mask.masked_fill(~is_seen, -torch.inf)[:, None]


def only_encoder(encoded: Mapping[str, Encoded]) -> Encoded:
    """Return the conditioning of a set of one encoder."""
    (result,) = encoded.values()
    return result


class TextEncoderSet(nn.Module):
    """The text encoders of a model: prompts with weights -> conditioning.

    `combine` makes one conditioning of those of the encoders, by slot, after those that are `StateProjection`s have
    read others. `family` is the `ModelFamily` that the set
    belongs to.
    """

    def __init__(
        self,
        encoders: Sequence[ClipEncoder],
        *,
        combine: Callable[[Mapping[str, Encoded]], Encoded] = only_encoder,
        family: Any = None,
    ) -> None:
        super().__init__()
        for encoder in encoders:
            self.add_module(encoder.encoding.key, encoder)
        self.slots = {encoder.encoding.slot: encoder.encoding.key for encoder in encoders}
        self.family = family
        self._combine = combine
        # ComfyUI keeps text encoders as float16, so what it patches is rounded to that; see `engine/memory`.
        self.patched_dtype: torch.dtype | None = None
        self.compute_dtype: torch.dtype | None = None  # what it is cast to while it computes; None: what all are

    def encoders(self) -> dict[str, ClipEncoder]:
        """Return the encoders by slot."""
        found: dict[str, Any] = {slot: getattr(self, key) for slot, key in self.slots.items()}
        return found

    def _projected(self, encoded: Mapping[str, Encoded]) -> dict[str, Encoded]:
        """Return the encodings by slot, as those encoders project them that read another one in place of tokens."""
        found = dict(encoded)
        members: list[Any] = list(self.encoders().values())
        for encoder in members:
            if isinstance(encoder, StateProjection) and encoder.reads_slot in found:
                found[encoder.reads_slot] = encoder.projected(found[encoder.reads_slot])
        return found

    @property
    def clip(self) -> str:
        """ComfyUI's name of the first encoder."""
        return next(iter(self.slots.values()))

    @property
    def clip_name(self) -> str:
        """The slot of the first encoder."""
        return next(iter(self.slots))

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The types in which the encoders' weights are kept."""
        return {weight.dtype for weight in self.parameters()}

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        """Set `layer` and `projected_pooled` on every encoder, for its encodings in ComfyUI's form."""
        for encoder in self.encoders().values():
            encoder.set_clip_options(options)

    def reset_clip_options(self) -> None:
        for encoder in self.encoders().values():
            encoder.reset_clip_options()

    def load_sd(self, sd: Mapping[str, torch.Tensor]) -> Any:
        """Load weights by name into the encoder whose names they have; the first one takes those of one alone."""
        for key in self.slots.values():
            own = {name.removeprefix(f"{key}."): item for name, item in sd.items() if name.startswith(f"{key}.")}
            if own:
                return getattr(self, key).load_sd({name.removeprefix("transformer."): own[name] for name in own})
        return getattr(self, self.clip).load_sd(sd)

    @torch.no_grad()
    def encode_token_weights(self, token_weight_pairs: Mapping[str, Sequence[TokenWeights]]) -> Result:
        """Return (conditioning, pooled) of tokens by slot, with the options set on the encoders: ComfyUI's form."""
        encoded = {
            slot: encoded_of(encoder.encode_token_weights(token_weight_pairs[slot]))
            for slot, encoder in self.encoders().items()
            if slot in token_weight_pairs
        }
        return result_of(self._combine(self._projected(encoded)))

    def working_bytes(self, tokens: Mapping[str, Any]) -> int:
        """Return the working memory for encoding tokens by slot, beside that of any prompt."""
        itemsize = (self.compute_dtype or torch.float32).itemsize
        return sum(encoder.working_bytes(tokens, itemsize) for encoder in self.encoders().values())

    def encode_weighted(
        self, token_weight_pairs: Mapping[str, Sequence[TokenWeights]], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the encoding of the tokens by slot, [1, T * chunks, D]; the pooled output is the first chunk's.

        An encoder without tokens takes no part. Where a pack has put a function into the place of an encoder's
        `encode_token_weights`, or of the set's, that one encodes.
        """
        options: dict[str, Any] = {"projected_pooled": project_pooled}
        if layer_idx is not None:
            options["layer"] = layer_idx
        replaced = _replaced(self)
        if replaced is not None:
            with _options_set(self, options):
                return encoded_of(replaced(token_weight_pairs))
        encoders = self.encoders()
        found = {
            slot: _encoded(encoder, token_weight_pairs, options, layer_idx, project_pooled)
            for slot, encoder in encoders.items()
            if slot in token_weight_pairs
        }
        encoded = self._combine(self._projected(found))
        further: dict[str, object] = {}
        for encoder in encoders.values():
            further |= encoder.further_options(token_weight_pairs)
        return encoded._replace(options={**encoded.options, **further}) if further else encoded


def _replaced(owner: Any) -> Callable[..., Any] | None:
    """Return the replacement that a pack has given for `encode_token_weights`; None for the method itself."""
    found: Any = vars(owner).get("encode_token_weights")
    return None if getattr(found, "__func__", None) is type(owner).encode_token_weights else found


@contextmanager
def _options_set(owner: Any, options: Mapping[str, Any]) -> Iterator[None]:
    """Set options on an encoder, or on those of a set, while the context is open."""
    owner.reset_clip_options()
    owner.set_clip_options(options)
    try:
        yield
    finally:
        owner.reset_clip_options()


def _encoded(
    encoder: Any,
    tokens: Mapping[str, Sequence[TokenWeights]],
    options: Mapping[str, Any],
    layer_idx: int | None,
    project_pooled: bool,
) -> Encoded:
    replaced = _replaced(encoder)
    if replaced is None:
        found: Encoded = encoder.encode_among(tokens, layer_idx=layer_idx, project_pooled=project_pooled)
        return found
    with _options_set(encoder, options):
        return encoded_of(replaced(tokens[encoder.encoding.slot]))
