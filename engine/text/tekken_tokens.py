"""The tokenizer of Mistral's models since 2024 ("tekken"), which files of their weights bring with them as JSON.

The file lists special tokens, which have the first numbers, and the bytes of the others by rank. Pairs are joined by
rank (Sennrich et al. 2016, arXiv 1508.07909). Words are parted as ComfyUI parts them, not by the pattern in the file.
The tokenizers library is imported at the first prompt.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from functools import lru_cache

from darkroom.engine.text.clip_tokens import byte_letters
from darkroom.engine.text.vocabulary import LibraryVocabulary

START_TOKEN, END_TOKEN, UNKNOWN_TOKEN = 1, 2, 0
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+"
)
SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
)  # fmt: skip


@lru_cache(maxsize=2)
def tekken_vocabulary(content: bytes) -> LibraryVocabulary:
    """Return the tokenizer of a tekken file, built once for the latest ones. Raises ValueError."""
    # Here alone: a prompt for another encoder does without it.
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    try:
        special, ranks = _read(json.loads(content))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"tokenizer: invalid tekken file; got {len(content)} bytes, expected JSON with 'config', 'vocab' and "
            "'special_tokens'"
        ) from error
    letters = byte_letters()
    pieces = {token: "".join(letters[byte] for byte in token) for token in ranks}
    numbers = {text: number for number, text in enumerate([*special, *pieces.values()])}
    merges = [(pieces[first], pieces[second]) for first, second in _merges(ranks)]
    made = Tokenizer(models.BPE(vocab=numbers, merges=merges, fuse_unk=False, ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    return LibraryVocabulary(made)


def _read(stored: Mapping[str, object]) -> tuple[list[str], dict[bytes, int]]:
    """Return the special tokens in order, and the rank of each other token that the model has, by its bytes."""
    config, words, marks = (stored[name] for name in ("config", "vocab", "special_tokens"))
    if not isinstance(config, dict) or not isinstance(words, list) or not isinstance(marks, list):
        raise TypeError("parts of a tekken file")
    special = [
        b64decode(mark["token_bytes"]).decode() if "token_bytes" in mark else str(mark["token_str"]) for mark in marks
    ]
    num_ranks = int(config["default_vocab_size"]) - len(marks)
    ranks = {b64decode(word["token_bytes"]): int(word["rank"]) for word in words if int(word["rank"]) < num_ranks}
    return special, ranks


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs that are joined, by the rank of what they become and their own."""
    for token in sorted((token for token in ranks if len(token) > 1), key=ranks.__getitem__):
        cuts = ((token[:place], token[place:]) for place in range(1, len(token)))
        pairs = [pair for pair in cuts if pair[0] in ranks and pair[1] in ranks]
        yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def byte_tekken() -> bytes:
    """Return a tekken file that reads a text byte by byte, for encoders with random weights."""
    special = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(SPECIAL)]
    words = [{"rank": rank, "token_bytes": b64encode(bytes([rank])).decode(), "token_str": None} for rank in range(256)]
    config = {"default_vocab_size": len(special) + len(words), "default_num_special_tokens": len(special)}
    return json.dumps({"config": config, "vocab": words, "special_tokens": special}).encode()
