"""`comfy_api.torch_helpers`: compilation of a MODEL's networks."""

from __future__ import annotations

from typing import Any

from darkroom.engine.nodes.library.model.compilation import compile_networks

__all__ = ["set_torch_compile_wrapper"]


def set_torch_compile_wrapper(
    model: Any,
    backend: Any,
    options: dict[str, str] | None = None,
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    keys: list[str] | None = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Have the networks at `keys` (default: the whole diffusion model) compiled while the model samples."""
    compile_networks(
        model,
        keys or ["diffusion_model"],
        backend=backend,
        options=options,
        mode=mode,
        fullgraph=fullgraph,
        dynamic=dynamic,
    )
