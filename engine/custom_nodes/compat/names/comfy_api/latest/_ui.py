"""`comfy_api.latest.ui`: results that nodes by schema show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine.custom_nodes.compat import node_classes
from engine.custom_nodes.compat.host import HOST


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

    def as_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"images": self.results}
        if self.is_animated:
            shown["animated"] = (True,)
        return shown


class PreviewImage:
    """Preview of pictures [B, H, W, C] in the temporary folder."""

    def __init__(self, image: torch.Tensor, animated: bool = False, cls: Any = None, **kwargs: Any) -> None:
        self.animated = animated
        self.values = _saved("PreviewImage", images=image)

    def as_dict(self) -> dict[str, Any]:
        return {"images": self.values, "animated": (self.animated,)}


class PreviewMask(PreviewImage):
    def __init__(self, mask: torch.Tensor, animated: bool = False, cls: Any = None, **kwargs: Any) -> None:
        picture = mask.reshape((-1, 1, *mask.shape[-2:])).movedim(1, -1).expand(-1, -1, -1, 3)
        super().__init__(picture, animated, cls, **kwargs)


class PreviewText:
    def __init__(self, value: str, **kwargs: Any) -> None:
        self.value = value

    def as_dict(self) -> dict[str, Any]:
        return {"text": (self.value,)}


class ImageSaveHelper:
    """Saving of pictures as in the built-in nodes, with the running node's prompt in the file."""

    @staticmethod
    def get_save_images_ui(images: torch.Tensor, filename_prefix: str, cls: Any = None, **kwargs: Any) -> SavedImages:
        hidden = getattr(cls, "hidden", None)
        shown = _saved(
            "SaveImage",
            images=images,
            filename_prefix=filename_prefix,
            prompt=getattr(hidden, "prompt", None),
            extra_pnginfo=getattr(hidden, "extra_pnginfo", None),
        )
        return SavedImages([SavedResult(**item) for item in shown])


def _saved(class_type: str, **inputs: Any) -> list[dict[str, str]]:
    engine = HOST.get().engine
    shown = node_classes.run_inside(engine.catalogue[class_type], engine.environment, inputs)
    files: list[dict[str, str]] = shown["ui"]["images"]
    return files
