"""Types of values that only links supply, and those of ComfyUI's later widgets."""

from __future__ import annotations

from typing import ClassVar

import torch

from darkroom.contract.graph.spec import Values
from darkroom.engine.comfy.names.comfy_api.latest._io_inputs import (
    BASE,
    WidgetInput,
    parameters,
    shown_as,
    socket_type,
    widget_type,
)
from darkroom.engine.media.video import Audio as AudioInput
from darkroom.engine.media.video import VideoInput

Image = socket_type("IMAGE", torch.Tensor)
Mask = socket_type("MASK", torch.Tensor)
Latent = socket_type("LATENT", dict, LatentDict=dict)
Conditioning = socket_type("CONDITIONING", list, PooledDict=dict, CondList=list)
Sampler = socket_type("SAMPLER")
Sigmas = socket_type("SIGMAS", torch.Tensor)
Noise = socket_type("NOISE")
Guider = socket_type("GUIDER")
Clip = socket_type("CLIP")
ControlNet = socket_type("CONTROL_NET")
Vae = socket_type("VAE")
Model = socket_type("MODEL")
ClipVision = socket_type("CLIP_VISION")
ClipVisionOutput = socket_type("CLIP_VISION_OUTPUT")
StyleModel = socket_type("STYLE_MODEL")
Gligen = socket_type("GLIGEN")
UpscaleModel = socket_type("UPSCALE_MODEL")
Audio = socket_type("AUDIO", AudioInput, AudioDict=AudioInput)
Video = socket_type("VIDEO", VideoInput)
SVG = socket_type("SVG")
LoraModel = socket_type("LORA_MODEL", dict)
LossMap = socket_type("LOSS_MAP", dict, LossMapDict=dict)
Voxel = socket_type("VOXEL")
Mesh = socket_type("MESH")
Hooks = socket_type("HOOKS")
HookKeyframes = socket_type("HOOK_KEYFRAMES")
TimestepsRange = socket_type("TIMESTEPS_RANGE", tuple)
LatentOperation = socket_type("LATENT_OPERATION")
FlowControl = socket_type("FLOW_CONTROL", tuple)
Accumulation = socket_type("ACCUMULATION", dict, AccumulationDict=dict)
Load3DCamera = socket_type("LOAD3D_CAMERA", dict, CameraInfo=dict)
Load3D = socket_type("LOAD_3D", dict, Model3DDict=dict)
Load3DAnimation = socket_type("LOAD_3D_ANIMATION", dict, Model3DDict=dict)
Photomaker = socket_type("PHOTOMAKER")
Point = socket_type("POINT")
FaceAnalysis = socket_type("FACE_ANALYSIS")
BBOX = socket_type("BBOX")
SEGS = socket_type("SEGS")
AnyType = socket_type("*")
MODEL_PATCH = socket_type("MODEL_PATCH")
AudioEncoder = socket_type("AUDIO_ENCODER")
AudioEncoderOutput = socket_type("AUDIO_ENCODER_OUTPUT")
WanCameraEmbedding = socket_type("WAN_CAMERA_EMBEDDING", torch.Tensor)
ModelPatch = socket_type("MODEL_PATCH")
BackgroundRemoval = socket_type("BACKGROUND_REMOVAL")
LatentUpscaleModel = socket_type("LATENT_UPSCALE_MODEL")
Splat = socket_type("SPLAT")
Load3DModelInfo = socket_type("LOAD3D_MODEL_INFO", list)
Tracks = socket_type("TRACKS", dict)
Dict = socket_type("DICT", dict)
Array = socket_type("ARRAY", list)
Histogram = socket_type("HISTOGRAM", list)
File3DAny = socket_type("FILE_3D")
File3DGLB = socket_type("FILE_3D_GLB")
File3DGLTF = socket_type("FILE_3D_GLTF")
File3DFBX = socket_type("FILE_3D_FBX")
File3DOBJ = socket_type("FILE_3D_OBJ")
File3DSTL = socket_type("FILE_3D_STL")
File3DUSDZ = socket_type("FILE_3D_USDZ")
File3DPLY = socket_type("FILE_3D_PLY")
File3DSPLAT = socket_type("FILE_3D_SPLAT")
File3DSPZ = socket_type("FILE_3D_SPZ")
File3DKSPLAT = socket_type("FILE_3D_KSPLAT")
File3DSplatAny = socket_type("FILE_3D_SPLAT_ANY")
File3DPointCloudAny = socket_type("FILE_3D_POINT_CLOUD_ANY")


DRAWN = (*BASE[:3], "socketless")  # parameters of the inputs whose widgets the client draws


class _DrawnInput(WidgetInput):
    """An input of plain data whose widget the client draws."""

    takes = parameters(*DRAWN, "default", "advanced")
    defaults: ClassVar[Values] = {**WidgetInput.defaults, "socketless": True}
    lazy = None
    extra_dict = None
    raw_link = None
    advanced: bool | None = None


class _ComparedInput(_DrawnInput):
    """A view of two images, which has no value."""

    takes = parameters(*DRAWN, "advanced")


class _ColorInput(_DrawnInput):
    takes = parameters(*DRAWN, "advanced", "default")
    defaults = {**_DrawnInput.defaults, "default": "#ffffff"}


class _ListInput(_DrawnInput):
    def prepare(self) -> None:
        self.default = [] if self.default is None else self.default


class _CurveInput(_DrawnInput):
    def as_dict(self) -> dict[str, object]:
        points = [(0.0, 0.0), (1.0, 1.0)] if self.default is None else self.default
        shown = {"points": [list(point) for point in points], "interpolation": "monotone_cubic"}
        return {**super().as_dict(), "default": shown}


class _BoundingBoxInput(_DrawnInput):
    takes = parameters(*DRAWN, "default", "component", "force_input")
    shown = shown_as("component")
    component: str | None = None

    def prepare(self) -> None:
        self.default = {"x": 0, "y": 0, "width": 512, "height": 512} if self.default is None else self.default
        self.component = self.component or None


class _RangeInput(_DrawnInput):
    drawn = ("display", "gradient_stops", "show_midpoint", "midpoint_scale", "value_min", "value_max")
    takes = parameters(*DRAWN, "default", *drawn, "advanced")
    shown = shown_as(*drawn)

    def prepare(self) -> None:
        self.default = {"min": 0.0, "max": 1.0} if self.default is None else self.default


ImageCompare = widget_type("IMAGECOMPARE", dict, _ComparedInput)
Color = widget_type("COLOR", str, _ColorInput)
Colors = widget_type("COLORS", list[str], _ListInput)
BoundingBox = widget_type("BOUNDING_BOX", dict, _BoundingBoxInput)
BoundingBoxes = widget_type("BOUNDING_BOXES", list, _ListInput)
Curve = widget_type("CURVE", list, _CurveInput)
Range = widget_type("RANGE", dict, _RangeInput)
