"""Ways in which networks see reference images (`FluxKontextMultiReferenceLatentMethod`)."""

from __future__ import annotations

from darkroom.engine.diffusion.conditions import ConstantInput

TIME_ZERO = "index_timestep_zero"  # by index, as if their time was 0


def method_at_the_time(method: str) -> ConstantInput:
    """Return the input of a network that sees references at the image's time. Raises ValueError for time 0."""
    if method == TIME_ZERO:
        raise ValueError(
            f"reference_latents_method: the model sees reference images at the time of its own; got {method!r}, "
            "expected 'offset', 'index' or 'uxo/uno'"
        )
    return ConstantInput(method)
