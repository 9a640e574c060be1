"""`comfy_api.latest.ui`: results that nodes by schema show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from darkroom.engine.comfy import node_classes
from darkroom.engine.comfy.host import HOST
from darkroom.engine.media.video import Audio
from darkroom.engine.nodes.library.image.images import WEBP_METHODS


class SavedResult(dict[str, str]):
    """A file that was saved."""

    def __init__(self, filename: str, subfolder: str, type: Any) -> None:
        super().__init__(filename=filename, subfolder=subfolder, type=getattr(type, "value", type))

    @property
    def filename(self) -> str:
        return self["filename"]

    @property
    def subfolder(self) -> str:
        return self["subfolder"]

    @property
    def type(self) -> str:
        return self["type"]


class SavedImages:
    def __init__(self, results: Sequence[Mapping[str, str]], is_animated: bool = False) -> None:
        self.results = list(results)
        self.is_animated = is_animated

    def as_dict(self) -> dict[str, object]:
        shown: dict[str, Any] = {"images": self.results}
        if self.is_animated:
            shown["animated"] = (True,)
        return shown


class PreviewImage:
    """Preview of images [B, H, W, C] in the temporary folder."""

    def __init__(self, image: torch.Tensor, animated: bool = False, cls: object = None, **kwargs: object) -> None:
        self.animated = animated
        self.values = _saved("PreviewImage", images=image)

    def as_dict(self) -> dict[str, object]:
        return {"images": self.values, "animated": (self.animated,)}


class PreviewMask(PreviewImage):
    def __init__(self, mask: torch.Tensor, animated: bool = False, cls: object = None, **kwargs: object) -> None:
        image = mask.reshape((-1, 1, *mask.shape[-2:])).movedim(1, -1).expand(-1, -1, -1, 3)
        super().__init__(image, animated, cls, **kwargs)


class SavedAudios:
    def __init__(self, results: Sequence[Mapping[str, str]]) -> None:
        self.results = list(results)

    def as_dict(self) -> dict[str, object]:
        return {"audio": self.results}


class PreviewAudio:
    """Preview of audio in the temporary folder."""

    def __init__(self, audio: Audio, cls: object = None, **kwargs: object) -> None:
        self.values = _saved("PreviewAudio", "audio", audio=audio, **_hidden(cls))

    def as_dict(self) -> dict[str, object]:
        return {"audio": self.values}


class PreviewVideo:
    """Videos that were saved, as ComfyUI's page plays them."""

    def __init__(self, values: Sequence[Mapping[str, str]], **kwargs: object) -> None:
        self.values = list(values)

    def as_dict(self) -> dict[str, object]:
        return {"images": self.values, "animated": (True,)}


class PreviewUI3D:
    """A 3D model that was saved, and the camera that looks at it."""

    def __init__(self, model_file: str, camera_info: object, **kwargs: object) -> None:
        self.model_file = model_file
        self.camera_info = camera_info

    def as_dict(self) -> dict[str, object]:
        return {"result": [self.model_file, self.camera_info]}


class PreviewText:
    def __init__(self, value: str, **kwargs: object) -> None:
        self.value = value

    def as_dict(self) -> dict[str, object]:
        return {"text": (self.value,)}


SAVED_AS = {"flac": "SaveAudio", "mp3": "SaveAudioMP3", "opus": "SaveAudioOpus"}


class AudioSaveHelper:
    """Saving of audio as in the built-in nodes, with the running node's prompt in the file."""

    @staticmethod
    def save_audio(
        audio: Audio,
        filename_prefix: str,
        folder_type: object,
        cls: object,
        format: str = "flac",
        quality: str = "128k",
    ) -> list[SavedResult]:
        """Save each audio of a batch to the output folder, or to the temporary one as FLAC."""
        if getattr(folder_type, "value", folder_type) == "temp":
            saved = _saved("PreviewAudio", "audio", audio=audio, **_hidden(cls))
        else:
            inputs = {"audio": audio, "filename_prefix": filename_prefix, "quality": quality, **_hidden(cls)}
            saved = _saved(SAVED_AS[format], "audio", **inputs)
        return [SavedResult(**item) for item in saved]

    @staticmethod
    def get_save_audio_ui(
        audio: Audio, filename_prefix: str, cls: object, format: str = "flac", quality: str = "128k"
    ) -> SavedAudios:
        return SavedAudios(AudioSaveHelper.save_audio(audio, filename_prefix, "output", cls, format, quality))


class ImageSaveHelper:
    """Saving of images as in the built-in nodes, with the running node's prompt in the file."""

    @staticmethod
    def get_save_images_ui(
        images: torch.Tensor, filename_prefix: str, cls: object = None, **kwargs: object
    ) -> SavedImages:
        return _saved_images("SaveImage", cls, images=images, filename_prefix=filename_prefix)

    @staticmethod
    def get_save_animated_png_ui(
        images: torch.Tensor, filename_prefix: str, cls: object, fps: float, compress_level: int
    ) -> SavedImages:
        options = {"fps": fps, "compress_level": compress_level}
        return _saved_images("SaveAnimatedPNG", cls, images=images, filename_prefix=filename_prefix, **options)

    @staticmethod
    def get_save_animated_webp_ui(
        images: torch.Tensor, filename_prefix: str, cls: object, fps: float, lossless: bool, quality: int, method: int
    ) -> SavedImages:
        named = {effort: name for name, effort in WEBP_METHODS.items()}.get(method, "default")
        options = {"fps": fps, "lossless": lossless, "quality": quality, "method": named}
        return _saved_images("SaveAnimatedWEBP", cls, images=images, filename_prefix=filename_prefix, **options)


def _saved_images(class_type: str, cls: Any, *, images: torch.Tensor, **inputs: Any) -> SavedImages:
    shown = _saved(class_type, images=images, **inputs, **_hidden(cls))
    is_animated = class_type != "SaveImage" and len(images) > 1
    return SavedImages([SavedResult(**item) for item in shown], is_animated)


def _hidden(cls: Any) -> dict[str, Any]:
    """Return the hidden inputs of the running node that a saved file tells about."""
    hidden = getattr(cls, "hidden", None)
    return {name: getattr(hidden, name, None) for name in ("prompt", "extra_pnginfo")}


def _saved(class_type: str, shown_as: str = "images", **inputs: object) -> list[dict[str, str]]:
    engine = HOST.get().engine
    shown = node_classes.run_inside(engine.catalogue[class_type], engine.environment, inputs)
    files: list[dict[str, str]] = shown["ui"][shown_as]
    return files
