"""SAM 3's text encoder: a CLIP of 32 tokens, to which several descriptions are given at once.

Descriptions are separated by commas, each with the number of objects that are wanted of it: `cat: 3, dog`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.chunk_tokens import Chunks, TokenizerOptions
from darkroom.engine.text.clip_encoding import ClipEncoder, ClipEncoding
from darkroom.engine.text.clip_tokens import ClipTokenizer

NUM_TOKENS: Final = 32
MAX_DESCRIPTIONS: Final = 256
MASK: Final = "attention_mask"
DESCRIPTIONS: Final = "sam3_per_prompt"
"""Key of the chunks of each description, with the number wanted, beside those of the first one."""

CONDITIONS: Final = "sam3_multi_cond"
"""Option of a conditioning with each description's embeddings, mask and number wanted."""

NUMBER = re.compile(r"[\d.]+")
BRACKETS = str.maketrans("", "", "()")


@dataclass(frozen=True, slots=True)
class Sam3Encoding(ClipEncoding):
    """The settings of the encoder, whose name is not that of its slot."""

    @property
    def key(self) -> str:
        return "sam3_clip"


def descriptions_of(text: str) -> list[tuple[str, int]]:
    """Return the descriptions in a text, each with the number of objects wanted, 1 where it says none.

    Raises ValueError for too many, and for a number that is none.
    """
    parts = [part.strip() for part in text.translate(BRACKETS).split(",")]
    parts = [part for part in parts if part]
    if len(parts) > MAX_DESCRIPTIONS:
        raise ValueError(
            f"text: got {len(parts)} descriptions separated by commas, expected at most {MAX_DESCRIPTIONS}"
        )
    return [_described(part) for part in parts]


def _described(part: str) -> tuple[str, int]:
    name, number = (item.strip() for item in part.rpartition(":")[::2])
    if not name or "\n" in name or not NUMBER.fullmatch(number):
        return part, 1
    try:
        return name, max(1, round(float(number)))
    except (OverflowError, ValueError) as error:
        raise ValueError(f"text: got {number[:20]!r} objects of {name[:40]!r}, expected a number") from error


class Sam3Tokenizer(ClipTokenizer):
    """Descriptions -> chunks of 32 tokens. Brackets are no weights."""

    max_length = NUM_TOKENS

    @property
    def key(self) -> str:
        return "sam3_clip"

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Return the chunks of the first description; those of all where there are several or a number is wanted."""
        described = descriptions_of(text)

        def chunks_of(description: str) -> Chunks:
            return super(Sam3Tokenizer, self).tokenize_with_weights(
                description, return_word_ids, tokenizer_options, disable_weights=True, **kwargs
            )

        if not described or (len(described) == 1 and described[0][1] == 1):
            return chunks_of(text)
        each = [(chunks_of(description)[self.slot], count) for description, count in described]
        return {self.slot: each[0][0], DESCRIPTIONS: each}


class Sam3TextEncoder(ClipEncoder):
    """The encoder, whose output comes with a mask of the tokens."""

    def encode_chunks(self, chunks: Sequence[Sequence[Any]], layer_idx: int | None, *, project_pooled: bool) -> Encoded:
        mask = torch.tensor([_seen(chunk, self.encoding.end_token) for chunk in chunks])
        return Encoded(*self.encode(chunks, layer_idx, project_pooled), {MASK: mask})

    def further_options(self, tokens: Mapping[str, Any]) -> dict[str, object]:
        """Return the embeddings of each description, where there are several."""
        if DESCRIPTIONS not in tokens:
            return {}
        conditions = []
        for chunks, count in tokens[DESCRIPTIONS]:
            encoded = self.encode_weighted(chunks, layer_idx=None, project_pooled=False)
            mask = encoded.options[MASK]
            conditions.append({"cond": encoded.cond.cpu(), MASK: mask, "max_detections": count})
        return {CONDITIONS: conditions}


def _seen(chunk: Sequence[Any], end_token: int) -> list[int]:
    """Return 1 for each row of a chunk up to its end, 0 for padding."""
    seen: list[int] = []
    has_ended = False
    for token in chunk:
        if isinstance(token, torch.Tensor):
            seen += [1] * max(1, token.numel() // token.shape[-1])
            continue
        seen.append(0 if has_ended else 1)
        has_ended = has_ended or int(token) == end_token
    return seen
