"""The tokenizer of Llama 3 (arXiv 2407.21783, section 3.2), which files of its weights bring with them or beside them.

It is a `tokenizer.json` of the tokenizers library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from darkroom.engine.text.clip_tokens import byte_letters

START_TOKEN, PAD_TOKEN = 128000, 128009
SPECIAL = {"<|begin_of_text|>": START_TOKEN, "<|eot_id|>": PAD_TOKEN}


def byte_tokenizer(special: Mapping[str, int] = SPECIAL) -> bytes:
    """Return a `tokenizer.json` that reads a text byte by byte, for encoders with random weights.

    `special` are tokens by their texts.
    """
    pieces = {letter: number for number, letter in enumerate(byte_letters().values())}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {
                    "id": number, "content": mark, "special": True, "normalized": False, "single_word": False,
                    "lstrip": False, "rstrip": False,
                }
                for mark, number in special.items()
            ],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {**pieces, **special}, "merges": []},
        }
    ).encode()  # fmt: skip
