"""Types of values that only links supply, and those of ComfyUI's later widgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engine.custom_nodes.compat.names.comfy_api.latest._io_inputs import WidgetInput, socket_type, widget_type
from engine.graph.spec import ValueDict, Values
from engine.values.video import Audio as AudioInput
from engine.values.video import VideoInput

Image = socket_type("IMAGE", torch.Tensor)
Mask = socket_type("MASK", torch.Tensor)
Latent = socket_type("LATENT", dict)
Conditioning = socket_type("CONDITIONING", list)
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
Audio = socket_type("AUDIO", AudioInput)
Video = socket_type("VIDEO", VideoInput)
SVG = socket_type("SVG")
LoraModel = socket_type("LORA_MODEL", dict)
LossMap = socket_type("LOSS_MAP", dict)
Voxel = socket_type("VOXEL")
Mesh = socket_type("MESH")
Hooks = socket_type("HOOKS")
HookKeyframes = socket_type("HOOK_KEYFRAMES")
TimestepsRange = socket_type("TIMESTEPS_RANGE", tuple)
LatentOperation = socket_type("LATENT_OPERATION")
FlowControl = socket_type("FLOW_CONTROL", tuple)
Accumulation = socket_type("ACCUMULATION", dict)
Load3DCamera = socket_type("LOAD3D_CAMERA", dict)
Load3D = socket_type("LOAD_3D", dict)
Load3DAnimation = socket_type("LOAD_3D_ANIMATION", dict)
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


class _DrawnInput(WidgetInput):
    """An input whose widget the client draws; its value is plain data with a default of its own."""

    own_default: Any = None

    def __init__(
        self,
        id: str,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        socketless: bool = True,
        default: Any = None,
        advanced: bool | None = None,
    ) -> None:
        default = self.own_default if default is None else default
        super().__init__(id, display_name, optional, tooltip, default=default, socketless=socketless, advanced=advanced)


class _ComparedInput(_DrawnInput):
    """The view of two pictures, which has no value."""


class _ColorInput(WidgetInput):
    def __init__(
        self,
        id: str,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        socketless: bool = True,
        advanced: bool | None = None,
        default: str = "#ffffff",
    ) -> None:
        super().__init__(id, display_name, optional, tooltip, default=default, socketless=socketless, advanced=advanced)


class _ListInput(_DrawnInput):
    own_default = ()

    def as_dict(self) -> dict[str, object]:
        return {**super().as_dict(), "default": list(self.default)}


class _CurveInput(_DrawnInput):
    own_default = ((0.0, 0.0), (1.0, 1.0))

    def as_dict(self) -> dict[str, object]:
        points = [list(point) for point in self.default]
        return {**super().as_dict(), "default": {"points": points, "interpolation": "monotone_cubic"}}


class _BoundingBoxInput(WidgetInput):
    named = {"component": "component"}

    def __init__(
        self,
        id: str,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        socketless: bool = True,
        default: Values | None = None,
        component: str | None = None,
        force_input: bool | None = None,
    ) -> None:
        box = {"x": 0, "y": 0, "width": 512, "height": 512} if default is None else default
        super().__init__(id, display_name, optional, tooltip, None, box, socketless, None, force_input)
        self.component = component or None


class _RangeInput(WidgetInput):
    named = {
        name: name
        for name in ("display", "gradient_stops", "show_midpoint", "midpoint_scale", "value_min", "value_max")
    }

    def __init__(
        self,
        id: str,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        socketless: bool = True,
        default: Mapping[str, float] | None = None,
        display: str | None = None,
        gradient_stops: list[ValueDict] | None = None,
        show_midpoint: bool | None = None,
        midpoint_scale: str | None = None,
        value_min: float | None = None,
        value_max: float | None = None,
        advanced: bool | None = None,
    ) -> None:
        shown = {"min": 0.0, "max": 1.0} if default is None else default
        super().__init__(id, display_name, optional, tooltip, default=shown, socketless=socketless, advanced=advanced)
        self.display = display
        self.gradient_stops = gradient_stops
        self.show_midpoint = show_midpoint
        self.midpoint_scale = midpoint_scale
        self.value_min = value_min
        self.value_max = value_max


ImageCompare = widget_type("IMAGECOMPARE", dict, _ComparedInput)
Color = widget_type("COLOR", str, _ColorInput)
Colors = widget_type("COLORS", list[str], _ListInput)
BoundingBox = widget_type("BOUNDING_BOX", dict, _BoundingBoxInput)
BoundingBoxes = widget_type("BOUNDING_BOXES", list, _ListInput)
Curve = widget_type("CURVE", list, _CurveInput)
Range = widget_type("RANGE", dict, _RangeInput)
