"""MODEL: a denoising network with everything nodes add to it. Clones share the weights; each has its own options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from darkroom.engine.cancel import check_cancelled
from darkroom.engine.diffusion.guidance import REFERENCES
from darkroom.engine.models.patching.hooks import (
    EnumHookMode,
    EnumHookType,
    EnumWeightTarget,
    HookGroup,
    create_target_dict,
)
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.weight_handle import Network, WeightHandle

REGISTERED = "registered_hooks"
VIDEO_DIMENSIONS = 3  # of a latent: frames, rows, columns

Conditions = Mapping[str, Sequence[dict[str, Any]]]  # side -> conditions


class Model(ModulePatcher):
    """MODEL: `model` is `engine/diffusion/denoiser.py::Denoiser`."""

    def set_up(self, weights: WeightHandle) -> None:
        super().set_up(weights)
        self.batch_sizes: dict[Any, int] = {}  # decided by `guidance` for the current use

    def model_dtype(self) -> torch.dtype | None:
        """Return the type of the weights; None for a pack's network that does not say."""
        dtype: torch.dtype | None = self.model.get_dtype() if hasattr(self.model, "get_dtype") else None
        return dtype

    def memory_required(self, input_shape: Sequence[int], references: Sequence[Sequence[int]] = ()) -> float:
        """Return the bytes of working memory for an input of that shape, and reference latents of those."""
        if not references:
            required: float = self.model.memory_required(input_shape)
            return required
        required = self.model.memory_required(input_shape, cond_shapes={REFERENCES: references})
        return required

    def begin_batch(self, shape: Sequence[int], *, is_split: bool, references: Sequence[Sequence[int]] = ()) -> None:
        """Reserve working memory for a batch of that shape, half of it for the attention. Only while in use.

        With `is_split` the batch is part of one that was too large for the memory.
        """
        num_bytes = self.memory_required(shape, references)
        self.weights.begin_work(int(num_bytes * (0.5 + 0.5 / self.memory_savings.attention_slices)))
        if is_split:
            self.weights.note_split()

    @contextmanager
    def in_use(self, *, working_bytes: int = 0, together_with: Sequence[ModulePatcher] = ()) -> Iterator[Network]:
        self.batch_sizes.clear()
        others = [*together_with, *(model for model in self.model_patches_models() if model not in together_with)]
        self.model_patches_to(self.load_device)
        dtype = self.model_dtype()
        if dtype is not None:
            self.model_patches_to(dtype)
        with super().in_use(working_bytes=working_bytes, together_with=others) as network, self._interruptible():
            yield network

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let a run be cancelled between the blocks of a network of videos, whose steps take long.

        Networks of images have no hooks: their steps are short.
        """
        hooks = [block.register_forward_pre_hook(_check_before) for block in _video_blocks(self.model)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def check_cancelled(self) -> None:
        """Raise `Interrupted` when the node that samples is to stop."""
        check_cancelled()

    # --- before sampling ---------------------------------------------------------------------------------------------

    @contextmanager
    def hooks_registered(self, conds: Conditions, model_options: dict[str, object]) -> Iterator[None]:
        """Register the hooks of the conditions (and of their ControlNets) with this model while the context is open.

        Changes `conds`, whose hooks become those that registered, and `model_options`, which hooks may add to.
        """
        _join_control_hooks(conds)
        registered = self._register(conds, model_options)
        _keep_only(registered, conds)
        mode = self.hook_mode
        if len({id(condition.get("hooks")) for conditions in conds.values() for condition in conditions}) <= 1:
            self.hook_mode = EnumHookMode.MinVram  # they are applied once, so nothing is worth remembering
        try:
            yield
        finally:
            self.hook_mode = mode
            self.restore_hook_patches()

    def _register(self, conds: Conditions, model_options: dict[str, object]) -> HookGroup:
        hooks = HookGroup(
            hook
            for conditions in conds.values()
            for condition in conditions
            for hook in (condition["hooks"].hooks if condition.get("hooks") is not None else ())
        )
        registered = HookGroup()
        target = create_target_dict(EnumWeightTarget.Model)
        for kind in (EnumHookType.TransformerOptions, EnumHookType.AdditionalModels):
            for hook in hooks.get_type(kind):
                hook.add_hook_patches(self, model_options, target, registered)
        self.register_all_hook_patches(hooks, target, model_options, registered)
        if len(registered):
            model_options[REGISTERED] = registered
        return registered


def _join_control_hooks(conds: Conditions) -> None:
    """Attach the hooks of a ControlNet to the conditions it controls; equal pairs share one group."""
    joined: dict[tuple[int, int], HookGroup | None] = {}
    for conditions in conds.values():
        for condition in conditions:
            extra = condition["control"].get_extra_hooks() if "control" in condition else []
            if not extra:
                continue
            own = condition.get("hooks")
            pair = (id(condition["control"]), id(own))
            if pair not in joined:
                joined[pair] = HookGroup.combine_all_hooks([*extra, own])
            condition["hooks"] = joined[pair]


def _keep_only(registered: HookGroup, conds: Conditions) -> None:
    """Remove hooks that did not register from the conditions. Conditions that shared a group still do."""
    replaced: dict[int, HookGroup | None] = {}
    for conditions in conds.values():
        for condition in conditions:
            hooks = condition.get("hooks")
            if hooks is None or (len(registered) and hooks.is_subset_of(registered)):
                continue
            if id(hooks) not in replaced:
                common = hooks.new_with_common_hooks(registered)
                replaced[id(hooks)] = common if len(common) else None
            condition["hooks"] = replaced[id(hooks)]


def _video_blocks(model: Network) -> list[nn.Module]:
    """Return the blocks of a network of videos, which run one after the other; none of a network of images."""
    dimensions = getattr(getattr(model, "latent_format", None), "latent_dimensions", 2)
    network = getattr(model, "diffusion_model", None)
    if dimensions != VIDEO_DIMENSIONS or not isinstance(network, nn.Module):
        return []
    lists = (part for part in network.children() if isinstance(part, nn.ModuleList | nn.ModuleDict))
    return [block for part in lists for block in part.children()]


def _check_before(block: nn.Module, args: object) -> None:
    check_cancelled()
