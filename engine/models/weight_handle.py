"""Access to the weights of one network through model memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

Network = Any  # a torch module with the members that its architecture gives it

# One patch of one weight: its strength, the patch, the weight's strength, offset (dim, start, length), function
WeightPatch = tuple[float, Any, float, Any, Any]


class WeightHandle(Protocol):
    """The pool's handle of one network: the only way to its weights."""

    @property
    def module(self) -> torch.nn.Module: ...

    @property
    def load_device(self) -> str: ...

    @property
    def offload_device(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def loaded_bytes(self) -> int: ...

    def in_use(
        self,
        *,
        working_bytes: int = 0,
        patches: Mapping[str, Sequence[WeightPatch]] | None = None,
        patches_id: object = None,
        together_with: Sequence[Any] = (),
        compute_dtype: torch.dtype | None = None,
    ) -> AbstractContextManager[torch.nn.Module]:
        """Load the network (patched so) and the others to their device while the context is open.

        `compute_dtype` is what the weights are cast to while they compute, None what the network was made for.
        """
        ...

    def prepare(
        self,
        *,
        patches: Mapping[str, Sequence[WeightPatch]] | None = None,
        patches_id: object = None,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        """Set the patches of a network that another's `in_use` loads along."""
        ...

    def patch_hooks(
        self, patches: Mapping[str, Sequence[WeightPatch]], hooks_id: object, *, keep: bool = False
    ) -> None:
        """Apply these patches on top of the others, instead of those of the last call. Only while in use."""
        ...

    def original_weight(self, key: str) -> torch.Tensor: ...

    def current_weight(self, key: str) -> torch.Tensor:
        """Return the weight with its current patches, on the device where it is."""
        ...

    def free_bytes(self) -> float: ...

    @property
    def device_bytes(self) -> int:
        """Bytes of the load device's own memory, 0 where it computes in the machine's."""
        ...

    @property
    def ram_bytes(self) -> int:
        """Bytes of the weights that are in RAM now."""
        ...

    @property
    def memory_savings(self) -> Any:
        """Memory savings of the running node: `tiles`, `attention_slices`."""
        ...

    def begin_work(self, working_bytes: int) -> None:
        """Reserve working memory for the computation that follows. Only while in use."""
        ...

    def note_split(self) -> None:
        """Record that a batch was divided for lack of memory."""
        ...

    @property
    def cast_bytes(self) -> int:
        """Bytes of the largest layer while its weights are cast into fresh memory."""
        ...

    @property
    def has_fixed_addresses(self) -> bool:
        """True where layers compute without a cast buffer, from weights that stay until they are moved or patched."""
        ...

    @property
    def can_have_fixed_addresses(self) -> bool:
        """True where `has_fixed_addresses` is, or would be with direct casts."""
        ...

    def cast_directly(self) -> Callable[[], None]:
        """Cast loaded weights into fresh memory, without buffers, until the function returned is called."""
        ...

    def use_as_stored(
        self, patches_of: Mapping[torch.nn.Module, Mapping[str, Sequence[WeightPatch]]]
    ) -> Callable[[], None]:
        """Leave loaded weights of these layers as they are stored until the function returned is called."""
        ...

    def keep(self) -> None:
        """Unload this model from its device last, and never because nothing runs."""
        ...
