"""The text encoder of Lens: GPT-OSS 20B, of which four layers are read side by side, in a template of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from darkroom.engine.families.base import Network, Shapes, TextEncoder, TokenizerParts, Vocabulary
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.lens.gpt_oss import EXPERTS, MARK, GptOss, GptOssConfig, gpt_oss_config
from darkroom.engine.families.text.t5 import lora_keys
from darkroom.engine.text.chunk_encoding import Encoded, TokenEncoder, TokenWeights
from darkroom.engine.text.chunk_tokens import Chunks, ChunkTokenizer, TokenizerOptions
from darkroom.engine.text.language_encoding import LanguageEncoding
from darkroom.engine.text.llama_tokens import byte_tokenizer
from darkroom.engine.text.vocabulary import stored_vocabulary

SLOT = "gpt_oss"
HIDDEN_SIZE = 2880
PAD_TOKEN = 199999
LAYERS = (5, 11, 17, 23)  # those whose outputs are read
MOST_TOKENS = 512
EXPERT_COPIES = 6  # of an expert's inner values: gates and values together, each alone, and two steps of the gate
TEMPLATE_TOKENS = 97  # at the beginning, which the network was trained without
TOKENIZER = "tokenizer_json"
PREFIX = f"text_encoders.{SLOT}.transformer."
PREFIXES = (PREFIX, f"{SLOT}.transformer.", "transformer.", "model.", "")  # of files of the encoder alone
# The template of GPT-OSS's chats, with the instruction and the thought that the network was trained with.
TEMPLATE = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
    "Current date: 2026-05-23\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be "
    "included for every message.<|end|><|start|>developer<|message|># Instructions\n\nDescribe the image by detailing "
    "the color, shape, size, texture, quantity, text, spatial relationships of the objects and background.\n\n<|end|>"
    "<|start|>user<|message|>{}<|end|><|start|>assistant<|channel|>analysis<|message|>Need to generate one image "
    "according to the description.<|end|><|start|>assistant<|channel|>final<|message|>"
)


class LensEncoder(TokenEncoder):
    """GPT-OSS whose conditioning is what some layers return, side by side [1, T, layers * D].

    `vocabulary` is the serialised tokenizer of its file. A node that asks for another layer changes nothing.
    """

    def __init__(self, transformer: Any, encoding: LanguageEncoding, *, layers: tuple[int, ...]) -> None:
        super().__init__(transformer, encoding)
        self.vocabulary: bytes | None = None
        self.layers = layers

    @property
    def output_width(self) -> int:
        """Width of a token of the conditioning."""
        width: int = self.config.hidden_size
        return width * len(self.layers)

    def working_bytes(self, tokens: Mapping[str, Any], itemsize: int) -> int:
        """Return the bytes of what all experts of a layer make of all tokens, the most at one time."""
        per_token: int = EXPERT_COPIES * self.config.num_experts * self.config.intermediate_size
        return per_token * len(tokens[SLOT][0]) * itemsize

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T, layers * D] behind the template's beginning; there is no pooled output.

        It has no tokens for an empty prompt. Only the first chunk is read, and no weights.
        """
        tokens = [int(token[0]) for token in chunks[0]]
        table = self.transformer.get_input_embeddings()
        if not tokens:
            return Encoded(torch.zeros([1, 0, self.output_width], device=table.weight.device), None)
        rows = table(torch.tensor(tokens, device=table.weight.device))
        states: torch.Tensor = self.transformer(rows, self.layers)  # [T, N, D]
        return Encoded(states[TEMPLATE_TOKENS:].flatten(1)[None].float(), None)


class LensTokenizer(ChunkTokenizer):
    """Prompts -> one chunk of at most 512 tokens in the template, none for an empty prompt. Brackets are text."""

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: TokenizerOptions | None = None,
        disable_weights: bool = True,
        **kwargs: object,
    ) -> Chunks:
        """Return the chunk by slot; options have no effect."""
        if not text.strip():
            return {self.slot: [[]]}
        numbers = self.vocabulary().encode(TEMPLATE.replace("{}", text))[:MOST_TOKENS]
        ending = (0,) if return_word_ids else ()
        return {self.slot: [[(number, 1.0, *ending) for number in numbers]]}


def _tokenizer(encoder: LensEncoder, parts: TokenizerParts) -> LensTokenizer:
    assert encoder.vocabulary is not None
    return LensTokenizer(
        None, slot=SLOT, vocabulary=partial(stored_vocabulary, encoder.vocabulary), pad_token=PAD_TOKEN, min_length=1
    )


def fits(shapes: Shapes) -> bool:
    """Return True for a model of experts whose heads have sinks."""
    return {MARK, EXPERTS} <= shapes.keys()


GPT_OSS = TextEncoder(
    encoding=LanguageEncoding(slot=SLOT, embedding_width=HIDDEN_SIZE, pad_token=PAD_TOKEN),
    network=Network(
        layouts=(behind_first(PREFIXES, MARK),),
        in_checkpoint=(behind_first((PREFIX,), MARK),),
        configure=gpt_oss_config,
        build=GptOss,
        saved=partial(saved_behind, PREFIX),
        sizes={
            "full": GptOssConfig(),
            "small": GptOssConfig(
                hidden_size=64, intermediate_size=64, heads=2, key_heads=1, num_experts=6, vocabulary_size=512
            ),
        },
    ),
    fits=fits,
    lora_keys=partial(lora_keys, key=SLOT, numbers=()),
    encoder_type=partial(LensEncoder, layers=LAYERS),
    tokenizer=_tokenizer,
    vocabulary=Vocabulary(
        names=(TOKENIZER,), in_checkpoint=f"text_encoders.{TOKENIZER}", random=byte_tokenizer,
        beside="gpt_oss_tokenizer.json",
    ),
)  # fmt: skip
