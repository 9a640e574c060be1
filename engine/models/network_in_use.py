"""A network that code outside of the engine can call directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from darkroom.engine.models.patching.module_patcher import ModulePatcher


class NetworkInUse:
    """Callable that loads its weights to their device and keeps them there while it computes.

    Its attributes are the network's own. `working_bytes` computes the working memory from the shape of the first tensor
    passed.
    """

    def __init__(
        self, patcher: ModulePatcher, working_bytes: Callable[[object, torch.Size], int] | None = None
    ) -> None:
        self._patcher = patcher
        self._working_bytes = working_bytes

    @property
    def patcher(self) -> ModulePatcher:
        return self._patcher

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
        num_bytes = self._working_bytes(self._patcher.model, tensors[0].shape) if self._working_bytes and tensors else 0
        with self._patcher.in_use(working_bytes=num_bytes) as network:
            return network(*args, **kwargs)

    def __getattr__(self, name: str) -> object:
        if name == "_patcher":  # a copy in the making has none yet
            raise AttributeError(name)
        return getattr(self._patcher.model, name)
