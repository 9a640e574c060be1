"""Measures a checkpoint: `python -m demo.evaluate BUILD FOLDER` writes what `demo/results/` holds.

One image for each of 100 names, on a background of a colour that takes turns: is the thing recognised by the
classifier, is the colour behind right? And a sheet of 64 prompts to look at.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from demo.classifier import NAMES, load_classifier, shrink
from demo.compose import Pixels
from demo.draw import Artist
from demo.vocabulary import BACKGROUNDS, THINGS

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "engine" / "weights" / "checkpoints" / "darkroom-emoji.safetensors"
SHEET = Path(__file__).parent / "sheet_prompts.txt"
NUM_NAMES = 100
BATCH = 20


def draw_all(artist: Artist, prompts: Sequence[str], first_seed: int) -> list[Pixels]:
    """One image each, under rising seeds."""
    images: list[Pixels] = []
    for start in range(0, len(prompts), BATCH):
        batch = prompts[start : start + BATCH]
        images += artist.draw(batch, range(first_seed + start, first_seed + start + len(batch)))
    return images


def colour_behind(image: Pixels) -> str:
    """The named background colour nearest to the median of the image's rim."""
    sides = (image[:4], image[-4:], image[:, :4], image[:, -4:])
    rim = np.concatenate([side.reshape(-1, 3) for side in sides])
    middle = np.median(rim, 0)

    def distance(name: str) -> float:
        return float(np.abs(np.array(BACKGROUNDS[name]) - middle).sum())

    return min(BACKGROUNDS, key=distance)


def article(word: str) -> str:
    return "an" if word[0] in "aeiou" and word != "unicorn" else "a"


def measure(artist: Artist, classifier: torch.nn.Module, num_things: int) -> dict[str, Any]:
    """Figures over 100 names, and over those of them that were trained on."""
    asked = [
        (thing.name, list(BACKGROUNDS)[index % len(BACKGROUNDS)]) for index, thing in enumerate(THINGS[:NUM_NAMES])
    ]
    prompts = [f"{article(name)} {name} on {article(colour)} {colour} background" for name, colour in asked]
    images = draw_all(artist, prompts, 1000)
    with torch.no_grad():
        order = classifier(torch.stack([shrink(image) for image in images])).argsort(1, descending=True)
    rows = [
        {
            "name": name,
            "guess": NAMES[int(guesses[0])],
            "in_five": name in [NAMES[int(guess)] for guess in guesses[:5]],
            "background": background,
            "behind": colour_behind(image),
        }
        for (name, background), image, guesses in zip(asked, images, order, strict=True)
    ]

    def figures(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "names": len(chosen),
            "recognised": sum(row["guess"] == row["name"] for row in chosen) / len(chosen),
            "recognised_in_five": sum(row["in_five"] for row in chosen) / len(chosen),
            "background_right": sum(row["background"] == row["behind"] for row in chosen) / len(chosen),
        }

    return {"all": figures(rows), "trained": figures(rows[:num_things]), "rows": rows}


def contact_sheet(artist: Artist, prompts: list[str]) -> Image.Image:
    """8 in a row, each over its prompt."""
    sheet = Image.new("RGB", (8 * 136, (len(prompts) + 7) // 8 * 152), "white")
    pen = ImageDraw.Draw(sheet)
    for index, (prompt, image) in enumerate(zip(prompts, draw_all(artist, prompts, 1), strict=True)):
        x, y = index % 8 * 136 + 4, index // 8 * 152 + 4
        sheet.paste(Image.fromarray(image), (x, y))
        pen.text((x, y + 130), prompt.replace(" background", " b.")[:24], fill="black")
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--guidance", type=float, default=4.0)
    parser.add_argument("--things", type=int, default=NUM_NAMES, help="how many of the vocabulary were trained on")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    artist = Artist(arguments.checkpoint, arguments.guidance, arguments.device)
    contact_sheet(artist, SHEET.read_text().splitlines()).save(folder / "sheet.png", optimize=True)
    found = measure(artist, load_classifier(arguments.build / "classifier.pt"), arguments.things)
    found["guidance"] = arguments.guidance
    found["classifier"] = json.loads((arguments.build / "classifier.json").read_text())
    (folder / "figures.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({key: value for key, value in found.items() if key != "rows"}, indent=1))


if __name__ == "__main__":
    main()
