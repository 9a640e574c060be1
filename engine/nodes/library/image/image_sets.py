"""Nodes that load a folder of images, for training."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

from darkroom.engine.images.image_sets import RESIZE_METHODS, caption_path, captions_of, images_in, read_set
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, IMAGE
from darkroom.engine.nodes.widgets import Choice, InputFile, Int

MODULE = "comfy_extras.nodes_train"


class InputFolder(InputFile):
    """A folder below the input folder, at any depth."""

    def type_in(self, environment: NodeEnvironment) -> list[str]:
        root = environment.input_path("")
        return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir())

    def complaint(self, environment: NodeEnvironment, value: object) -> str | None:
        """Return that there is no such folder, or None if there is, or a link supplies the name."""
        if value is None:
            return None
        try:
            if environment.input_path(str(value)).is_dir():
                return None
        except (OSError, ValueError):
            pass
        return f"no such folder in the input folder; got {str(value)!r}, expected one of the names offered"


def _content(environment: NodeEnvironment, folder: object) -> str | None:
    """Return a hash of the names, sizes and times of a folder's files."""
    if folder is None:
        return None
    root = environment.input_path(str(folder))
    files = sorted(path for path in root.rglob("*") if path.is_file())
    states = ((path.relative_to(root).as_posix(), path.stat()) for path in files)
    listed = "\n".join(f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in states)
    return hashlib.sha256(listed.encode()).hexdigest()


Folder = Annotated[str, InputFolder(extra={"tooltip": "The folder to load images from."})]
ResizeMethod = Annotated[str, Choice(RESIZE_METHODS), Optional()]


def _images(context: NodeContext, folder: str, *, with_repeats: bool = False) -> list[Path]:
    """Return the images of a folder. Raises ForeignFile for one, or the caption of one, that is another run's."""
    found = images_in(context.files.input_folder(folder), with_repeats=with_repeats)
    for image in found:
        for path in (image, caption_path(image)):
            context.files.check_own(path, f"{folder}/{path.name}")
    return found


@node("LoadImageSetFromFolderNode", display_name="Load Image Dataset from Folder", category="loaders",
      python_module=MODULE, experimental=True, fingerprint=_content)  # fmt: skip
def load_image_set_from_folder(context: NodeContext, *, folder: Folder, resize_method: ResizeMethod = "None") -> IMAGE:
    """Loads a batch of images from a directory for training."""  # noqa: D401 - ComfyUI's words
    return read_set(_images(context, folder), resize_method, max_pixels=context.files.max_pixels())


@node("LoadImageTextSetFromFolderNode", display_name="Load Image and Text Dataset from Folder", category="loaders",
      python_module=MODULE, experimental=True, fingerprint=_content)  # fmt: skip
def load_image_text_set_from_folder(
    context: NodeContext,
    *,
    folder: Folder,
    clip: CLIP,
    resize_method: ResizeMethod = "None",
    width: Annotated[int, Int(min=-1, max=10000, step=1), Optional()] = -1,
    height: Annotated[int, Int(min=-1, max=10000, step=1), Optional()] = -1,
) -> tuple[IMAGE, CONDITIONING]:
    """Loads a batch of images and caption from a directory for training."""  # noqa: D401 - ComfyUI's words
    files = _images(context, folder, with_repeats=True)
    size = (None if width == -1 else width, None if height == -1 else height)
    images = read_set(files, resize_method, size, context.files.max_pixels())
    conditioning = []
    for text in captions_of(files):
        context.cancel.check()
        encoded = clip.encode_from_tokens_scheduled(clip.tokenize(text))
        # As in ComfyUI, an image without a caption is followed by two entries.
        conditioning.extend(encoded if text else [*encoded, *encoded])
    return images, conditioning


NODES = (load_image_set_from_folder, load_image_text_set_from_folder)
