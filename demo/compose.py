"""Training images and their captions: things on plain backgrounds, with place, size, colour and count varied.

Everything is drawn from the generator that is passed in, so the same seed gives the same images.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demo.vocabulary import BACKGROUNDS, COUNTS, THINGS, Rgb, Thing

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # [H, W, channels]

SIDE = 128
COLOURED = 0.4  # share of the things that have colours which are drawn, and captioned, in one of them
SEVERAL = 0.1
SIZED = 0.06
PLAIN = 0.45  # share without a word for the background: it is white then

Images = dict[str, dict[str, Image.Image]]  # thing -> colour ("" as it is) -> RGBA


@dataclass(frozen=True, slots=True)
class Scene:
    """Content of an image. `places`: (centre x, centre y, side) of each copy, in pixels."""

    thing: Thing
    colour: str
    background: str
    places: tuple[tuple[int, int, int], ...]
    caption: str


def load_images(path: Path) -> Images:
    images: Images = {}
    with np.load(path) as stored:
        for key in stored.files:
            name, _, colour = key.partition("|")
            images.setdefault(name, {})[colour] = Image.fromarray(stored[key], "RGBA")
    return images


def draw_scene(rng: np.random.Generator, images: Images, num_things: int = len(THINGS)) -> Scene:
    thing = THINGS[rng.integers(num_things)]
    colours = [colour for colour in images[thing.name] if colour]
    colour = str(rng.choice(colours)) if colours and rng.random() < COLOURED else ""
    background = "" if rng.random() < PLAIN else str(rng.choice(list(BACKGROUNDS)))
    count = int(rng.choice(list(COUNTS))) if rng.random() < SEVERAL else 1
    size = str(rng.choice(["small", "big"])) if count == 1 and rng.random() < SIZED else ""
    caption = _caption(rng, thing, colour, background, count, size)
    return Scene(thing, colour, background, _places(rng, count, size), caption)


def _places(rng: np.random.Generator, count: int, size: str) -> tuple[tuple[int, int, int], ...]:
    def near(value: int, spread: int) -> int:
        return value + int(rng.integers(-spread, spread + 1))

    if count == 1:
        side = near({"small": 50, "big": 118}.get(size, 92), 6)
        spread = 12 if size == "small" else 5
        return ((near(64, spread), near(64, spread), side),)
    centres = {
        2: ((34, 64), (94, 64)),
        3: ((64, 34), (34, 92), (94, 92)),
        4: ((34, 34), (94, 34), (34, 94), (94, 94)),
    }[count]
    side = near(54, 3)
    return tuple((near(x, 3), near(y, 3), side) for x, y in centres)


def _caption(rng: np.random.Generator, thing: Thing, colour: str, background: str, count: int, size: str) -> str:
    noun = thing.plural if count > 1 else thing.name
    if count == 1 and not colour and rng.random() < 0.08:
        noun = thing.label
    words = " ".join(word for word in (size, colour, noun) if word)
    behind = f" on {_article(background)} {background} background" if background else ""
    if count > 1:
        return f"{COUNTS[count]} {words}{behind}"
    style = rng.random()
    if style < 0.7:
        return f"{_article(words)} {words}{behind}"
    if style < 0.85:
        return f"{words}, {background} background" if background else words
    return f"an image of {_article(words)} {words}{behind}"


def _article(words: str) -> str:
    return "an" if words[0] in "aeiou" and not words.startswith("uni") else "a"


def backdrop(rng: np.random.Generator, background: str) -> Rgb:
    """The colour behind: that of the word, a little off; white without a word."""
    red, green, blue = np.array(BACKGROUNDS[background or "white"]) + rng.integers(-6, 7, 3)
    return tuple(int(np.clip(channel, 0, 255)) for channel in (red, green, blue))  # type: ignore[return-value]


def render(scene: Scene, rng: np.random.Generator, images: Images) -> Pixels:
    """[128, 128, 3] uint8."""
    canvas = Image.new("RGB", (SIDE, SIDE), backdrop(rng, scene.background))
    image = images[scene.thing.name][scene.colour]
    for x, y, side in scene.places:
        scaled = image.resize((side, side), Image.Resampling.BICUBIC)
        canvas.paste(scaled, (x - side // 2, y - side // 2), scaled)
    return np.asarray(canvas)
