"""Writes the table of model families from their full configurations, between the two marks of `docs/models.md`.

python -m tools.models_table            # the file is rewritten in place
python -m tools.models_table --check    # exit code 1 when the table is out of date

Networks are built without memory (torch's meta device), so that the sizes are those of the real ones.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from darkroom.engine.families.base import ModelFamily
from darkroom.engine.families.registry import families
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.image_encoders import image_encoder
from darkroom.engine.memory.offload.blocks import divide
from tools.marked_part import with_part

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
CASES = ROOT / "tests" / "parity" / "cases"
MOST_NAMED = 8  # variants in a cell; the family's part of the page has them all
TOLERANCE = ".tolerance.json"  # how far a case may be off: not a case of its own
BEGIN, END = "<!-- models: tools/models_table.py -->", "<!-- end of models -->"
SIZES = (
    "| Family | Parts | Parameters | All, float32 | All, 16 bits | Denoiser, 16 bits | Denoiser, float8 | Streamed |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)
RUNS = (
    "| Family | Variants | Cases recorded from ComfyUI | Draws by default |",
    "| --- | --- | --- | --- |",
)
GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A network of a family at its real size.

    `streamed_bytes` are what it takes of the device, at 16 bits a weight, when its layers are streamed: weights that
    cannot be streamed, and one buffer of the largest layer.
    """

    name: str
    num_weights: int
    streamed_bytes: int


def parts(family: ModelFamily) -> list[Part]:
    """Return the denoiser, the text encoders, the image encoder if there is one, and the VAE."""
    full = family.scales["full"]
    found = [_part("denoiser", partial(family.denoiser.build, full.denoiser))]
    for encoder in family.text_of(full):
        config = full.text[encoder.encoding.slot]
        found.append(_part(encoder.encoding.key, partial(encoder.network.build, config)))
    if full.vision is not None:
        found.append(_part("image encoder", partial(image_encoder, full.vision)))
    return [*found, _part("VAE", partial(family.vae.build, full.vae))]


def _part(name: str, build: Callable[[], nn.Module]) -> Part:
    with unfilled():
        network = build().to(torch.float16)
    blocks = list(divide(network, _never, _never))
    fixed_bytes = sum(block.size_bytes for block in blocks if not block.is_streamable)
    buffer_bytes = max((block.size_bytes for block in blocks if block.is_streamable), default=0)
    return Part(name, sum(weight.numel() for weight in network.parameters()), fixed_bytes + buffer_bytes)


def _never(weight: object) -> bool:
    return False


def num_cases(family: ModelFamily, cases: Path = CASES) -> int:
    """Count the workflows recorded from ComfyUI that the engine draws again."""
    path = cases / f"{family.name}.zip"
    if not path.exists():
        return 0
    with zipfile.ZipFile(path) as archive:
        return sum("/" not in name and not name.endswith(TOLERANCE) for name in archive.namelist())


def models_tables(of: Iterable[ModelFamily]) -> str:
    """Return a table of what runs and one of sizes, a row for each family."""
    found = list(of)
    runs = [_runs(family) for family in found]
    sizes = [_sizes(family) for family in found]
    return "\n".join([*RUNS, *runs, "", *SIZES, *sizes])


def _runs(family: ModelFamily) -> str:
    names = [f"`{name}`" for name in family.variants if name]
    variants = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if names[MOST_NAMED:] else "")
    variants = variants or "–"
    default = family.default
    size = f"{default.width}x{default.height}" if default.seconds is None else f"{default.seconds:g} s"
    draws = f"{size}, {default.steps} steps, cfg {default.cfg:g}, {default.sampler_name}, {default.scheduler}"
    return f"| `{family.name}` {family.label} | {variants} | {num_cases(family) or '–'} | {draws} |"


def _sizes(family: ModelFamily) -> str:
    networks = parts(family)
    total = sum(part.num_weights for part in networks)
    listed = ", ".join(f"{part.name} {_millions(part.num_weights)}" for part in networks)
    streamed = max(part.streamed_bytes for part in networks)
    denoiser = networks[0].num_weights
    cells = (
        f"`{family.name}`", listed, _millions(total), _gib(total * 4), _gib(total * 2), _gib(denoiser * 2),
        _gib(denoiser), f"{streamed / MIB:.0f} MiB",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _millions(number: int) -> str:
    return f"{number / 1e6:,.0f} M"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args(given)
    old = PAGE.read_text("utf-8")
    new = with_part(old, models_tables(families()), BEGIN, END)
    if arguments.check:
        return int(new != old)
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
