"""Nodes that load, show and save files of 3D models, splats and clouds of points, with the camera of a viewer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from darkroom.engine.media.file_3d import File3D
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.file_content import content_hash
from darkroom.engine.nodes.library.media.load_3d import MODELS, ModelOfFolder, Pixels, RenderedModel
from darkroom.engine.nodes.library.media.preview_3d import MODULE
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.page_widgets import PageWidget
from darkroom.engine.nodes.sockets import CAMERA, INT, ExtraPngInfo, Prompt
from darkroom.engine.nodes.widgets import FilePrefix

SAVING_MODULE = "comfy_extras.nodes_save_3d"
NO_MODEL = "none"
SPLAT_ALIASES = [
    "view splat", "view gaussian", "view gaussian splat", "preview gaussian", "preview gaussian splat", "view 3dgs",
    "preview 3dgs", "preview ply", "preview spz", "preview splat", "preview ksplat",
]  # fmt: skip
POINTS_ALIASES = [
    "view point cloud", "view pointcloud", "preview point cloud", "preview pointcloud", "preview ply",
]  # fmt: skip
ADVANCED = {"advanced": True}
MESH_FILES = "FILE_3D_GLB,FILE_3D_GLTF,FILE_3D_FBX,FILE_3D_OBJ,FILE_3D_STL,FILE_3D_USDZ,FILE_3D"
SPLAT_FILES = "FILE_3D_SPLAT_ANY,FILE_3D_PLY,FILE_3D_SPLAT,FILE_3D_SPZ,FILE_3D_KSPLAT"
POINTS_FILES = "FILE_3D_POINT_CLOUD_ANY,FILE_3D_PLY"

Viewport = Annotated[Any, RenderedModel()]
ModelInfo = Annotated[Any, PageWidget("LOAD3D_MODEL_INFO", extra=ADVANCED), Optional()]
GivenCamera = Annotated[Any, PageWidget("LOAD3D_CAMERA", extra=ADVANCED), Optional()]
FilenamePrefix = Annotated[str, FilePrefix(multiline=False)]
Model = Annotated[File3D, Socket(MESH_FILES)]
SplatModel = Annotated[File3D, Socket(SPLAT_FILES)]
PointsModel = Annotated[File3D, Socket(POINTS_FILES)]
InfoOutput = Annotated[Any, Socket("LOAD3D_MODEL_INFO"), Out("model_3d_info")]
CameraOutput = Annotated[CAMERA, Out("camera_info")]
Width = Annotated[INT, Out("width")]
Height = Annotated[INT, Out("height")]
ModelOutput = Annotated[File3D | None, Socket("FILE_3D"), Out("model_3d")]
SplatOutput = Annotated[File3D, Socket("FILE_3D_SPLAT_ANY"), Out("model_3d")]
PointsOutput = Annotated[File3D, Socket("FILE_3D_POINT_CLOUD_ANY"), Out("model_3d")]
Outputs = tuple[ModelOutput, InfoOutput, CameraOutput, Width, Height]
SplatOutputs = tuple[SplatOutput, InfoOutput, CameraOutput, Width, Height]
PointsOutputs = tuple[PointsOutput, InfoOutput, CameraOutput, Width, Height]


class OptionalModel(ModelOfFolder):
    """A 3D model in the folder `3d`, or none."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "COMBO"

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        return {"multiselect": False, "options": [NO_MODEL, *ModelOfFolder.type_in(self, environment)], **self.extra}

    def complaint(self, environment: NodeEnvironment, value: object) -> str | None:
        return None if value in ("", NO_MODEL) else super().complaint(environment, value)


def _content(environment: NodeEnvironment, model_file: object) -> str | None:
    return None if model_file in ("", NO_MODEL) else content_hash(environment, model_file)


def _of_viewport(viewport: object, camera: object, model_info: object) -> tuple[Any, Any]:
    """Return model and camera as they were given, else as the page's viewer has them."""
    state: Mapping[str, Any] = viewport if isinstance(viewport, Mapping) else {}
    found = state.get("model_3d_info", []) if model_info is None else model_info
    return found, state.get("camera_info") if camera is None else camera


@node("Load3DAdvanced", display_name="Load 3D (Advanced)", category="3d", python_module=MODULE, experimental=True,
      fingerprint=_content,
      search_aliases=["load mesh", "load gltf", "load glb", "load obj", "load fbx", "load stl"])  # fmt: skip
def load_3d_advanced(
    context: NodeContext,
    *,
    model_file: Annotated[str, OptionalModel(" ".join(MODELS), extra={"file_upload": True})],
    viewport_state: Viewport,
    width: Pixels = 1024,
    height: Pixels = 1024,
) -> Outputs:
    """Load a model, with the camera of the page's viewer."""
    model = None if model_file in ("", NO_MODEL) else File3D(context.files.input_path(model_file))
    return model, *_of_viewport(viewport_state, None, None), width, height


def _stored(
    context: NodeContext,
    model: File3D,
    prefix: str,
    folder: Literal["output", "temp"],
    viewport: object,
    camera: object,
    model_info: object,
    size: tuple[int, int],
) -> NodeOutput:
    """Write a file to a folder, show it with its camera, and pass it on."""
    if not isinstance(model, File3D):
        raise ValueError(f"model_3d: no file; got {type(model).__name__}, expected the output of a node that makes one")
    output = context.files.save_path(prefix, *size, kind=folder, suffix=model.suffix)
    context.files.submit(partial(model.save_to, output.path))
    name = f"{output.subfolder}/{output.filename}" if output.subfolder else output.filename
    info, used_camera = _of_viewport(viewport, camera, model_info)
    shown = {"result": [name, used_camera, info], "3d": [output.shown()]}
    return NodeOutput(shown, (model, info, used_camera, *size))


@node("Preview3DAdvanced", display_name="Preview 3D (Advanced)", category="3d", python_module=MODULE, is_output=True,
      experimental=True,
      search_aliases=["preview 3d", "3d viewer", "view mesh", "frame 3d", "3d camera output"])  # fmt: skip
def preview_3d_advanced(
    context: NodeContext,
    *,
    model_3d: Model,
    viewport_state: Viewport,
    width: Pixels = 1024,
    height: Pixels = 1024,
    model_3d_info: ModelInfo = None,
    camera_info: GivenCamera = None,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, Outputs]:
    """Show a model: save it to the temporary folder."""
    state = (viewport_state, camera_info, model_3d_info, (width, height))
    return _stored(context, model_3d, "preview3d_advanced", "temp", *state)


@node("PreviewGaussianSplat", display_name="Preview Splat", category="3d", python_module=MODULE, is_output=True,
      experimental=True, search_aliases=SPLAT_ALIASES)  # fmt: skip
def preview_gaussian_splat(
    context: NodeContext,
    *,
    model_3d: SplatModel,
    viewport_state: Viewport,
    width: Pixels = 1024,
    height: Pixels = 1024,
    model_3d_info: ModelInfo = None,
    camera_info: GivenCamera = None,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, SplatOutputs]:
    """Show a splat: save it to the temporary folder."""
    state = (viewport_state, camera_info, model_3d_info, (width, height))
    return _stored(context, model_3d, "preview_splat", "temp", *state)


@node("PreviewPointCloud", display_name="Preview Point Cloud", category="3d", python_module=MODULE, is_output=True,
      experimental=True, search_aliases=POINTS_ALIASES)  # fmt: skip
def preview_point_cloud(
    context: NodeContext,
    *,
    model_3d: PointsModel,
    viewport_state: Viewport,
    width: Pixels = 1024,
    height: Pixels = 1024,
    model_3d_info: ModelInfo = None,
    camera_info: GivenCamera = None,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, PointsOutputs]:
    """Show a cloud of points: save it to the temporary folder."""
    state = (viewport_state, camera_info, model_3d_info, (width, height))
    return _stored(context, model_3d, "preview_pointcloud", "temp", *state)


@node("Save3DAdvanced", display_name="Save 3D (Advanced)", category="3d", python_module=SAVING_MODULE, is_output=True,
      experimental=True, search_aliases=["save 3d", "export 3d model", "save mesh advanced"])  # fmt: skip
def save_3d_advanced(
    context: NodeContext,
    *,
    model_3d: Model,
    filename_prefix: FilenamePrefix = "3d/ComfyUI",
    viewport_state: Viewport,
    width: Pixels = 1024,
    height: Pixels = 1024,
    model_3d_info: ModelInfo = None,
    camera_info: GivenCamera = None,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, Outputs]:
    """Save the file of a model as it is."""
    state = (viewport_state, camera_info, model_3d_info, (width, height))
    return _stored(context, model_3d, filename_prefix, "output", *state)


@node("SaveGaussianSplat", display_name="Save Splat", category="3d", python_module=SAVING_MODULE, is_output=True,
      experimental=True,
      search_aliases=["save splat", "save gaussian splat", "export gaussian", "export splat"])  # fmt: skip
def save_gaussian_splat(
    context: NodeContext,
    *,
    model_3d: SplatModel,
    filename_prefix: FilenamePrefix = "3d/ComfyUI",
    viewport_state: Viewport,
    width: Pixels = 1024,
    height: Pixels = 1024,
    model_3d_info: ModelInfo = None,
    camera_info: GivenCamera = None,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, SplatOutputs]:
    """Save the file of a splat as it is."""
    state = (viewport_state, camera_info, model_3d_info, (width, height))
    return _stored(context, model_3d, filename_prefix, "output", *state)


@node("SavePointCloud", display_name="Save Point Cloud", category="3d", python_module=SAVING_MODULE, is_output=True,
      experimental=True, search_aliases=["save point cloud", "save pointcloud", "export point cloud"])  # fmt: skip
def save_point_cloud(
    context: NodeContext,
    *,
    model_3d: PointsModel,
    filename_prefix: FilenamePrefix = "3d/ComfyUI",
    viewport_state: Viewport,
    width: Pixels = 1024,
    height: Pixels = 1024,
    model_3d_info: ModelInfo = None,
    camera_info: GivenCamera = None,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, PointsOutputs]:
    """Save the file of a cloud of points as it is."""
    state = (viewport_state, camera_info, model_3d_info, (width, height))
    return _stored(context, model_3d, filename_prefix, "output", *state)


NODES = (
    load_3d_advanced,
    preview_3d_advanced,
    preview_gaussian_splat,
    preview_point_cloud,
    save_3d_advanced,
    save_gaussian_splat,
    save_point_cloud,
)
