"""Encoding of prompts with weights, given as chunks of tokens, to conditioning by BERT."""

from __future__ import annotations

from darkroom.engine.text.bert_tokens import END_TOKEN, PAD_TOKEN, START_TOKEN
from darkroom.engine.text.t5_encoding import T5Encoder


class BertEncoder(T5Encoder):
    """An encoder of chunks of tokens. `transformer` is `engine/families/hunyuan_dit/bert.py::BertModel`."""

    def empty(self, length: int) -> list[int]:
        """Return the tokens of an empty prompt of that length, at least the start and the end token."""
        return [START_TOKEN, END_TOKEN, *[PAD_TOKEN] * (length - 2)]
