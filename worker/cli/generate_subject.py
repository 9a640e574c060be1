"""Meaning of the first argument of `darkroom generate` that is no file: modifier, prompt, or mistake."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from darkroom.contract.missing_file import missing_file
from darkroom.contract.nearest import nearest_name

DRAWN_FIRST: Final = "Text2Image"
MODIFIER_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
ASSIGNED_FIRST: Final = re.compile(r"[A-Za-z0-9_#.]+=\S")
FILE_SUFFIX: Final = re.compile(
    r"\.(json|png|jpe?g|webp|avif|gif|bmp|tiff?|svg|mp4|webm|mkv|mov|flac|mp3|ogg|opus|wav|latent|safetensors|ckpt|pt|pth"
    r"|gguf|ya?ml|toml|txt|csv|zip)$",
    re.IGNORECASE,
)
ANY_SUFFIX: Final = re.compile(r"\w\.[A-Za-z][A-Za-z0-9]{1,5}$")  # of one word, which may be a misspelt ending
PATH_START: Final = re.compile(r"(/|~/|\.{1,2}/|[A-Za-z]:\\)\S")
CERTAIN: Final = 0.8  # alike enough for a lower-case word, which may well be a prompt
LIKELY: Final = 0.6


class SubjectUnclear(ValueError):
    """Error for a first argument that is neither a file, a modifier nor a prompt; the message says what was meant."""


def modifier_of(subject: str, values: Collection[str], modifiers: Sequence[str], stored: Sequence[str] = ()) -> str:
    """Return the modifier for a subject that is no file: itself where it is one, else Text2Image, whose prompt it is.

    `values`: the names of NAME=VALUE after it. Raises SubjectUnclear for what a person who wants these words drawn
    would not have written.
    """
    if subject in modifiers:
        return subject
    if ASSIGNED_FIRST.match(subject):
        example = f"`darkroom generate {DRAWN_FIRST} {subject}`"
        raise SubjectUnclear(f"NAME=VALUE before any modifier or file; expected a modifier first, such as {example}")
    if looks_like_path(subject):
        raise SubjectUnclear(f"{missing_file(Path(subject).expanduser())}; as {_as_prompt(subject)}")
    if MODIFIER_NAME.fullmatch(subject):
        _refuse_misspelt(subject, values, modifiers, stored)
    if "prompt" in values:
        raise SubjectUnclear("a prompt, and prompt=… after it; expected one of them")
    return DRAWN_FIRST


def looks_like_path(text: str) -> bool:
    """Return True for a text written as a path: with the ending of a file, or one word with a folder before it."""
    is_one_word = not re.search(r"\s", text)
    is_named_like_a_file = is_one_word and (re.search(r"[\\/]", text) or ANY_SUFFIX.search(text))
    return bool(FILE_SUFFIX.search(text) or PATH_START.match(text) or is_named_like_a_file)


def _refuse_misspelt(word: str, values: Collection[str], modifiers: Sequence[str], stored: Sequence[str]) -> None:
    if word in stored:
        raise SubjectUnclear(f"is a stored workflow; expected `darkroom generate --workflow {word}`")
    nearest = nearest_name(word, (*modifiers, *stored), cutoff=CERTAIN if word.islower() and not values else LIKELY)
    if nearest is not None:
        meant = f"--workflow {nearest}" if nearest in stored else nearest
        raise SubjectUnclear(f"unknown modifier; did you mean `{meant}`? As {_as_prompt(word)}")
    if values:
        known = ", ".join(modifiers)
        raise SubjectUnclear(
            f"unknown modifier, with NAME=VALUE after it; expected one of {known}; as {_as_prompt(word)}"
        )


def _as_prompt(words: str) -> str:
    return f"a prompt it is `darkroom generate {DRAWN_FIRST} prompt={_quoted(words)}`"


def _quoted(words: str) -> str:
    return words if re.fullmatch(r"[\w./-]+", words) else f'"{words}"'
