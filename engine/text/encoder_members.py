"""The members that ComfyUI's text encoders have, for code that takes an encoder of a set by itself.

Such code sets options on the encoder, encodes tokens with them, and resets them (`SDClipModel` in
`comfy/sd1_clip.py`). The engine passes its options along with each call instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from darkroom.engine.text.encoded import NO_OPTIONS, Encoded

LOGIT_SCALE = 4.6055  # of CLIP's contrastive loss, which encoding does not use
CLIP_LENGTH = 77

ClipOptions = Mapping[str, Any]
Result = tuple[Any, ...]  # (conditioning, pooled output), or with a dictionary of further options behind them


def result_of(encoded: Encoded) -> Result:
    """Return an encoding in ComfyUI's form, on the CPU, with the further options behind it where there are any."""
    pooled = None if encoded.pooled is None else encoded.pooled.to("cpu")
    further = {key: item.to("cpu") if isinstance(item, torch.Tensor) else item for key, item in encoded.options.items()}
    return (encoded.cond.to("cpu"), pooled, further) if further else (encoded.cond.to("cpu"), pooled)


def encoded_of(result: Sequence[Any]) -> Encoded:
    """Return the encoding that a function in ComfyUI's form gave."""
    cond, pooled, *further = result
    return Encoded(cond, pooled, further[0] if further else NO_OPTIONS)


class EncoderMembers:
    """Members of an encoder of one slot. `encoding` has its settings, `encode_weighted` encodes."""

    LAYERS: ClassVar[Sequence[str]] = ("last", "pooled", "hidden", "all")
    token_options: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Slots of tokens that are no input of the network: options [1, N] of the conditioning, by their names."""

    weighted_token_options: ClassVar[Mapping[str, tuple[str, str]]] = MappingProxyType({})
    """Such slots whose tokens and their weights are two options, [N] each, by their names."""

    operations: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    execution_device: torch.device | None = None
    encoding: Any
    transformer: Any
    num_layers: int
    encode_weighted: Any

    def further_options(self, tokens: Mapping[str, Any]) -> dict[str, object]:
        """Return options of the conditioning beside those of the encoder's own chunks, by the tokens of all slots."""
        options: dict[str, object] = {
            option: torch.tensor([[int(token) for token, *_ in tokens[slot][0]]])
            for slot, option in self.token_options.items()
            if slot in tokens
        }
        for slot, (numbers, weights) in self.weighted_token_options.items():
            if slot in tokens:
                options[numbers] = torch.tensor([int(token) for token, *_ in tokens[slot][0]], dtype=torch.int)
                options[weights] = torch.tensor([float(weight) for _, weight, *_ in tokens[slot][0]])
        return options

    def encode_among(self, tokens: Mapping[str, Any], *, layer_idx: int | None, project_pooled: bool) -> Encoded:
        """Return the encoding of the encoder's own chunks among the tokens of all slots and what nodes leave beside."""
        chunks = tokens[self.encoding.slot]
        encoded: Encoded = self.encode_weighted(chunks, layer_idx=layer_idx, project_pooled=project_pooled)
        return encoded

    def working_bytes(self, tokens: Mapping[str, Any], itemsize: int) -> int:
        """Return the working memory for encoding tokens beside that of any prompt, for numbers of so many bytes."""
        return 0

    def set_up_options(self) -> None:
        """Set the options that every encoder begins with, those of its encoding."""
        self._layer_idx: int | None = getattr(self.encoding, "layer", None)
        self.layer: Any = "last" if self._layer_idx is None else "hidden"
        self.return_projected_pooled: bool = getattr(self.encoding, "projects_pooled", True)
        self.options_default = (self.layer, self._layer_idx, self.return_projected_pooled)

    @property
    def layer_idx(self) -> int | None:
        """The layer whose output is the conditioning; None is the last one, -2 the one before."""
        return self._layer_idx

    @layer_idx.setter
    def layer_idx(self, layer_idx: int | None) -> None:
        self._layer_idx = layer_idx

    @property
    def special_tokens(self) -> dict[str, int]:
        """Tokens by `start`, `end` and `pad`; those that the encoder has."""
        named = {
            "start": getattr(self.encoding, "start_token", None),
            "end": getattr(self.encoding, "end_token", None),
            "pad": self.encoding.pad_token,
        }
        return {name: token for name, token in named.items() if token is not None}

    @property
    def max_length(self) -> int:
        """The tokens of a chunk."""
        return CLIP_LENGTH

    @property
    def logit_scale(self) -> torch.Tensor:
        return torch.tensor(LOGIT_SCALE)

    @property
    def layer_norm_hidden_state(self) -> bool:
        """True if the output of a chosen layer passes the final norm."""
        return bool(getattr(self.encoding, "normalises_layer", True))

    @property
    def enable_attention_masks(self) -> bool:
        """True if no token attends to the padding."""
        return bool(getattr(self.encoding, "masks_padding", False))

    @property
    def zero_out_masked(self) -> bool:
        """True if the conditioning of the padding is zero."""
        return bool(getattr(self.encoding, "zeroes_padding", False))

    @property
    def return_attention_masks(self) -> bool:
        """True if the mask of the tokens is an option of the conditioning."""
        return bool(getattr(self.encoding, "returns_mask", False))

    def freeze(self) -> None:
        """Do nothing: no weight of the engine's is trained."""

    def set_clip_options(self, options: ClipOptions) -> None:
        """Set `layer` and `projected_pooled` for the encodings that follow; a layer beyond the first means the last."""
        layer_idx = options.get("layer", self._layer_idx)
        self.return_projected_pooled = options.get("projected_pooled", self.return_projected_pooled)
        self.execution_device = options.get("execution_device", self.execution_device)
        if layer_idx is None or abs(layer_idx) > self.num_layers:
            self.layer = "last"
        else:
            self.layer, self._layer_idx = "hidden", layer_idx

    def reset_clip_options(self) -> None:
        self.layer, self._layer_idx, self.return_projected_pooled = self.options_default
        self.execution_device = None

    @torch.no_grad()
    def encode_token_weights(self, token_weight_pairs: Sequence[Any]) -> Result:
        """Return (conditioning [1, T, D], pooled [1, D]) of chunks of (token, weight), with the options that are set.

        Further options, such as the mask of the tokens, are a dictionary behind them where the encoder has some.
        """
        layer_idx = self._layer_idx if self.layer == "hidden" else None
        owner: Any = self
        project = self.return_projected_pooled
        return result_of(owner.encode_weighted(token_weight_pairs, layer_idx=layer_idx, project_pooled=project))

    @torch.no_grad()
    def process_tokens(
        self, tokens: Sequence[Sequence[Any]], device: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor, list[int], list[dict[str, Any]]]:
        """Return the rows [B, T, D] of chunks of tokens, their mask [B, T], how many count, and their embeddings.

        Tokens behind the end token count for nothing. Each embedding is its `type`, first row (`index`) and `size`.
        """
        owner: Any = self
        embedded = [owner._embed(chunk) for chunk in tokens]
        masks = [self._mask_of(chunk, num_rows) for chunk, (_, num_rows) in zip(tokens, embedded, strict=True)]
        length = max((rows.shape[0] for rows, _ in embedded), default=0)
        masks = [[*mask, *[0] * (length - len(mask))] for mask in masks]
        found: list[dict[str, Any]] = []
        for chunk, (_, num_rows) in zip(tokens, embedded, strict=True):
            index = 0
            for token, size in zip(chunk, num_rows, strict=True):
                if isinstance(token, torch.Tensor) and size:
                    found.append({"type": "embedding", "index": index, "size": size, "extra": None})
                index += size
        rows = torch.stack([rows for rows, _ in embedded])
        mask = torch.tensor(masks, dtype=torch.long, device=rows.device)
        return rows.to(device), mask.to(device), [sum(item) for item in masks], found

    def _mask_of(self, chunk: Sequence[Any], num_rows: Sequence[int]) -> list[int]:
        end = self.special_tokens.get("end", self.encoding.pad_token)
        counts_end = "end" in self.special_tokens
        mask: list[int] = []
        has_ended = False
        for token, size in zip(chunk, num_rows, strict=True):
            is_number = not isinstance(token, torch.Tensor)
            is_end = is_number and int(token) == end and not has_ended
            mask += [int(not (has_ended and is_number) and (not is_end or counts_end))] * size
            has_ended = has_ended or is_end
        return mask

    def load_sd(self, sd: Mapping[str, torch.Tensor]) -> Any:
        """Load weights by name into the network; return the names that it lacks and those that it does not have."""
        return self.transformer.load_state_dict(dict(sd), strict=False)
