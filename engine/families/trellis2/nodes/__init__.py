"""Node classes made for TRELLIS 2 and Pixal3D: images, stages of sampling, and decoding to voxels and meshes."""

from __future__ import annotations

from darkroom.engine.families.trellis2.nodes import conditioning, decoding, stages

NODES = (*conditioning.NODES, *stages.NODES, *decoding.NODES)
