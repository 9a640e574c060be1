"""The unit of work: 100 is one image of the engine's default family, 512x512 pixels in 20 guided steps.

Requests are counted in it (`contract/graph/cost.py`), and the start-up benchmark measures it. It is fixed, so that
figures of different machines and times compare.
"""

from __future__ import annotations

from typing import Final

UNIT_WORKLOAD: Final = 100.0
UNIT_SIDE_PX: Final = 512
UNIT_PIXELS: Final = UNIT_SIDE_PX * UNIT_SIDE_PX
UNIT_STEPS: Final = 20
UNIT_PASSES: Final = 2
"""Evaluations of the network for one step: with and without the prompt."""

UNIT_CFG: Final = 7.5
UNIT_SAMPLER: Final = "euler"
UNIT_SCHEDULER: Final = "normal"
