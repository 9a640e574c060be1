"""The networks of MediaPipe's face landmarker in one, as files have them: two detectors, landmarks and expressions."""

from __future__ import annotations

from torch import nn

from darkroom.engine.models.kinds.face_landmarks.face_detectors import FullRangeDetector, ShortRangeDetector
from darkroom.engine.models.kinds.face_landmarks.face_mesh import FaceBlendshapes, FaceMesh
from darkroom.engine.models.kinds.face_landmarks.face_template import FaceTemplate


class FaceNetworks(nn.Module):
    """The networks, and the face that they were made for, which the file has."""

    def __init__(self, template: FaceTemplate) -> None:
        super().__init__()
        self.template = template
        self.detector_short = ShortRangeDetector()
        self.detector_full = FullRangeDetector()
        self.mesh = FaceMesh()
        self.blendshapes = FaceBlendshapes()
