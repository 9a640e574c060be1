"""Strategy: one faster way to compute, which is measured on this machine before it is used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from darkroom.engine.diffusion.options import Options
from darkroom.engine.tuning.made_tensors import MadeTensors
from darkroom.engine.tuning.quality import Quality

Undo = Callable[[], None]

NETWORK_WRAPPERS = ("apply_model", "diffusion_model", "calc_cond_batch")
PROMPTS_OF_ROWS = "prompts_of_rows"  # transformer option of a batch of several runs: a `PromptRows` of each, in order
NETWORK_OPTIONS = ("patches", "patches_replace", "optimized_attention_override")


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about the machine on which strategies depend. `device_type` is torch's (`cpu`, `cuda`)."""

    device_type: str
    device_name: str
    capability: tuple[int, int] | None = None  # of a CUDA device
    num_cores: int = 1  # physical ones that this process may use
    is_full_size: bool = True  # the measured network is one that users have, no small one


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows that one run has in a batch, and the `uuids` and sides of their conditions, which follow each other."""

    num_rows: int
    uuids: Sequence[object]
    sides: Sequence[object]


@dataclass(slots=True)
class Evaluation:
    """State of the evaluation that runs, which strategies of one network share.

    `num_compiled` counts the blocks' shapes that run compiled, `in_force` names the strategies that have changed the
    network: with others a recorded graph is out of date. `made` has the tensors that some of them compute with;
    `own_tensors` stands for those, and no graph outlives them.
    """

    num_compiled: int = 0
    in_force: tuple[str, ...] = ()
    own_tensors: object = None
    made: MadeTensors = field(default_factory=MadeTensors)

    @property
    def kind(self) -> tuple[object, ...]:
        """All of this state: evaluations with an equal one launch the same kernels on the same weights."""
        return self.num_compiled, self.in_force, self.own_tensors


@dataclass(frozen=True, slots=True)
class SamplingUse:
    """A network that is about to sample, with its weights on their device.

    `denoiser` is the `Denoiser` (or a VAE), `patcher` the MODEL, `options` its model options for this run. With
    `may_share` other runs may compute at the same time, now or from any moment on.
    """

    patcher: Any
    denoiser: Any
    options: Options
    evaluation: Evaluation = field(default_factory=Evaluation)
    may_share: bool = False

    @property
    def network(self) -> nn.Module:
        """The denoiser's network, or the VAE itself."""
        network: nn.Module = getattr(self.denoiser, "diffusion_model", self.denoiser)
        return network

    @property
    def device(self) -> torch.device:
        device: torch.device = self.patcher.load_device
        return device


class Strategy:
    """Base of the strategies. Those that only add options of a run override `options`, the others `apply`.

    `quality` is the closest one for which it may be used. With `is_size_sensitive` a measurement with a small network
    says nothing about a large one. One that `is_opt_in` is measured only where the setting names it. One that
    `is_graded` is judged for the next quality where its error is too large for its own. One that
    `is_certain` leaves out work, and is used unmeasured wherever it fits; its latents are at most `certain_error` from
    the plain path's. `target` is the network that it changes: `denoiser`, `vae` or `any`. One that `makes_tensors`
    computes with tensors that it makes of the weights when it is applied; those that it gets from `Evaluation.made` are
    kept from one run to the next, and graphs with them.
    """

    name: ClassVar[str]
    quality: ClassVar[Quality]
    about: ClassVar[str]
    target: ClassVar[str] = "denoiser"
    is_size_sensitive: ClassVar[bool] = False
    is_opt_in: ClassVar[bool] = False
    is_graded: ClassVar[bool] = False
    is_certain: bool = False
    certain_error: ClassVar[float] = 0.0
    makes_tensors: ClassVar[bool] = False
    conflicts: ClassVar[frozenset[str]] = frozenset()

    def missing(self, machine: MachineFacts) -> str | None:
        """Return the requirement of the strategy that this machine lacks, or None."""
        return None

    def unfit(self, use: SamplingUse) -> str | None:
        """Return the reason why it cannot be used for this network and run, or None."""
        return None

    def options(self, use: SamplingUse) -> Options:
        """Return model options to merge into those of the run."""
        return {}

    def apply(self, use: SamplingUse) -> Undo:
        """Change the network and return the function that restores it to the bit."""
        return nothing

    def settle(self, seconds: float) -> str | None:
        """Wait for work in the background, such as compilation. Return why it is not done, or None."""
        return None

    def release(self) -> bool:
        """Release the memory that is held between runs; return True where there was some."""
        return False

    def close(self) -> None:
        """Stop work in the background."""
        return None


def nothing() -> None:
    """Undo nothing."""


def custom_code(use: SamplingUse) -> str | None:
    """Return the first thing by which nodes reach into the network in this run, or None."""
    options, inner = use.options, use.options.get("transformer_options", {})
    for key in ("model_function_wrapper", "context_handler", "registered_hooks"):
        if options.get(key) is not None:
            return f"the model has {key}"
    for kind in NETWORK_WRAPPERS:
        if any(inner.get("wrappers", {}).get(kind, {}).values()):
            return f"the model has wrappers of {kind}"
    for key in NETWORK_OPTIONS:
        if inner.get(key):
            return f"the model has {key}"
    if inner.get("attention_slices", 1) > 1:
        return "attention is sliced because memory is short"
    if use.patcher.is_injected or any(name.startswith("diffusion_model") for name in use.patcher.object_patches):
        return "nodes have replaced parts of the network"
    return None


def offloaded(use: SamplingUse) -> str | None:
    """Return a reason where the weights are not all on the device."""
    if use.patcher.loaded_size() < use.patcher.model_size():
        return "weights are partly offloaded"
    return None


def computes_as_stored(use: SamplingUse, layer: nn.Module) -> bool:
    """Return True where a layer's weight is in the type that the network computes in.

    Others, as float8 and packed ones, are cast for each call of the layer, and are nothing to compute with before.
    """
    is_same: bool = layer.get_parameter("weight").dtype == use.denoiser.compute_dtype
    return is_same


def replace_forwards(changes: Sequence[tuple[nn.Module, Callable[..., torch.Tensor]]]) -> Undo:
    """Give modules other forward functions; return the function that restores their own."""
    for module, forward in changes:
        module.__dict__["forward"] = forward

    def undo() -> None:
        for module, _ in changes:
            module.__dict__.pop("forward", None)

    return undo


def has_own_forward(module: nn.Module) -> bool:
    """Return True where code of a node, or another strategy, has replaced this module's forward function."""
    return "forward" in module.__dict__


def unchanged_layers(use: SamplingUse, kinds: Collection[type[nn.Module]]) -> list[nn.Module]:
    """Return the network's layers of exactly these types whose forward function nothing has replaced."""
    return [layer for layer in use.network.modules() if type(layer) in kinds and not has_own_forward(layer)]
