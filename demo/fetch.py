"""Images and names out of two npm packages: `python -m demo.fetch FOLDER` writes `FOLDER/pictures.npz`.

`emoji-datasource-google` holds Google's Noto emoji (Apache-2.0) as files of 64x64 pixels, `emojibase-data` their CLDR
names (MIT; CLDR itself under the Unicode licence). npm checks what it fetches against the registry's hashes.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demo.vocabulary import HUES, THINGS, Thing

IMAGES = "emoji-datasource-google@16.0.0"
NAMES = "emojibase-data@17.0.0"
SIDE = 64
Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # [64, 64, channels]


def fetch(package: str, folder: Path) -> Path:
    """The package's archive in `folder`; fetched unless it is there. Raises CalledProcessError."""
    archive = folder / (package.replace("@", "-") + ".tgz")
    if not archive.exists():
        subprocess.run(["npm", "pack", package, "--silent"], cwd=folder, check=True)
    return archive


def read_labels(archive: Path) -> dict[str, str]:
    """CLDR label -> hexcode."""
    with tarfile.open(archive) as package:
        member = package.extractfile("package/en/data.json")
        if member is None:
            raise FileNotFoundError(f"{archive} holds no package/en/data.json")
        return {item["label"]: item["hexcode"] for item in json.load(member)}


def wanted_labels(thing: Thing) -> dict[str, str]:
    """Colour ("" for the thing as it is) -> label of the emoji that has it."""
    return {"": thing.label, **dict(thing.colours)}


def dye(image: Pixels, colour: str) -> Pixels:
    """The image [64, 64, 4] with its dominant hue turned to a colour, greys and other hues left as they are."""
    hsv = np.asarray(Image.fromarray(image[..., :3]).convert("HSV")).astype(np.float32) / 255
    hue, saturation, value = hsv[..., 0], hsv[..., 1], hsv[..., 2]
    weight = saturation * value * (image[..., 3] > 128)
    counts, edges = np.histogram(hue, bins=36, range=(0, 1), weights=weight)
    smooth = counts + np.roll(counts, 1) + np.roll(counts, -1)
    dominant = edges[int(smooth.argmax())] + 0.5 / 36
    distance = (hue - dominant + 0.5) % 1 - 0.5
    near = np.abs(distance) < 0.14
    hsv[..., 0] = np.where(near, (HUES[colour] + distance * 0.35) % 1, hue)
    if colour == "pink":
        hsv[..., 1] = np.where(near, saturation * 0.55, saturation)
        hsv[..., 2] = np.where(near, np.maximum(value, 0.8) * 0.5 + 0.5, value)
    if colour in ("blue", "purple"):
        hsv[..., 2] = np.where(near, value * 0.92, value)
    turned = Image.fromarray((hsv * 255).round().astype(np.uint8), "HSV").convert("RGB")
    return np.dstack([np.asarray(turned), image[..., 3]])


def read_image(package: tarfile.TarFile, hexcode: str) -> Pixels:
    """RGBA [64, 64, 4] uint8. Raises KeyError when the package lacks it."""
    name = hexcode.lower()
    for candidate in (name, name.removesuffix("-fe0f"), name + "-fe0f"):
        try:
            member = package.extractfile(f"package/img/google/64/{candidate}.png")
        except KeyError:
            continue
        if member is not None:
            image = Image.open(io.BytesIO(member.read())).convert("RGBA")
            return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS))
    raise KeyError(f"no image of {hexcode}")


def images_of(thing: Thing, package: tarfile.TarFile, labels: dict[str, str]) -> dict[str, Pixels]:
    """Colour -> image; "" is the thing as it is."""
    found = {colour: read_image(package, labels[label]) for colour, label in wanted_labels(thing).items()}
    if thing.own_colour:
        found[thing.own_colour] = found[""]
    if thing.is_dyed:
        found |= {colour: dye(found[""], colour) for colour in HUES if colour not in found}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    labels = read_labels(fetch(NAMES, folder))
    images: dict[str, Pixels] = {}
    with tarfile.open(fetch(IMAGES, folder)) as package:
        for thing in THINGS:
            for colour, image in images_of(thing, package, labels).items():
                images[f"{thing.name}|{colour}"] = image
    np.savez_compressed(folder / "pictures.npz", **images)  # type: ignore[arg-type]
    print(f"{len(THINGS)} things, {len(images)} images in {folder / 'pictures.npz'}")


if __name__ == "__main__":
    main()
