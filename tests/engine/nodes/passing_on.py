"""The outputs that ComfyUI 0.33.0 declares for its output nodes, as (type, name), read from its `/object_info`.

Left out: nodes of this engine only, nodes that it does not have, and those of packs.
"""

from __future__ import annotations

OF_VIEWERS = [
    ("LOAD3D_MODEL_INFO", "model_3d_info"), ("LOAD3D_CAMERA", "camera_info"), ("INT", "width"), ("INT", "height"),
]  # fmt: skip

OUTPUTS_OF_OUTPUT_NODES: dict[str, list[tuple[str, str]]] = {
    "SaveImage": [("IMAGE", "images")],
    "PreviewImage": [("IMAGE", "images")],
    "SaveImageAdvanced": [("IMAGE", "images")],
    "SaveAnimatedPNG": [("IMAGE", "images")],
    "SaveAnimatedWEBP": [("IMAGE", "images")],
    "SaveWEBM": [("IMAGE", "images")],
    "SaveVideo": [("VIDEO", "video")],
    "SaveAudio": [("AUDIO", "audio")],
    "SaveAudioMP3": [("AUDIO", "audio")],
    "SaveAudioOpus": [("AUDIO", "audio")],
    "SaveAudioAdvanced": [("AUDIO", "audio")],
    "PreviewAudio": [("AUDIO", "audio")],
    "LoopProgress": [("INT", "INT")],
    "SaveText": [("STRING", "text")],
    "ImageCompositor": [("IMAGE", "IMAGE"), ("MASK", "MASK")],
    "CreateBoundingBoxes": [("IMAGE", "preview"), ("BOUNDING_BOX", "bboxes"), ("ARRAY", "elements")],
    "SaveSVGNode": [("SVG", "svg")],
    "SaveLatent": [("LATENT", "samples")],
    "MaskPreview": [("MASK", "mask")],
    "PreviewAny": [("STRING", "STRING")],
    "Save3DAdvanced": [("FILE_3D", "model_3d"), *OF_VIEWERS],
    "Preview3DAdvanced": [("FILE_3D", "model_3d"), *OF_VIEWERS],
    "SaveGaussianSplat": [("FILE_3D_SPLAT_ANY", "model_3d"), *OF_VIEWERS],
    "PreviewGaussianSplat": [("FILE_3D_SPLAT_ANY", "model_3d"), *OF_VIEWERS],
    "SavePointCloud": [("FILE_3D_POINT_CLOUD_ANY", "model_3d"), *OF_VIEWERS],
    "PreviewPointCloud": [("FILE_3D_POINT_CLOUD_ANY", "model_3d"), *OF_VIEWERS],
    "SaveImageWebsocket": [],
    "ImageCompare": [],
    "Preview3D": [],
    "SaveGLB": [],
    "CheckpointSave": [],
    "ModelSave": [],
    "CLIPSave": [],
    "VAESave": [],
    "ImageOnlyCheckpointSave": [],
    "LoraSave": [],
    "LossGraphNode": [],
    "SAM3_TrackPreview": [],
}
