"""`nodes`: the built-in node classes, and the tables of all classes."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

from engine.compat import node_classes
from engine.compat.host import HOST
from engine.compat.lacking import not_supported
from engine.compat.names.latent_preview import prepare_callback
from engine.diffusion.noise import prepare_noise
from engine.diffusion.sample import fix_empty_latent_channels, sample
from engine.nodes.class_form import ClassNode
from engine.nodes.running_call import running_context

MAX_RESOLUTION = 16384


class NodeClasses(MutableMapping[str, type]):
    """Name to class. What a pack puts in becomes a node of the engine."""

    def __getitem__(self, class_type: str) -> type:
        host = HOST.get()
        return node_classes.class_of(host.engine.catalogue[class_type], host.known.nodes.get(class_type))

    def __setitem__(self, class_type: str, kind: type) -> None:
        host = HOST.get()
        if class_type in host.engine.catalogue and not isinstance(host.engine.catalogue[class_type], ClassNode):
            raise not_supported(f"replacing the built-in node {class_type}")
        host.engine.catalogue.add(ClassNode(class_type, kind))

    def __delitem__(self, class_type: str) -> None:
        raise not_supported(f"removing the node {class_type}")

    def __iter__(self) -> Iterator[str]:
        return iter(HOST.get().engine.catalogue)

    def __len__(self) -> int:
        return len(HOST.get().engine.catalogue)

    def __contains__(self, class_type: object) -> bool:
        return class_type in HOST.get().engine.catalogue


class DisplayNames(MutableMapping[str, str]):
    """Name to display name."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def __getitem__(self, class_type: str) -> str:
        if class_type in self._given:
            return self._given[class_type]
        host = HOST.get()
        spec = host.engine.catalogue[class_type].spec(host.engine.environment)
        return spec.display_name or class_type

    def __setitem__(self, class_type: str, name: str) -> None:
        self._given[class_type] = name

    def __delitem__(self, class_type: str) -> None:
        del self._given[class_type]

    def __iter__(self) -> Iterator[str]:
        return iter(HOST.get().engine.catalogue)

    def __len__(self) -> int:
        return len(HOST.get().engine.catalogue)


NODE_CLASS_MAPPINGS = NodeClasses()
NODE_DISPLAY_NAME_MAPPINGS = DisplayNames()
EXTENSION_WEB_DIRS: dict[str, str] = {}
LOADED_MODULE_DIRS: dict[str, str] = {}


def before_node_execution() -> None:
    """Raises `Interrupted` when the run is to stop."""
    context = running_context()
    if context is not None:
        context.cancel.check()


def interrupt_processing(value: bool = True) -> None:
    if value:
        HOST.get().engine.interrupt()


def common_ksampler(
    model: Any,
    seed: int,
    steps: int,
    cfg: float,
    sampler_name: str,
    scheduler: str,
    positive: Any,
    negative: Any,
    latent: dict[str, Any],
    denoise: float = 1.0,
    disable_noise: bool = False,
    start_step: int | None = None,
    last_step: int | None = None,
    force_full_denoise: bool = False,
) -> tuple[dict[str, Any]]:
    """What KSampler does, as a function."""
    samples = fix_empty_latent_channels(model, latent["samples"])
    if disable_noise:
        noise = torch.zeros(samples.shape, dtype=samples.dtype)
    else:
        noise = prepare_noise(samples, seed, latent.get("batch_index"))
    context = running_context()
    result = sample(
        model, noise, steps, cfg, sampler_name, scheduler, positive, negative, samples, denoise=denoise,
        start_step=start_step, last_step=last_step, force_full_denoise=force_full_denoise,
        noise_mask=latent.get("noise_mask"), callback=prepare_callback(model, steps),
        check_cancelled=None if context is None else context.cancel.check, seed=seed,
    )  # fmt: skip
    return ({**latent, "samples": result},)
