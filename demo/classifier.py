"""A small classifier that judges what was drawn: `python -m demo.classifier BUILD` writes `BUILD/classifier.pt`.

It learns from renderings of the same scenes under seeds that the model was not trained on, and is tested on yet others:
`BUILD/classifier.json` says how many of those it knows.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from demo.compose import Images, Pixels, draw_scene, load_images, render
from demo.vocabulary import THINGS

SIDE = 48
BATCH = 64
NAMES = [thing.name for thing in THINGS]


def build_classifier() -> nn.Sequential:
    """[B, 3, 48, 48] in -1..1 -> scores [B, number of things]."""
    layers: list[nn.Module] = []
    for inner, outer in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inner, outer, 3, stride=2, padding=1), nn.BatchNorm2d(outer), nn.ReLU()]
    layers += [nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.AdaptiveAvgPool2d(3)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(128 * 9, len(NAMES)))


def shrink(image: Pixels) -> torch.Tensor:
    """[H, W, 3] uint8 -> [3, 48, 48]."""
    small = Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BOX)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1).float().div(127.5).sub(1)


def draw_batch(rng: np.random.Generator, images: Images, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(images, numbers of their things); images with several copies count too."""
    drawn, numbers = [], []
    for _ in range(size):
        scene = draw_scene(rng, images)
        image = shrink(render(scene, rng, images))
        if rng.random() < 0.5:  # what a model draws is never as sharp as what was rendered
            image = functional.avg_pool2d(functional.pad(image[None], (1, 1, 1, 1), mode="replicate"), 3, 1)[0]
        drawn.append(image + 0.03 * torch.from_numpy(rng.standard_normal(image.shape)).float())
        numbers.append(NAMES.index(scene.thing.name))
    return torch.stack(drawn), torch.tensor(numbers)


def load_classifier(path: Path) -> nn.Sequential:
    network = build_classifier()
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--seconds", type=float, default=180)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    images = load_images(arguments.build / "pictures.npz")
    network, rng, started = build_classifier(), np.random.default_rng(5), time.process_time()
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    while (share := (time.process_time() - started) / arguments.seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - share) + 1e-5
        batch, numbers = draw_batch(rng, images, BATCH)
        loss = functional.cross_entropy(network(batch), numbers, label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    network.eval()
    batch, numbers = draw_batch(np.random.default_rng(6), images, 1000)
    with torch.no_grad():
        right = round((network(batch).argmax(1) == numbers).double().mean().item(), 4)
    torch.save(network.state_dict(), arguments.build / "classifier.pt")
    (arguments.build / "classifier.json").write_text(json.dumps({"renderings": len(numbers), "right": right}) + "\n")
    print(f"{right:.1%} of {len(numbers)} renderings it has not seen")


if __name__ == "__main__":
    main()
