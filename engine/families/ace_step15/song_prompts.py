"""Prompts that ACE-Step 1.5's language models read: of tags, lyrics and what is known of a song. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

CODES_PER_SECOND = 5
INSTRUCTION = "# Instruction\nGenerate audio semantic tokens based on the given conditions:\n\n"
TURNS = (
    f"<|im_start|>system\n{INSTRUCTION}<|im_end|>\n<|im_start|>user\n# Caption\n{{caption}}\n\n# Lyric\n{{lyrics}}\n"
    "<|im_end|>\n<|im_start|>assistant\n{thought}\n\n<|im_end|>\n"
)
LYRICS = "# Languages\n{language}\n\n# Lyric\n{lyrics}<|endoftext|><|endoftext|>"
CAPTION = INSTRUCTION + "# Caption\n{caption}\n\n# Metas\n{facts}\n<|endoftext|>\n<|endoftext|>"
THOUGHT = "<think>\n{}\n</think>"
THOUGHT_NAMES = ("bpm", "duration", "keyscale", "timesignature")  # in the order of the alphabet
FACT_NAMES = ("bpm", "timesignature", "keyscale", "duration")
UNKNOWN, UNSPECIFIED = "N/A", "unspecified"
QUARTERS = "/4"

PLAIN = re.compile(r"(?:\w|[-./]|(?<!\s)#| )*")  # of texts that need no quotes in YAML

Fact = str | int | float | None
Facts = Mapping[str, Fact]


@dataclass(frozen=True, slots=True)
class Song:
    """A song as nodes describe it: tags, lyrics, and facts by name (`bpm`, `duration` in seconds and so on).

    The negative ones are those of the prompt to lead away from.
    """

    caption: str
    lyrics: str = ""
    language: str = ""
    facts: Facts = field(default_factory=dict)
    negative_caption: str = ""
    negative_lyrics: str = ""
    negative_facts: Facts = field(default_factory=dict)


def whole_seconds(duration: Fact) -> int:
    """Return a length in whole seconds, of a number or a text that begins with one. Raises ValueError for others."""
    try:
        first = duration.split(None, 1)[0] if isinstance(duration, str) else duration
        seconds = math.ceil(float(first)) if first is not None else -1
    except (ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"duration: no number of seconds; got {duration!r}, expected one of at least 0") from error
    if seconds < 0:
        raise ValueError(f"duration: no number of seconds; got {duration!r}, expected one of at least 0")
    return seconds


def prompts_of(song: Song) -> dict[str, str]:
    """Return the prompts by slot: for codes, what leads away from it, of the lyrics, and of the caption."""
    negative = _thought(song.negative_facts) if song.negative_facts else THOUGHT.format("")
    return {
        "lm_prompt": TURNS.format(caption=song.caption, lyrics=song.lyrics.strip(), thought=_thought(song.facts)),
        "lm_prompt_negative": TURNS.format(
            caption=song.negative_caption, lyrics=song.negative_lyrics.strip(), thought=negative
        ),
        "lyrics": LYRICS.format(language=song.language, lyrics=song.lyrics),
        "qwen3_06b": CAPTION.format(caption=song.caption, facts=_listed(song.facts)),
    }


def _thought(facts: Facts) -> str:
    """Return the facts as the model's first thought, one a line as YAML has them."""
    known = {
        name: _signature(facts.get(name)) if name == "timesignature" else facts.get(name) for name in THOUGHT_NAMES
    }
    lines = (f"{name}: {_written(value)}" for name, value in known.items() if value not in (None, UNSPECIFIED))
    return THOUGHT.format("\n".join(lines))


def _listed(facts: Facts) -> str:
    """Return the facts as a list, with what is unknown."""
    known = {name: facts.get(name, UNKNOWN) for name in FACT_NAMES}
    known["timesignature"] = _signature(known["timesignature"])
    known["duration"] = f"{whole_seconds(known['duration'])} seconds"
    return "\n".join(f"- {name}: {value}" for name, value in known.items())


def _signature(value: Fact) -> Fact:
    return value.removesuffix(QUARTERS) if isinstance(value, str) else value


def _written(value: Fact) -> str:
    """Return a value as YAML has it: numbers without zeros before them, texts with other signs in quotes."""
    if not isinstance(value, str):
        return str(value)
    if value.isdecimal():
        return str(int(value))
    is_plain = value[:1].isalpha() and value == value.strip() and PLAIN.fullmatch(value) is not None
    return value if is_plain else "'" + value.replace("'", "''") + "'"
