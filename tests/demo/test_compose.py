"""Scenes and captions, from images made up here: the npm packages are not at hand in a test."""

from __future__ import annotations

import numpy as np
from PIL import Image

from demo.compose import Images, draw_scene, render
from demo.evaluate import colour_behind
from demo.vocabulary import BACKGROUNDS, COUNTS, HUES, THINGS


def some_images() -> Images:
    dot = np.zeros((64, 64, 4), np.uint8)
    dot[16:48, 16:48] = (0, 255, 255, 255)
    image = Image.fromarray(dot)
    return {thing.name: {"": image} | {colour: image for colour in HUES if thing.is_dyed} for thing in THINGS}


def test_a_caption_says_what_the_image_shows() -> None:
    rng, images = np.random.default_rng(0), some_images()
    for _ in range(200):
        scene = draw_scene(rng, images)
        image = render(scene, rng, images)
        assert image.shape == (128, 128, 3)
        assert colour_behind(image) == (scene.background or "white")
        words = scene.caption
        assert scene.thing.name in words or scene.thing.plural in words or scene.thing.label in words
        assert scene.colour in words
        assert f"{scene.background} background" in words if scene.background else "background" not in words
        number = COUNTS.get(len(scene.places))
        assert number is None or words.startswith(number)


def test_the_same_seed_draws_the_same_scene() -> None:
    images = some_images()
    first, second = (draw_scene(np.random.default_rng(7), images) for _ in range(2))
    assert first == second


def test_the_vocabulary_says_nothing_twice() -> None:
    names = [thing.name for thing in THINGS]
    assert len(set(names)) == len(names) >= 100
    assert len(set(BACKGROUNDS.values())) == len(BACKGROUNDS)
