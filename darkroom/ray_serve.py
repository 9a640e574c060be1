"""Entry point for Ray Serve: `serve run darkroom.ray_serve:build max_replicas=4`."""

from __future__ import annotations

from typing import Any


def build(args: dict[str, Any]) -> Any:
    """Return the Ray Serve application for its options (`worker/integrations/ray/options.py`), given by name."""
    from darkroom.worker.integrations.ray.application import build_application
    from darkroom.worker.integrations.ray.options import RayOptions

    return build_application(RayOptions.model_validate(args))
