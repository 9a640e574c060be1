"""The tokenizer of Llama 3 (arXiv 2407.21783, section 3.2), which files of its weights bring with them or beside them.

It is a `tokenizer.json` of the tokenizers library. The library is imported at the first prompt.
"""

from __future__ import annotations

import json
from functools import lru_cache

from darkroom.engine.text.clip_tokens import byte_letters
from darkroom.engine.text.vocabulary import LibraryVocabulary

START_TOKEN, PAD_TOKEN = 128000, 128009
SPECIAL = {"<|begin_of_text|>": START_TOKEN, "<|eot_id|>": PAD_TOKEN}


@lru_cache(maxsize=2)
def llama_vocabulary(content: bytes) -> LibraryVocabulary:
    """Return the tokenizer of a `tokenizer.json`, built once for the latest ones. Raises ValueError."""
    from tokenizers import Tokenizer  # a prompt for another encoder does without it

    try:
        return LibraryVocabulary(Tokenizer.from_buffer(content))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise ValueError(
            f"tokenizer: invalid tokenizer.json; got {len(content)} bytes, expected one of the tokenizers library"
        ) from error


def byte_tokenizer() -> bytes:
    """Return a `tokenizer.json` that reads a text byte by byte, for encoders with random weights."""
    pieces = {letter: number for number, letter in enumerate(byte_letters().values())}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {
                    "id": number, "content": mark, "special": True, "normalized": False, "single_word": False,
                    "lstrip": False, "rstrip": False,
                }
                for mark, number in SPECIAL.items()
            ],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {**pieces, **SPECIAL}, "merges": []},
        }
    ).encode()  # fmt: skip
