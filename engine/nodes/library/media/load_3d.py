"""Nodes that take a 3D model as ComfyUI's page shows it: the page renders it, and uploads the images.

`H W` pixels: IMAGE is float32 `[1, H, W, 3]` of 0..1, MASK `[1, H, W]`, 1 where the image is transparent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from darkroom.engine.images.decode import read_image
from darkroom.engine.media.video import VideoFromFile
from darkroom.engine.nodes.base import InputFile, Int, NodeContext, NodeEnvironment, Out, Socket, Widget, node
from darkroom.engine.nodes.library.media.preview_3d import MODULE
from darkroom.engine.nodes.sockets import IMAGE, MASK, VIDEO

FOLDER = "3d"
MODELS = (".fbx", ".glb", ".gltf", ".obj", ".stl")
ANIMATED_MODELS = (".fbx", ".glb", ".gltf")
IMAGES = ("image", "mask", "normal")


class ModelOfFolder(InputFile):
    """A 3D model in the folder `3d` of the input folder, or in one below it. `content` names the file endings."""

    def type_in(self, environment: NodeEnvironment) -> list[str]:
        folder = environment.input_path(FOLDER)
        found = (path for path in folder.rglob("*") if path.suffix.lower() in self.content.split())
        return sorted(path.relative_to(folder.parent).as_posix() for path in found)

    def complaint(self, environment: NodeEnvironment, value: object) -> str | None:
        missing = super().complaint(environment, value)
        return None if missing is None else f"Invalid 3D model file: {value}"


class Rendered(Widget):
    """The images that the page rendered, as names of files by kind. The page's widget has no options."""

    kind = ""

    def type_in(self, environment: NodeEnvironment) -> str:
        return self.kind


class RenderedModel(Rendered):
    kind = "LOAD_3D"


class RenderedAnimation(Rendered):
    kind = "LOAD_3D_ANIMATION"


Pixels = Annotated[int, Int(min=1, max=4096, step=1)]
Image = Annotated[IMAGE, Out("image")]
Mask = Annotated[MASK, Out("mask")]
MeshPath = Annotated[str, Socket("STRING"), Out("mesh_path")]
Normal = Annotated[IMAGE, Out("normal")]
Lineart = Annotated[IMAGE, Out("lineart")]
Camera = Annotated[Any, Socket("LOAD3D_CAMERA"), Out("camera_info")]
Recording = Annotated[VIDEO, Out("recording_video")]


def _complaint(environment: NodeEnvironment, image: object, kinds: tuple[str, ...]) -> str | None:
    """Return the fault of the rendered images or None, so that a prompt is refused before anything runs."""
    if not isinstance(image, Mapping):
        return f"image: not what the page renders; got {type(image).__name__}, expected names of files by kind"
    absent = [kind for kind in (*kinds, "camera_info", "recording") if kind not in image]
    if absent:
        return f"image: incomplete; got {', '.join(image) or 'nothing'}, expected {', '.join(absent)} as well"
    complaints = (InputFile("image").complaint(environment, image[kind]) for kind in kinds)
    return next((complaint for complaint in complaints if complaint is not None), None)


def _unrendered(environment: NodeEnvironment, image: object) -> str | None:
    return _complaint(environment, image, (*IMAGES, "lineart"))


def _unrendered_animation(environment: NodeEnvironment, image: object) -> str | None:
    return _complaint(environment, image, IMAGES)


def _image(context: NodeContext, image: Mapping[str, Any], kind: str) -> tuple[IMAGE, MASK]:
    return read_image(context.files.input_path(image[kind]), context.files.max_pixels())


def _recording(context: NodeContext, image: Mapping[str, Any]) -> Any:
    name = image["recording"]
    return VideoFromFile(context.files.input_path(name), context.files.free_bytes) if name else None


@node("Load3D", display_name="Load 3D", category="3d", python_module=MODULE, experimental=True, check=_unrendered)
def load_3d(
    context: NodeContext,
    *,
    model_file: Annotated[str, ModelOfFolder(" ".join(MODELS), extra={"file_upload": True})],
    image: Annotated[Any, RenderedModel()],
    width: Pixels = 1024,
    height: Pixels = 1024,
) -> tuple[Image, Mask, MeshPath, Normal, Lineart, Camera, Recording]:
    """Return the images of a model, its camera, and the recorded video if there is one."""
    shown, mask = _image(context, image, "image")[0], _image(context, image, "mask")[1]
    normal, lineart = _image(context, image, "normal")[0], _image(context, image, "lineart")[0]
    return shown, mask, model_file, normal, lineart, image["camera_info"], _recording(context, image)


@node("Load3DAnimation", display_name="Load 3D - Animation", category="3d", python_module=MODULE, experimental=True,
      check=_unrendered_animation)  # fmt: skip
def load_3d_animation(
    context: NodeContext,
    *,
    model_file: Annotated[str, ModelOfFolder(" ".join(ANIMATED_MODELS), extra={"file_upload": True})],
    image: Annotated[Any, RenderedAnimation()],
    width: Pixels = 1024,
    height: Pixels = 1024,
) -> tuple[Image, Mask, MeshPath, Normal, Camera, Recording]:
    """Return the images of an animated model, its camera, and the recorded video if there is one."""
    shown, mask = _image(context, image, "image")[0], _image(context, image, "mask")[1]
    normal = _image(context, image, "normal")[0]
    return shown, mask, model_file, normal, image["camera_info"], _recording(context, image)


NODES = (load_3d, load_3d_animation)
