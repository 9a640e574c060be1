"""The node that puts a hypernetwork on a model's attention."""

from __future__ import annotations

import logging
import uuid
from typing import Annotated

import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.log_context import report_warning
from darkroom.engine.models.model import Model
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Float, ModelCombo

log = logging.getLogger(__name__)


class HypernetworkPatch:
    """Attention patch that changes keys and values."""

    def __init__(self, hypernetwork: ModulePatcher, strength: float) -> None:
        self.hypernetwork = hypernetwork
        self.strength = strength

    def __deepcopy__(self, memo: object) -> HypernetworkPatch:
        return self  # a clone of the model shares the weights

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, extra_options: object
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        k, v = self.hypernetwork.model(k, v, self.strength)
        return q, k, v


def _check_takes_hypernetworks(model: Model, name: str) -> None:
    """Raise ValueError for a model of a family that has no hypernetworks."""
    family: ModelFamily | None = model.model.model_config.family
    if family is not None and not family.takes_hypernetworks:
        takers = ", ".join(item.label for item in registry.families() if item.takes_hypernetworks)
        raise ValueError(f"hypernetwork {name}: the model takes none; got {family.label}, expected one of {takers}")


def _warn_without_effect(model: Model, hypernetwork: ModulePatcher, name: str) -> None:
    """Report a hypernetwork for keys and values of no width that the model's attention has."""
    layers = model.model.diffusion_model.state_dict()
    widths = {str(weight.shape[1]) for key, weight in layers.items() if key.endswith((".to_k.weight", ".to_v.weight"))}
    given = [*hypernetwork.model.by_width]
    if not widths.intersection(given):
        found, wanted = ", ".join(given), ", ".join(sorted(widths, key=int))
        message = f"hypernetwork {name}: it has no effect; got networks for widths {found}, expected some of {wanted}"
        report_warning(log, "hypernetwork_without_effect", message)


@node(
    "HypernetworkLoader",
    display_name="Load Hypernetwork",
    category="model/loaders",
    python_module="comfy_extras.nodes_hypernetwork",
)
def hypernetwork_loader(
    context: NodeContext,
    *,
    model: MODEL,
    hypernetwork_name: Annotated[str, ModelCombo("hypernetworks")],
    strength: Annotated[float, Float(min=-10.0, max=10.0, step=0.01)] = 1.0,
) -> MODEL:
    _check_takes_hypernetworks(model, hypernetwork_name)
    hypernetwork = context.models.auxiliary.hypernetwork(hypernetwork_name)
    _warn_without_effect(model, hypernetwork, hypernetwork_name)
    patched = model.clone()
    patched.set_additional_models(f"hypernetwork {uuid.uuid4()}", [hypernetwork])
    patch = HypernetworkPatch(hypernetwork, strength)
    patched.set_model_attn1_patch(patch)
    patched.set_model_attn2_patch(patch)
    return patched


NODES = (hypernetwork_loader,)
