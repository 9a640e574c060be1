"""Measures a checkpoint through the engine: `python -m demo.evaluate BUILD FOLDER` writes what `demo/results/` holds.

One picture for each of 100 names, on a background of a colour that takes turns: is the thing recognised by the
classifier, is the colour behind right? And a sheet of 64 prompts to look at.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from demo.classifier import NAMES, load_classifier, shrink
from demo.compose import Pixels
from demo.vocabulary import BACKGROUNDS, THINGS
from engine import Engine, EngineSettings, RunRequest

CHECKPOINT = "darkroom-emoji.safetensors"
SIDE, STEPS, SEED = 128, 20, 1
NUM_NAMES = 100
SHEET = Path(__file__).parent / "sheet_prompts.txt"


def workflow(prompt: str, seed: int, guidance: float, steps: int = STEPS) -> dict[str, Any]:
    def node(class_type: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": class_type, "inputs": inputs}

    return {
        "1": node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT),
        "2": node("CLIPTextEncode", clip=["1", 1], text=prompt),
        "3": node("CLIPTextEncode", clip=["1", 1], text=""),
        "4": node("EmptyLatentImage", width=SIDE, height=SIDE, batch_size=1),
        "5": node(
            "KSampler", model=["1", 0], positive=["2", 0], negative=["3", 0], latent_image=["4", 0], seed=seed,
            steps=steps, cfg=guidance, sampler_name="euler", scheduler="normal", denoise=1.0,
        ),
        "6": node("VAEDecode", samples=["5", 0], vae=["1", 2]),
        "7": node("SaveImage", images=["6", 0], filename_prefix="demo"),
    }  # fmt: skip


class Artist:
    """Draws through an engine of its own; pictures land in `folder`."""

    def __init__(self, engine: Engine, folder: Path, guidance: float) -> None:
        self.engine, self.folder, self.guidance = engine, folder, guidance
        self.seconds: list[float] = []

    def draw(self, prompt: str, seed: int = SEED) -> Pixels:
        """[128, 128, 3] uint8."""
        checked = self.engine.check(workflow(prompt, seed, self.guidance))
        began = time.monotonic()
        result = self.engine.submit(RunRequest("demo", checked.prompt, checked.outputs), lambda _: None).result()
        self.seconds.append(time.monotonic() - began)
        if result.status != "success":
            raise RuntimeError(f"{prompt!r}: {result.status}")
        name = result.outputs["7"]["images"][0]["filename"]
        return np.asarray(Image.open(self.folder / "output" / name).convert("RGB"))


def colour_behind(picture: Pixels) -> str:
    """The named background colour nearest to the median of the picture's rim."""
    sides = (picture[:4], picture[-4:], picture[:, :4], picture[:, -4:])
    rim = np.concatenate([side.reshape(-1, 3) for side in sides])
    middle = np.median(rim, 0)

    def distance(name: str) -> float:
        return float(np.abs(np.array(BACKGROUNDS[name]) - middle).sum())

    return min(BACKGROUNDS, key=distance)


def measure(artist: Artist, classifier: torch.nn.Module, num_things: int) -> dict[str, Any]:
    """Figures over 100 names, and over those of them that were trained on."""
    rows = []
    for index, thing in enumerate(THINGS[:NUM_NAMES]):
        background = list(BACKGROUNDS)[index % len(BACKGROUNDS)]
        article = "an" if thing.name[0] in "aeiou" and thing.name != "unicorn" else "a"
        picture = artist.draw(
            f"{article} {thing.name} on {'an' if background == 'orange' else 'a'} {background} background"
        )
        with torch.no_grad():
            order = classifier(shrink(picture)[None])[0].argsort(descending=True)
        guesses = [NAMES[number] for number in order[:5]]
        rows.append({"name": thing.name, "guess": guesses[0], "top5": thing.name in guesses,
                     "background": background, "behind": colour_behind(picture)})  # fmt: skip

    def figures(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "names": len(chosen),
            "recognised": sum(row["guess"] == row["name"] for row in chosen) / len(chosen),
            "recognised_in_five": sum(row["top5"] for row in chosen) / len(chosen),
            "background_right": sum(row["background"] == row["behind"] for row in chosen) / len(chosen),
        }

    return {"all": figures(rows), "trained": figures(rows[:num_things]), "rows": rows}


def contact_sheet(artist: Artist, prompts: list[str]) -> Image.Image:
    """8 in a row, each over its prompt."""
    sheet = Image.new("RGB", (8 * 136, (len(prompts) + 7) // 8 * 152), "white")
    pen = ImageDraw.Draw(sheet)
    for index, prompt in enumerate(prompts):
        x, y = index % 8 * 136 + 4, index // 8 * 152 + 4
        sheet.paste(Image.fromarray(artist.draw(prompt, SEED + index)), (x, y))
        pen.text((x, y + 130), prompt.replace(" background", " b.")[:24], fill="black")
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--guidance", type=float, default=4.0)
    parser.add_argument("--things", type=int, default=NUM_NAMES, help="how many of the vocabulary were trained on")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    classifier = load_classifier(arguments.build / "classifier.pt")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Engine(EngineSettings(base_directory=folder, cpu=True)) as engine:
            artist = Artist(engine, folder, arguments.guidance)
            found = measure(artist, classifier, arguments.things)
            contact_sheet(artist, SHEET.read_text().splitlines()).save(arguments.folder / "sheet.png", optimize=True)
    found["seconds_per_picture"] = round(float(np.median(artist.seconds)), 2)
    found["guidance"] = arguments.guidance
    (arguments.folder / "figures.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({key: value for key, value in found.items() if key != "rows"}, indent=1))


if __name__ == "__main__":
    main()
