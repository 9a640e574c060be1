"""Memory plan of a prompt on this device or on one of a given size. Only headers of files are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from darkroom.contract.graph.prompt import Prompt
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.memory.timeline import StageKind, StageNeed, StagePlan, memory_timeline
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.planning.network_sizes import (
    KIND_OF_FOLDER,
    FileSizes,
    NetworkSize,
    sizes_in_file,
    sizes_of_family,
)
from darkroom.engine.models.planning.prompt_stages import FindRules, PromptStage, stages_of

PIXELS_PER_CELL = 64
DEFAULT_PIXELS = 1024 * 1024
ENCODE_BYTES = 64 << 20  # of text: small beside any network
DECODE_BYTES_PER_CELL = 2178 * 64  # and byte of a value: ComfyUI's estimate of a KL autoencoder
CARD_ITEM_BYTES = 2  # of a weight on a card that computes 16 bits at full speed


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file that is not there: its size, None if not known, and its family's name, empty if not known."""

    size_bytes: int | None
    family: str = ""

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Self:
        """Return the file that `size_bytes` and `family` of an object describe."""
        size_bytes, family = given.get("size_bytes"), given.get("family")
        return cls(size_bytes if isinstance(size_bytes, int) else None, family if isinstance(family, str) else "")


@dataclass(frozen=True, slots=True)
class Target:
    """The device that a plan is for. `item_bytes` returns those of a weight of a family's network of that kind."""

    total_bytes: int
    is_shared: bool
    item_bytes: Callable[[ModelFamily | None, StageKind], int]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The stages of a prompt on a device. `unknown` are files whose sizes are not known, which it leaves out.

    `refused` has what was found in those of them that no family's loader takes.
    """

    total_bytes: int
    is_shared: bool
    stages: tuple[StagePlan, ...]
    unknown: tuple[str, ...]
    refused: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        """Return the plan as the server sends it."""
        return {
            "total_bytes": self.total_bytes,
            "is_processor": self.is_shared,
            "stages": [
                {
                    "node_id": stage.need.node_id,
                    "class_type": stage.need.class_type,
                    "stage": stage.need.kind,
                    "model": stage.need.model,
                    "weights_bytes": stage.need.weights_bytes,
                    "working_bytes": stage.need.working_bytes,
                    "loaded_bytes": stage.loaded_bytes,
                    "streamed_bytes": stage.streamed_bytes,
                    "evicted": [{"stage": kind, "model": model} for kind, model in stage.evicted],
                    "device_bytes": stage.device_bytes,
                    "missing_bytes": stage.missing_bytes,
                }
                for stage in self.stages
            ],
            "fits": not any(stage.missing_bytes for stage in self.stages),
            "unknown": list(self.unknown),
            "refused": [{"model": name, "found": found} for name, found in self.refused.items()],
        }


class MemoryPlanner:
    """Maker of one prompt's plan. `missing` are files by `folder/name`, `pixels` those that a node works on at once."""

    def __init__(
        self, folders: ModelFolders, target: Target, missing: Mapping[str, MissingFile], pixels: Mapping[str, int]
    ) -> None:
        self._folders = folders
        self._target = target
        self._missing = missing
        self._pixels = pixels
        self._sizes: dict[tuple[str, str], FileSizes] = {}
        self._unknown: dict[str, None] = {}
        self._refused: dict[str, str] = {}

    def plan(self, prompt: Prompt, find_rules: FindRules) -> MemoryPlan:
        """Return the plan of a prompt. Nodes of unknown classes, and models of unknown files, are left out."""
        needs = list(self._needs(stages_of(prompt, find_rules)))
        stages = memory_timeline(needs, self._target.total_bytes, is_shared=self._target.is_shared)
        return MemoryPlan(
            self._target.total_bytes, self._target.is_shared, tuple(stages), tuple(self._unknown), self._refused
        )

    def _needs(self, stages: Sequence[PromptStage]) -> Iterator[StageNeed]:
        for stage in stages:
            files = [(name, self._sizes_of(folder, name)) for folder, name in stage.files]
            found = [(file, size) for _, file in files if (size := file.networks.get(stage.kind)) is not None]
            if len(found) < len(files):
                self._unknown |= dict.fromkeys(name for name, file in files if stage.kind not in file.networks)
                self._refused |= {name: file.refusal for name, file in files if file.refusal}
                continue
            family = next((file.family for file, _ in found if file.family is not None), None)
            item_bytes = self._target.item_bytes(family, stage.kind)
            yield StageNeed(
                stage.node_id,
                stage.class_type,
                stage.kind,
                " + ".join(name for name, _ in files),
                sum(size.num_weights for _, size in found) * item_bytes,
                0 if self._target.is_shared else max(size.largest_layer for _, size in found) * item_bytes,
                self._working_bytes(stage, family, item_bytes),
            )

    def _working_bytes(self, stage: PromptStage, family: ModelFamily | None, item_bytes: int) -> int:
        cells = self._pixels.get(stage.node_id, DEFAULT_PIXELS) // PIXELS_PER_CELL
        if stage.kind == "text_encoder":
            return ENCODE_BYTES
        if stage.kind == "vae":
            return cells * DECODE_BYTES_PER_CELL * item_bytes
        factor = 1.0 if family is None else family.memory_usage_factor * _numbers_per_cell(family)
        return int(cells * item_bytes * 0.01 * factor * (1 << 20))

    def _sizes_of(self, folder: str, name: str) -> FileSizes:
        key = folder, name
        if key not in self._sizes:
            path = self._folders.path(folder, name)
            self._sizes[key] = self._of_missing(folder, name) if path is None else sizes_in_file(folder, path)
        return self._sizes[key]

    def _of_missing(self, folder: str, name: str) -> FileSizes:
        known = self._missing.get(f"{folder}/{name}")
        if known is None:
            return FileSizes({})
        found = sizes_of_family(known.family, folder) if folder in ("checkpoints", "diffusion_models") else None
        if found is not None and found.networks:
            return found
        kind = KIND_OF_FOLDER.get(folder)
        if kind is None or known.size_bytes is None:
            return FileSizes({})
        weights = known.size_bytes // CARD_ITEM_BYTES  # files of models have 16 bits a weight, as a rule
        return FileSizes({kind: NetworkSize(weights, weights // 32)})


def _numbers_per_cell(family: ModelFamily) -> float:
    """Return the numbers that count as 8 x 8 pixels: one cell, or those of a packed latent of a video."""
    latent_format = family.parameterisation.latent_format or family.latent_format
    if not latent_format.stream_channels:
        return 1.0
    return latent_format.stream_channels[0] * PIXELS_PER_CELL / latent_format.spacial_downscale_ratio**2


def card_item_bytes(family: ModelFamily | None, kind: StageKind) -> int:
    """Return the bytes of a weight on a card that computes 16 bits at full speed."""
    return CARD_ITEM_BYTES
