"""Nodes that compile the network of MODEL."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated

from darkroom.engine.diffusion.compilation import BACKENDS, KEY, OPTIONS_KEY, CompiledNetworks, missing_compiler
from darkroom.engine.diffusion.wrappers import APPLY_MODEL
from darkroom.engine.models.model import Model
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Combo

log = logging.getLogger(__name__)


@node("TorchCompileModel", display_name=None, category="experimental", experimental=True,
      python_module="comfy_extras.nodes_torch_compile", advanced=("backend",))  # fmt: skip
def torch_compile_model(context: NodeContext, *, model: MODEL, backend: Annotated[str, Combo(BACKENDS)]) -> MODEL:
    """Compile the network with `torch.compile` in its first step. Without a compiler it runs as it is, and says why."""
    missing = missing_compiler(backend, model.load_device.type)
    if missing is not None:
        log.warning("network not compiled: reason=%s", missing)
        context.report_text(f"not compiled: {missing}")
        return model
    compiled = model.clone()
    compile_networks(compiled, backend=backend)
    return compiled


def compile_networks(model: Model, keys: Sequence[str] = ("diffusion_model",), **arguments: object) -> None:
    """Have the networks at these attributes of a model compiled while it samples, instead of any others.

    `arguments` are those of `torch.compile`.
    """
    model.remove_wrappers_with_key(APPLY_MODEL, KEY)
    model.add_wrapper_with_key(APPLY_MODEL, KEY, CompiledNetworks(tuple(keys), arguments))
    model.model_options[OPTIONS_KEY] = arguments


NODES = (torch_compile_model,)
