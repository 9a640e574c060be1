"""The text encoders of HunyuanDiT: a bilingual BERT, and mT5-XL (Xue et al. 2020, arXiv 2010.11934).

`T` tokens, `D` width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from darkroom.engine.families.base import Network, Shapes, TextEncoder, TokenizerParts, Vocabulary
from darkroom.engine.families.hunyuan_dit.bert import EMBEDDING, BertConfig, BertModel, bert_config
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.text.t5 import t5_with_vocabulary
from darkroom.engine.layers.t5 import T5Config
from darkroom.engine.text.bert_encoding import BertEncoder
from darkroom.engine.text.bert_tokens import END_TOKEN, BertTokenizer, letter_pieces, word_pieces
from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.t5_encoding import T5Encoding

SLOT, SECOND_SLOT = "hydit_clip", "mt5xl"
PREFIX = f"text_encoders.{SLOT}.transformer."
WORDS = "vocab_txt"
NUM_TOKENS, NUM_SECOND = 77, 256  # at least
MASK, SECOND, SECOND_MASK = "attention_mask", "conditioning_mt5xl", "attention_mask_mt5xl"  # ComfyUI's names


@dataclass(frozen=True, slots=True)
class BertEncoding(T5Encoding):
    """Settings with which BERT is used; files of textual inversions have another name for it than its slot."""

    embedding_width: int = 1024


def tokens_of_both(encoded: Mapping[str, Encoded]) -> Encoded:
    """Return the tokens of BERT, with those of mT5 and both masks as options."""
    first, second = encoded[SLOT], encoded[SECOND_SLOT]
    options = {MASK: first.options[MASK], SECOND: second.cond, SECOND_MASK: second.options[MASK]}
    return Encoded(first.cond, None, options)


def lora_keys(weight_names: Iterable[str]) -> dict[str, str]:
    """Return a map from the names used in LoRA files to the weights of BERT."""
    prefix = f"{SLOT}.transformer."
    keys: dict[str, str] = {}
    for name in weight_names:
        if name.startswith(prefix) and name.endswith(".weight"):
            bare = name.removesuffix(".weight")
            keys[f"text_encoders.{bare}"] = name
            keys["lora_te1_" + bare.removeprefix(f"{prefix}bert.").replace(".", "_")] = name
    return keys


def _fits(shapes: Shapes) -> bool:
    return EMBEDDING in shapes


def _tokenizer(encoder: BertEncoder, parts: TokenizerParts) -> BertTokenizer:
    return BertTokenizer(
        parts.find_embedding(encoder.encoding),
        encoding=encoder.encoding,
        vocabulary=partial(word_pieces, encoder.vocabulary or b""),
    )


BERT = TextEncoder(
    encoding=BertEncoding(
        slot=SLOT, min_length=NUM_TOKENS, end_token=END_TOKEN, masks_padding=True, returns_mask=True
    ),
    network=Network(
        layouts=(behind_first((PREFIX, f"{SLOT}.transformer.", "transformer.", ""), EMBEDDING),),
        in_checkpoint=(behind_first((PREFIX,), EMBEDDING),),
        configure=bert_config,
        build=BertModel,
        saved=partial(saved_behind, PREFIX),
        sizes={
            "full": BertConfig(num_layers=24, width=1024, heads=16, inner_width=4096),
            "small": BertConfig(num_layers=2, width=64, heads=1, inner_width=128, vocabulary_size=384),
        },
    ),
    fits=_fits,
    lora_keys=lora_keys,
    encoder_type=BertEncoder,
    tokenizer=_tokenizer,
    vocabulary=Vocabulary(
        names=(WORDS,), in_checkpoint=f"text_encoders.{SLOT}.{WORDS}", random=letter_pieces,
        beside="hydit_vocab.txt",
    ),
)  # fmt: skip
MT5 = t5_with_vocabulary(
    T5Encoding(slot=SECOND_SLOT, embedding_width=2048, min_length=NUM_SECOND, masks_padding=True, returns_mask=True),
    {
        "full": T5Config(num_layers=24, width=2048, heads=32, inner_width=5120, vocabulary_size=250112),
        "small": T5Config(num_layers=2, width=64, heads=1, inner_width=128, vocabulary_size=384),
    },
    prefix=f"{SECOND_SLOT}.",
)
