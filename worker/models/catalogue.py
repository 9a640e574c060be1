"""Catalogue of the known models: whole ones, adapters and single files; what is here, what a card holds. Pure.

Whether a model fits is estimated from the sizes of its files: the largest has to lie on the device with room to
compute, else its layers are streamed from RAM, which then holds all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.manifest import Manifest

WORKING_SHARE: Final = 0.15
"""Share of the device's memory that is left for what a network computes with."""

GATED: Final = "gated"
UNKNOWN_LICENCE: Final = "?"


class Group(StrEnum):
    """Kinds of known models, in the order in which they are listed."""

    MODELS = "models"
    GGUF = "GGUF"
    LORAS = "LoRAs"
    CONTROLNETS = "ControlNets"
    UPSCALERS = "upscalers"
    FILES = "files"


GROUP_OF_KIND: Final[Mapping[str, Group]] = {
    "checkpoints": Group.MODELS,
    "loras": Group.LORAS,
    "controlnet": Group.CONTROLNETS,
    "model_patches": Group.CONTROLNETS,
    "upscale_models": Group.UPSCALERS,
    "latent_upscale_models": Group.UPSCALERS,
}
"""Groups by the folder below `models/`; files of other folders are parts of models."""


class Fit(StrEnum):
    """Outcome of comparing a model with a device: it runs whole, with streamed layers, or not at all."""

    WHOLE = "yes"
    STREAMED = "streamed"
    TOO_LARGE = "no"
    UNKNOWN = "?"
    OWN_MODEL = "as its model"
    """An adapter, which is added to another model."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory for models, in bytes. On a processor the device is the RAM.

    `device_bytes` None: not known; `ram_bytes` None: not known, and taken for enough.
    """

    device_bytes: int | None
    ram_bytes: int | None = None
    is_processor: bool = False


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that `fetch` knows by `name`. `size_bytes` is that of the files whose sizes are known, if only about."""

    name: str
    label: str
    group: Group
    entries: tuple[ModelEntry, ...]
    num_here: int
    fit: Fit

    @property
    def size_bytes(self) -> int:
        return sum(entry.likely_bytes or 0 for entry in self.entries)

    @property
    def is_size_known(self) -> bool:
        """True if the sizes of all files are known, if only about."""
        return all(entry.likely_bytes for entry in self.entries)

    @property
    def is_size_exact(self) -> bool:
        return all(entry.size_bytes for entry in self.entries)

    @property
    def is_here(self) -> bool:
        return self.num_here == len(self.entries)

    @property
    def families(self) -> tuple[str, ...]:
        """The families that every file belongs to; those of the first file where no family is common to all."""
        first, *others = (entry.families for entry in self.entries)
        return tuple(name for name in first if all(name in other for other in others)) or first

    @property
    def licences(self) -> tuple[str, ...]:
        """The licences of the files, each once, the network's first; `?` for one that is not known."""
        return tuple(dict.fromkeys(entry.licence or UNKNOWN_LICENCE for entry in self.entries))

    @property
    def is_gated(self) -> bool:
        """True if a file is given to accounts alone that have accepted its licence."""
        return any(licence.endswith(GATED) for licence in self.licences)


def catalogue(manifest: Manifest, there: Collection[str], room: Room) -> list[KnownModel]:
    """Return every known model by group: sets and checkpoints first, single files last.

    `there` are the files on disk by their places below `models/`.
    """
    named = [
        (name, item.label, tuple(manifest.entries[file] for file in item.files)) for name, item in manifest.sets.items()
    ]
    named += [(name, entry.label, (entry,)) for name, entry in manifest.entries.items()]
    found = [
        KnownModel(
            name,
            label,
            group := _group_of(name, entries, manifest),
            entries,
            sum(entry.place in there for entry in entries),
            _fit(group, entries, room),
        )
        for name, label, entries in named
    ]
    return sorted(found, key=lambda model: list(Group).index(model.group))


def matching(models: Iterable[KnownModel], words: str) -> list[KnownModel]:
    """Return the models whose name, label or family contains each of some words, in any letter case."""
    asked = words.lower().split()
    return [
        model
        for model in models
        if all(word in " ".join((model.name, model.label, *model.families)).lower() for word in asked)
    ]


def _group_of(name: str, entries: tuple[ModelEntry, ...], manifest: Manifest) -> Group:
    if any(entry.name.endswith(".gguf") for entry in entries):
        return Group.GGUF
    if name in manifest.sets:
        return Group.MODELS
    group = GROUP_OF_KIND.get(entries[0].kind, Group.FILES)
    is_part = any(name in item.files for item in manifest.sets.values())
    return Group.FILES if group is Group.MODELS and is_part else group


def _fit(group: Group, entries: tuple[ModelEntry, ...], room: Room) -> Fit:
    if group in (Group.LORAS, Group.CONTROLNETS):
        return Fit.OWN_MODEL
    sizes = [entry.likely_bytes for entry in entries]
    if room.device_bytes is None or not all(sizes):
        return Fit.UNKNOWN
    known = [size or 0 for size in sizes]
    if not room.is_processor and max(known) <= room.device_bytes * (1 - WORKING_SHARE):
        return Fit.WHOLE
    ram_bytes = room.device_bytes if room.is_processor else room.ram_bytes
    if ram_bytes is not None and sum(known) > ram_bytes * (1 - WORKING_SHARE):
        return Fit.TOO_LARGE
    return Fit.WHOLE if room.is_processor else Fit.STREAMED
