"""`comfy_extras.nodes_model_advanced`: parameterisations that nodes put in the place of a model's own."""

from __future__ import annotations

from darkroom.engine.diffusion.model_sampling_variants import DistilledSchedule as ModelSamplingDiscreteDistilled
from darkroom.engine.diffusion.model_sampling_variants import Lcm as LCM

__all__ = ["LCM", "ModelSamplingDiscreteDistilled"]
