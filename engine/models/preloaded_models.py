"""Models that are read before a prompt names them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from darkroom.engine.models.kinds.controlnet_value import ControlBase
from darkroom.engine.models.model import Model
from darkroom.engine.models.store import ModelStore
from darkroom.engine.models.weight_handle import WeightHandle

# What can be read before a prompt names it: the folder's kind -> the values of a file of it.
PRELOADED_KINDS: Mapping[str, Callable[[ModelStore, str], tuple[Any, ...]]] = {
    "checkpoints": lambda store, name: store.checkpoint(name),
    "diffusion_models": lambda store, name: (store.unet(name),),
    "text_encoders": lambda store, name: (store.clip(name),),
    "vae": lambda store, name: (store.vae(name),),
    "controlnet": lambda store, name: (store.auxiliary.controlnet(name),),
    "upscale_models": lambda store, name: (store.auxiliary.upscaler(name),),
    "clip_vision": lambda store, name: (store.auxiliary.clip_vision(name),),
}


class PreloadedModels:
    """The files that stay read whether or not a prompt uses them."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._kept: dict[tuple[str, str], list[WeightHandle]] = {}

    def load(self, kind: str, name: str, *, keep: bool = False) -> int:
        """Read a file and load it to its device, as far as it fits; return the bytes of its weights.

        `kind` is one of `PRELOADED_KINDS` (KeyError otherwise). With `keep` its weights are held until `forget`, and
        leave the device last. Without it, they are held as long as something refers to them. The file is in the page
        cache then, and reading it takes most of the time of a first run. Raises `BadModelFile`.
        """
        values = PRELOADED_KINDS[kind](self._store, name)
        handles = [handle for value in values if value is not None for handle in _handles(value)]
        kept: list[WeightHandle] = []
        for handle in handles:
            with handle.in_use():
                pass
            if keep:
                handle.keep()
                kept.append(handle)
        if kept:
            self._kept[kind, name] = kept
        return sum(handle.size_bytes for handle in handles)

    def forget(self, paths: Collection[str]) -> None:
        """Hold the weights of these files no longer."""
        folders = self._store.files.folders
        self._kept = {
            (kind, name): handles
            for (kind, name), handles in self._kept.items()
            if str(folders.path(kind, name)) not in paths
        }


def _handles(value: Any) -> list[WeightHandle]:
    """Return the weights of a MODEL, CLIP, VAE...; a Control-LoRA has none of its own."""
    if isinstance(value, ControlBase):
        return [model.weights for model in value.get_models()]
    patcher: Model = getattr(value, "patcher", value)
    return [patcher.weights]
