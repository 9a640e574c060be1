"""The table of `darkroom models known`: what runs, its size and licence, whether it fits this card and is here."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from darkroom.host.memory import total_bytes
from darkroom.worker.models.catalogue import Fit, Group, KnownModel, Room
from darkroom.worker.observe.gpu_sensors import GpuSensors, SensorsMissing, list_gpus
from darkroom.worker.prompts.cards import card_bytes

GIB: Final = 1 << 30
GB: Final = 1_000_000_000
HEADINGS: Final = {
    Group.MODELS: "Models",
    Group.GGUF: "Networks packed as GGUF",
    Group.LORAS: "LoRAs",
    Group.CONTROLNETS: "ControlNets",
    Group.UPSCALERS: "Upscalers",
    Group.FILES: "Single files of the models",
}
COLUMNS: Final = ("NAME", "SIZE", "FITS", "HERE", "LICENCE", "MODEL")
MAX_LICENCE: Final = 28
SIZE_WIDTH: Final = 9
LEAST_LABEL: Final = 24
"""Characters of a model's description that a narrow terminal still shows."""


class UnknownCard(ValueError):
    """Error for a card that is not in the list. The message says what to give instead."""


def room_of(card: str = "", vram_gb: float | None = None) -> Room:
    """Return the memory of a named card, of one with `vram_gb` GiB, or of this machine's smallest. Raises UnknownCard.

    Without a GPU it is the machine's RAM. A card that is named has another machine's, which is taken for enough.
    """
    if vram_gb is not None:
        return Room(int(vram_gb * GIB))
    if card:
        size_bytes = card_bytes(card)
        if size_bytes is None:
            raise UnknownCard(
                f"card: not a known one; got {card[:80]!r}, expected a name such as 'RTX 4090', or --vram-gb"
            )
        return Room(size_bytes)
    try:
        sizes = [GpuSensors(gpu.uuid, gpu.name).usage().memory_total_bytes for gpu in list_gpus()]
    except SensorsMissing:
        sizes = []
    known, ram_bytes = [size for size in sizes if size], total_bytes()
    return Room(min(known), ram_bytes) if known else Room(ram_bytes, ram_bytes, is_processor=True)


def known_lines(models: Sequence[KnownModel], room: Room, width: int | None) -> Iterator[str]:
    """Yield the lines of the table, a part for each group; `width` is that of the terminal, None for no limit."""
    head = (COLUMNS[0], COLUMNS[1].rjust(SIZE_WIDTH), *COLUMNS[2:])
    rows = [_cells(model) for model in models]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(COLUMNS) - 1)]
    room_left = None if width is None else max(LEAST_LABEL, width - sum(widths) - 2 * len(widths))

    def line(cells: Sequence[str]) -> str:
        *others, label = cells
        shown = label if room_left is None or len(label) <= room_left else f"{label[: room_left - 1]}…"
        return "  ".join((*(cell.ljust(size) for cell, size in zip(others, widths, strict=True)), shown)).rstrip()

    yield f"Compared with {_named(room)}."
    for group, found in groupby(zip(models, rows, strict=True), lambda pair: pair[0].group):
        yield from ("", HEADINGS[group], line(head))
        yield from (line(row) for _, row in found)


def known_json(model: KnownModel) -> str:
    """Return a model as one JSON object."""
    return json.dumps(
        {
            "name": model.name,
            "label": model.label,
            "group": model.group.value,
            "families": model.families,
            "licences": model.licences,
            "is_gated": model.is_gated,
            "size_bytes": model.size_bytes if model.is_size_known else None,
            "is_size_exact": model.is_size_exact,
            "fits": model.fit.value,
            "num_files": len(model.entries),
            "num_here": model.num_here,
            "sources": [str(entry.sources[0]) for entry in model.entries],
        }
    )


def terminal_width() -> int | None:
    """Return the width of the terminal that standard output is; None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _cells(model: KnownModel) -> tuple[str, ...]:
    size = f"{model.size_bytes / GB:.{1 if model.size_bytes >= GB else 2}f} GB" if model.size_bytes else ""
    if not model.is_size_known:
        size = f"{size}+" if size else "?"
    elif not model.is_size_exact:
        size = f"~{size}"
    here = "yes" if model.is_here else f"{model.num_here}/{len(model.entries)}" if model.num_here else ""
    licence = "; ".join(model.licences)
    if len(licence) > MAX_LICENCE:
        licence = f"{licence[: MAX_LICENCE - 1]}…"
    fits = "" if model.fit is Fit.OWN_MODEL else model.fit.value
    return model.name, size.rjust(SIZE_WIDTH), fits, here, licence, model.label


def _named(room: Room) -> str:
    if room.device_bytes is None:
        return "no device: its memory is not known"
    memory = f"{room.device_bytes / GIB:.0f} GiB"
    return f"the processor of this machine, {memory} RAM" if room.is_processor else f"a card of {memory}"
