"""Node classes made for Stable Diffusion 2's networks: Lotus, SDPose and the fourfold upscaler."""

from __future__ import annotations

from darkroom.engine.families.sd2.nodes import lotus, pose, upscaling

NODES = (*lotus.NODES, *pose.NODES, *upscaling.NODES)
