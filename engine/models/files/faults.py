"""Faults of model files that their headers show: a file cut off, a web page, a model of no family of the engine.

No weights are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.formats.quantised.open_model import open_model
from darkroom.engine.formats.refusals import refusing
from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.formats.weight_file import SAFETENSORS_ENDINGS, WeightFile
from darkroom.engine.models.files.families import DENOISER_KINDS
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.files.header_answers import HeaderAnswers
from darkroom.engine.models.kinds.load_control_lora import is_control_lora
from darkroom.engine.models.kinds.load_controlnet import check_controlnet


class FileFaults:
    """Faults of `.safetensors` files, kept among the answers of their headers."""

    def __init__(self, folders: ModelFolders, answers: HeaderAnswers) -> None:
        self._folders = folders
        self._answers = answers

    def find(self, kind: str, name: str) -> str | None:
        """Return the fault of a file, None for a whole one, one of another format, and one that is not there."""
        try:
            path = self._folders.path(kind, name)
            if path is None or path.suffix.lower() not in SAFETENSORS_ENDINGS:
                return None
            return self._answers.find(path, ("fault", kind), lambda: fault_of_file(path, kind))
        except (KeyError, OSError, ValueError):  # no such kind; removed meanwhile; no name of a file
            return None


def fault_of_file(path: Path, kind: str) -> str | None:
    """Return the problem of a `.safetensors` file of a kind, None for a whole one and for other formats."""
    if path.suffix.lower() not in SAFETENSORS_ENDINGS:
        return None
    check = CHECKS.get(kind)
    try:
        SafetensorsFile(path)
        if check is not None:
            with refusing(path.name, "a model of a supported family"):
                check(open_model(path))
    except BadModelFile as error:
        return str(error)
    except (OSError, registry.AmbiguousFile):  # it cannot be read, or not be told apart: reported when it is loaded
        return None
    return None


def _check_network(file: WeightFile) -> None:
    if registry.recognise_vision(file.shapes) is not None:
        return
    try:
        registry.recognise(TensorIndex(file.shapes, file.metadata))
    except NotRecognised as error:
        raise _bad(file, error, "the network") from error


def _check_vae(file: WeightFile) -> None:
    try:
        registry.recognise_vae(file.shapes, file.metadata)
    except NotRecognised as error:
        raise _bad(file, error, "a VAE") from error


def _check_text_encoder(file: WeightFile) -> None:
    try:
        registry.check_text_encoder(file.shapes, file.metadata)
    except NotRecognised as error:
        raise _bad(file, error, "a text encoder") from error


def _check_control(file: WeightFile) -> None:
    if not is_control_lora(file):
        check_controlnet(file)


def _bad(file: WeightFile, error: NotRecognised, what: str) -> BadModelFile:
    return BadModelFile(file.path.name, error.found, f"{what} of {registry.labels()}")


CHECKS: Mapping[str, Callable[[WeightFile], None]] = {
    **dict.fromkeys(DENOISER_KINDS, _check_network),
    "vae": _check_vae,
    "text_encoders": _check_text_encoder,
    "controlnet": _check_control,
}
"""By kind of file: raise `BadModelFile` for one that no loader of the kind takes, whatever its other inputs are."""
