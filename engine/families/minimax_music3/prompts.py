"""Prompts of MiniMax Music 3: a caption without its markup, and lyrics a line a section, between special tokens.

Both are cleaned as the model was trained with them (ComfyUI's `comfy/ldm/minimax_music/prompt.py`).
"""

from __future__ import annotations

import re
from itertools import chain

MOST_CHARACTERS = 20_000  # of a caption or of lyrics; more are more tokens than the model reads
SPECIAL_TOKENS = {
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<|audio_cfg|>": 151654,
    "<|audio_start|>": 151669,
    "<|audio_end|>": 151670,
    "<|caption_start|>": 151671,
    "<|caption_end|>": 151672,
    "<|lyrics_start|>": 151673,
    "<|lyrics_end|>": 151674,
}
SPECIAL = re.compile(r"<\|([^|]*)\|>")
SECTION = re.compile(r"\[[^\]]+\]")
HEADING, BULLET = re.compile(r"^\s{0,3}#{1,6}\s+"), re.compile(r"^\s*[*+-]\s+")
BOLD, ITALIC = re.compile(r"\*\*([^*]+)\*\*"), re.compile(r"(?<!\*)\*([^*\n]+)\*(?!\*)")
RULE, LINES = re.compile(r"^\s*[-*_]{3,}\s*$", re.MULTILINE), re.compile(r"\n{2,}")
EMPTY_LINES = re.compile(r"\n{3,}")
MOST_NESTED = 100  # bold texts within each other
BULLET_SIGN, INDENT = "• ", "    "
LINE_BREAK = " ^ "  # in lyrics


def song_prompt(caption: str, lyrics: str) -> str:
    """Return the prompt of a song. Raises ValueError for a text that is too long."""
    for name, text in (("caption", caption), ("lyrics", lyrics)):
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"{name}: too long; got {len(text)} characters, expected at most {MOST_CHARACTERS}")
    return (
        f"<|im_start|><|caption_start|>{plain_caption(caption)}<|caption_end|>"
        f"<|lyrics_start|>{plain_lyrics(lyrics)}<|lyrics_end|><|im_end|><|audio_start|>"
    )


def plain_caption(caption: str) -> str:
    """Return a caption without Markdown, special tokens and empty lines."""
    lines = (_plain_line(line) for line in SPECIAL.sub(_named, caption).splitlines())
    text = EMPTY_LINES.sub("\n\n", "\n".join(lines))  # or rules would be looked for from each empty line
    return LINES.sub("\n", RULE.sub("", text).replace(BULLET_SIGN, "").replace(INDENT, ""))


def _named(special: re.Match[str]) -> str:
    """Return the words of a special token: `<|key value|>` as "key is value"."""
    words = special[1].split(None, 1)
    return f"{words[0]} is {words[1].rstrip()}" if len(words) == 2 else special[1].strip()


def _plain_line(line: str) -> str:
    line = BULLET.sub("", HEADING.sub("", line))
    for _ in range(MOST_NESTED):
        line, num_changes = BOLD.subn(r"\1", line)
        if not num_changes:
            break
    return ITALIC.sub(r"\1", line).rstrip()


def plain_lyrics(lyrics: str) -> str:
    """Return lyrics behind `[start]`, with sections like `[verse]` in lower case on lines of their own."""
    end = lyrics.rfind("]") + 1  # no section is behind it, however many begin there
    sections, texts = SECTION.findall(lyrics[:end]), SECTION.split(lyrics[:end])
    texts[-1] += lyrics[end:]
    for index in range(len(sections)):  # no blanks beside sections
        texts[index], texts[index + 1] = texts[index].rstrip(), texts[index + 1].lstrip()
    parts = [*chain.from_iterable(zip(texts, sections, strict=False)), texts[-1]]
    kept = (part.lower() if part.startswith("[") else part for part in parts if part)
    return "[start]\n" + "\n".join(kept).replace(LINE_BREAK, "\n")
