"""The family of each model file, read from the names and shapes of its tensors; no weights are read."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily, NotRecognised, Shapes, TensorIndex
from darkroom.engine.formats.quantised.open_model import open_model
from darkroom.engine.formats.safetensors_header import read_metadata
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import Names, is_indexed, shape_of
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.files.header_answers import HeaderAnswers

DENOISER_KINDS = ("checkpoints", "diffusion_models")
"""Kinds of files that hold a denoising network, by which a file's family is detected."""

SCALE_TOLERANCE = 0.05  # in the number of weights: variants of a network have a few more or fewer
MAX_SHOWN_HEADER_BYTES = 1 << 20  # of a model file's metadata, as in ComfyUI

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileFamily:
    """The family of a model file.

    `family` is None for a file of no known family. `scale` is the one of the family's scales that has as many weights,
    `variant` one of the family's variants, `num_weights` the number of weights of its denoising network. `has_text` is
    True for a checkpoint with text encoders of its own, None where the family has none.
    """

    name: str
    size_bytes: int
    family: str | None = None
    variant: str = ""
    scale: str | None = None
    num_weights: int | None = None
    has_text: bool | None = None


class FileFamilies:
    """Families of model files, kept among the answers of their headers. Callable from any thread."""

    def __init__(self, folders: ModelFolders, answers: HeaderAnswers) -> None:
        self._folders = folders
        self._answers = answers
        self._num_weights: dict[tuple[str, str], int] = {}  # by family and scale

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of `describe`."""
        return DENOISER_KINDS

    def families(self) -> list[dict[str, object]]:
        """Return all families in their JSON form, as `registry.described_families` does."""
        return registry.described_families()

    def metadata(self, kind: str, name: str) -> object:
        """Return the `__metadata__` of a `.safetensors` model file, or None without such a file or metadata."""
        if not name.endswith(".safetensors") or kind not in self._folders.kinds():
            return None
        path = self._folders.path(kind, name)
        return None if path is None else read_metadata(path, MAX_SHOWN_HEADER_BYTES)

    def describe(self, kind: str, names: Iterable[str] | None = None) -> list[FileFamily]:
        """Return the families of files, by default of all of a kind; names without a file are left out.

        Only the headers of new files are read. Raises KeyError for a kind that is not one of `kinds`.
        """
        if kind not in DENOISER_KINDS:
            raise KeyError(kind)
        wanted = self._folders.names(kind) if names is None else names
        found = ((name, self._folders.path(kind, name)) for name in wanted)
        described = (self._of_file(name, path) for name, path in found if path is not None)
        return [item for item in described if item is not None]

    def _of_file(self, name: str, path: Path) -> FileFamily | None:
        try:
            return self._answers.find(path, ("family", name), lambda: self._read(name, path))
        except OSError:  # removed since it was listed
            return None

    def _read(self, name: str, path: Path) -> FileFamily:
        size_bytes = path.stat().st_size
        unknown = FileFamily(name, size_bytes)
        try:
            if not is_indexed(path):
                return unknown
            file = open_model(path)
            found = registry.recognise(TensorIndex(file.shapes, file.metadata))
        except (BadModelFile, NotRecognised, OSError):
            return unknown
        except registry.AmbiguousFile as error:
            log.error("%s: %s", name, error)
            return unknown
        num_weights = _num_weights(found.match.names, file.shapes)
        scale = self._scale_of(found.family, num_weights)
        has_text = _has_text(found.family, file.shapes)
        return FileFamily(name, size_bytes, found.family.name, found.match.variant, scale, num_weights, has_text)

    def _scale_of(self, family: ModelFamily, num_weights: int) -> str | None:
        for scale in family.scales:
            if math.isclose(self._weights_at(family, scale), num_weights, rel_tol=SCALE_TOLERANCE):
                return scale
        return None

    def _weights_at(self, family: ModelFamily, scale: str) -> int:
        key = family.name, scale
        if key not in self._num_weights:
            with unfilled():
                network = family.denoiser.build(family.scales[scale].denoiser)
            self._num_weights[key] = sum(weight.numel() for weight in network.state_dict().values())
        return self._num_weights[key]


def _has_text(family: ModelFamily, shapes: Shapes) -> bool | None:
    if not family.text:
        return None
    return any(registry.names_of(encoder.network, shapes, in_checkpoint=True) is not None for encoder in family.text)


def _num_weights(names: Names, shapes: Shapes) -> int:
    return sum(math.prod(shape_of(item, shapes)) for item in names.values())
