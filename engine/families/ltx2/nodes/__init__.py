"""Node classes made for LTX-2: text encoders, guidance of videos with audio, references."""

from __future__ import annotations

from darkroom.engine.families.ltx2.nodes import guidance, references, text

NODES = (*text.NODES, *guidance.NODES, *references.NODES)
