"""Nodes that take a 3D model as ComfyUI's page shows it: the page renders it, and uploads the images.

`H W` pixels: IMAGE is float32 `[1, H, W, 3]` of 0..1, MASK `[1, H, W]`, 1 where the image is transparent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from darkroom.engine.images.decode import read_image
from darkroom.engine.media.file_3d import File3D
from darkroom.engine.media.video import VideoFromFile
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.media.preview_3d import MODULE
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import IMAGE, MASK, VIDEO
from darkroom.engine.nodes.widgets import InputFile, Int, Widget

FOLDER = "3d"
NO_MODEL = "none"
MODELS = (".fbx", ".glb", ".gltf", ".ksplat", ".obj", ".ply", ".splat", ".spz", ".stl")
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


class ModelOrNone(ModelOfFolder):
    """`ModelOfFolder` in the notation of ComfyUI's newer nodes, which may also be none."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "COMBO"

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        files = [NO_MODEL, *ModelOfFolder.type_in(self, environment)]
        return {"multiselect": False, "options": files, **self.extra}

    def complaint(self, environment: NodeEnvironment, value: object) -> str | None:
        return None if value in ("", NO_MODEL) else super().complaint(environment, value)


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
Camera = Annotated[Any, Socket("LOAD3D_CAMERA"), Out("camera_info")]
Recording = Annotated[VIDEO, Out("recording_video")]
ModelFile3D = Annotated[File3D, Socket("FILE_3D"), Out("model_3d")]
ModelInfo = Annotated[list[Any], Socket("LOAD3D_MODEL_INFO"), Out("model_3d_info")]


def _unrendered(environment: NodeEnvironment, image: object) -> str | None:
    """Return the fault of the rendered images or None, so that a prompt is refused before anything runs."""
    if not isinstance(image, Mapping):
        return f"image: not what the page renders; got {type(image).__name__}, expected names of files by kind"
    absent = [kind for kind in (*IMAGES, "camera_info", "recording") if kind not in image]
    if absent:
        return f"image: incomplete; got {', '.join(image) or 'nothing'}, expected {', '.join(absent)} as well"
    complaints = (InputFile("image").complaint(environment, image[kind]) for kind in IMAGES)
    return next((complaint for complaint in complaints if complaint is not None), None)


def _image(context: NodeContext, image: Mapping[str, Any], kind: str) -> tuple[IMAGE, MASK]:
    return read_image(context.files.input_path(image[kind]), context.files.max_pixels())


def _recording(context: NodeContext, image: Mapping[str, Any]) -> Any:
    name = image["recording"]
    return VideoFromFile(context.files.input_path(name), context.files.free_bytes) if name else None


@node(
    "Load3D",
    display_name="Load 3D & Animation",
    category="3d",
    python_module=MODULE,
    experimental=True,
    check=_unrendered,
    essentials_category="Basics",
)
def load_3d(
    context: NodeContext,
    *,
    model_file: Annotated[str, ModelOrNone(" ".join(MODELS), extra={"file_upload": True})],
    image: Annotated[Any, RenderedModel()],
    width: Pixels = 1024,
    height: Pixels = 1024,
) -> tuple[Image, Mask, MeshPath, Normal, Camera, Recording, ModelFile3D, ModelInfo]:
    """Return the images of a model, its camera, the recorded video if there is one, and the model's file."""
    shown, mask = _image(context, image, "image")[0], _image(context, image, "mask")[1]
    normal = _image(context, image, "normal")[0]
    is_model = model_file not in ("", NO_MODEL)
    file = File3D(context.files.input_path(model_file)) if is_model else None
    path, recording = model_file if is_model else "", _recording(context, image)
    return shown, mask, path, normal, image["camera_info"], recording, file, image.get("model_3d_info", [])  # type: ignore[return-value]


@node("Load3DAnimation", display_name="Load 3D - Animation", category="3d", python_module=MODULE, experimental=True,
      check=_unrendered)  # fmt: skip
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
