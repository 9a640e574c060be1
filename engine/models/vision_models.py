"""Models that read or change images on their own, without a MODEL beside them."""

from __future__ import annotations

import torch

from darkroom.engine.models.kinds.background_removal.background_remover import BackgroundRemover
from darkroom.engine.models.kinds.background_removal.load_background_removal import load_background_removal
from darkroom.engine.models.kinds.face_landmarks.face_landmarker import FaceLandmarker
from darkroom.engine.models.kinds.face_landmarks.load_face_landmarker import load_face_landmarker
from darkroom.engine.models.kinds.frame_interpolation.frame_interpolator import FrameInterpolator
from darkroom.engine.models.kinds.frame_interpolation.load_frame_interpolation import load_frame_interpolation
from darkroom.engine.models.kinds.geometry.depth_estimator import DepthEstimator
from darkroom.engine.models.kinds.geometry.geometry_estimator import GeometryEstimator
from darkroom.engine.models.kinds.geometry.load_depth_anything import load_depth_anything
from darkroom.engine.models.kinds.geometry.load_moge import load_moge
from darkroom.engine.models.kinds.optical_flow.flow_estimator import FlowEstimator
from darkroom.engine.models.kinds.optical_flow.load_optical_flow import load_optical_flow
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.loaded_files import LoadedFiles


class VisionModels:
    """Loader of such models, by the name of their file.

    All raise `BadModelFile`, also when there is no such file.
    """

    def __init__(self, files: LoadedFiles, types: LoadTypes) -> None:
        self._files = files
        self._types = types

    def frame_interpolator(self, name: str) -> FrameInterpolator:
        path, to = self._files.path_of("frame_interpolation", name), self._types.to
        handle = self._files.one(path, "frame interpolation", lambda: load_frame_interpolation(path, to=to))
        return FrameInterpolator(handle)

    def flow_estimator(self, name: str) -> FlowEstimator:
        path, to = self._files.path_of("optical_flow", name), self._types.to
        return FlowEstimator(self._files.one(path, "optical flow", lambda: load_optical_flow(path, to=to)))

    def face_landmarker(self, name: str) -> FaceLandmarker:
        path, to = self._files.path_of("detection", name), self._types.to
        return FaceLandmarker(self._files.one(path, "face landmarks", lambda: load_face_landmarker(path, to=to)))

    def background_remover(self, name: str) -> BackgroundRemover:
        path, types = self._files.path_of("background_removal", name), self._types

        def load() -> torch.nn.Module:
            return load_background_removal(path, types.vision, to=types.to)

        return BackgroundRemover(self._files.one(path, "background removal", load))

    def depth_estimator(self, name: str, rounded_to: torch.dtype | None) -> DepthEstimator:
        """Load Depth Anything 3, its weights rounded to a type unless that is None."""
        path, to = self._files.path_of("geometry_estimation", name), self._types.to
        part = ("depth anything", rounded_to)
        return DepthEstimator(self._files.one(path, part, lambda: load_depth_anything(path, rounded_to, to=to)))

    def geometry_estimator(self, name: str) -> GeometryEstimator:
        path, types = self._files.path_of("geometry_estimation", name), self._types

        def load() -> torch.nn.Module:
            return load_moge(path, types.vision, to=types.to)

        return GeometryEstimator(self._files.one(path, "moge", load))
