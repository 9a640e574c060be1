"""Weight: one parameter or buffer, and the sole owner of its tensors and their states (`weight_state.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from darkroom.engine.memory.offload.packing import Packing
from darkroom.engine.memory.offload.weight_state import (
    DEVICE_MOVES,
    HOST_MOVES,
    RESIDENT_STATES,
    DeviceState,
    HostState,
    IllegalMove,
)
from darkroom.engine.memory.weight_patches import WeightPatch


class Weight:
    """One parameter or buffer of a module: its original, and the tensor that the module computes with.

    `owners` are the layers that have it, more than one for tied weights. Every change of a state goes through a method
    here, which raises `IllegalMove` for one that the tables do not have and lets the module see the right tensor. The
    class is large because no move of a state may be made elsewhere.

    `packing` is that of a packed weight, whose tensors are codes. `keeps_type` is True for scales of a packed one,
    which are never cast.

    `is_loaded` is True where the values are on the device, also while the module computes from a cast buffer. It
    follows from the state; it is an attribute because plans read it for every weight.
    """

    __slots__ = (
        "_applied", "_device_state", "_host", "_host_state", "_loaded", "_seen_before", "_state_before", "_unhooked",
        "_unpatched_form", "is_loaded", "keeps_type", "key", "owners", "packing",
    )  # fmt: skip

    def __init__(
        self,
        key: str,
        owners: list[tuple[nn.Module, str]],
        host: torch.Tensor | None,
        host_state: HostState,
        *,
        packing: Packing | None = None,
        keeps_type: bool = False,
    ) -> None:
        self.key = key
        self.packing = packing
        self.keeps_type = keeps_type
        self.owners = owners
        self._host = host
        self._host_state = host_state
        self._device_state = DeviceState.OFFLOADED
        self.is_loaded = False
        self._loaded: torch.Tensor | None = None
        self._unhooked: torch.Tensor | None = None
        self._applied: Sequence[WeightPatch] = ()
        self._seen_before: torch.Tensor | None = None
        self._state_before = DeviceState.OFFLOADED
        self._unpatched_form: torch.Tensor | None = None  # where patches changed the shape; meta

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def host(self) -> torch.Tensor | None:
        """The original; None where it is absent."""
        return self._host

    @property
    def host_state(self) -> HostState:
        return self._host_state

    @property
    def loaded(self) -> torch.Tensor | None:
        """The tensor on the device, with the patches of the use and of hooks; None while offloaded."""
        return self._loaded

    @property
    def unhooked(self) -> torch.Tensor | None:
        """The tensor on the device without the patches of hooks; None while offloaded."""
        return self._loaded if self._unhooked is None else self._unhooked

    @property
    def applied(self) -> Sequence[WeightPatch]:
        """Patches of the use that the tensor on the device carries."""
        return self._applied

    @property
    def device_state(self) -> DeviceState:
        return self._device_state

    @property
    def is_hooked(self) -> bool:
        return self._unhooked is not None

    @property
    def is_streamed(self) -> bool:
        return self._device_state is DeviceState.STREAMED

    @property
    def num_values(self) -> int:
        """Number of its values, which are more than the numbers in memory where they are packed."""
        return self.in_module.numel() if self.packing is None else self.packing.shape.numel()

    @property
    def is_patched_on_the_way(self) -> bool:
        """True where patches are applied to its values in each call of the layer, as they cannot be packed again."""
        return self.packing is not None and not self.packing.can_pack

    @property
    def in_module(self) -> torch.Tensor:
        """The tensor that the module has: of the right shape, type and layout, whatever its values."""
        owner, name = self.owners[0]
        tensor = owner._buffers[name] if name in owner._buffers else owner._parameters[name]
        assert tensor is not None
        return tensor

    @property
    def is_shown(self) -> bool:
        """False where the module has another tensor than the one it was given here."""
        owner, name = self.owners[0]
        tensor = owner._buffers.get(name, owner._parameters.get(name))
        shown = self._host if self._device_state in (DeviceState.OFFLOADED, DeviceState.LOADING) else self._loaded
        if tensor is None or shown is None:
            return tensor is not None
        return tensor.data_ptr() == shown.data_ptr() and tensor.dtype == shown.dtype and tensor.shape == shown.shape

    # --- the original ------------------------------------------------------------------------------------------------

    def put_host(self, tensor: torch.Tensor, state: HostState) -> None:
        """Set the original: read from a file, pinned or copied to RAM."""
        self._refuse_in_call()
        self._move_host(state)
        self._host = tensor
        if self._loaded is None or self._device_state is DeviceState.LOADING:
            self._show(tensor)

    def keep_on_device(self) -> None:
        """Make the loaded tensor the original, which never leaves."""
        self._require(DeviceState.LOADED)
        if self._host_state is not HostState.ON_DEVICE:
            self._move_host(HostState.ON_DEVICE)
        self._host = self._loaded

    def restore_host(self, tensor: torch.Tensor | None, state: HostState) -> None:
        """Undo `keep_on_device`: the original is again what it was before."""
        if self._host_state is not state:
            self._move_host(state)
        self._host = tensor

    def forget_host(self) -> None:
        """Free the RAM of an original that a file can give again."""
        self._refuse_in_call()
        self._move_host(HostState.ABSENT)
        self._host = None
        if self._loaded is None or self._device_state is DeviceState.LOADING:
            self._show(None)

    # --- the device --------------------------------------------------------------------------------------------------

    def begin_load(self, tensor: torch.Tensor) -> None:
        """Set the memory on the device into which the original is about to be copied."""
        self._move(DeviceState.LOADING)
        self._loaded = tensor

    def end_load(self) -> None:
        """Record that the values have arrived."""
        self._require(DeviceState.LOADING)
        self._move(DeviceState.LOADED)
        self._show(self._loaded)

    def load_in_place(self) -> None:
        """Compute with the original itself, which an offloaded weight's module has already."""
        self._require(DeviceState.OFFLOADED)
        if self._host is None:
            raise IllegalMove(f"{self.key}: an absent original cannot be loaded in place")
        self._move(DeviceState.LOADED)
        self._loaded = self._host

    def patch(self, tensor: torch.Tensor, patches: Sequence[WeightPatch]) -> None:
        """Set the tensor that carries these patches of the use."""
        self._require(DeviceState.LOADED)
        self._move(DeviceState.PATCHED)
        if tensor.shape != self.in_module.shape:
            self._unpatched_form = self.in_module.to("meta")
        self._loaded, self._applied = tensor, patches
        self._show(tensor)

    def unpatch(self, tensor: torch.Tensor) -> None:
        """Set the tensor that has the original's values again."""
        self._require(DeviceState.PATCHED)
        self._move(DeviceState.LOADED)
        self._loaded, self._applied = tensor, ()
        self._show(tensor)
        self._unpatched_form = None

    def hook(self, tensor: torch.Tensor) -> None:
        """Set the tensor that carries the patches of hooks too, and keep the one without."""
        self._require(DeviceState.LOADED, DeviceState.PATCHED)
        self._move(DeviceState.HOOKED)
        self._unhooked, self._loaded = self._loaded, tensor
        self._show(tensor)

    def unhook(self) -> None:
        """Return to the tensor without the patches of hooks."""
        self._require(DeviceState.HOOKED)
        self._move(DeviceState.PATCHED if self._applied else DeviceState.LOADED)
        self._loaded, self._unhooked = self._unhooked, None
        self._show(self._loaded)

    def offload(self) -> None:
        """Free the tensor on the device, patches and all, from any state but a layer's call."""
        self._refuse_in_call()
        if self._device_state is not DeviceState.OFFLOADED:
            self._move(DeviceState.OFFLOADED)
        seen = self._loaded
        self._loaded = self._unhooked = None
        self._applied = ()
        if seen is not self._host:
            self._show(self._host)
        self._unpatched_form = None

    def stream(self, tensor: torch.Tensor) -> None:
        """Let the layer compute with this tensor for one call."""
        before = self._device_state
        self._move(DeviceState.STREAMED)
        self._state_before, self._seen_before = before, self.in_module
        self._show(tensor)

    def end_stream(self) -> None:
        """Return to the state before the layer's call."""
        self._require(DeviceState.STREAMED)
        self._move(self._state_before)
        seen, self._seen_before = self._seen_before, None
        self._show(seen)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _require(self, *states: DeviceState) -> None:
        if self._device_state not in states:
            expected = " or ".join(map(str, states))
            raise IllegalMove(f"{self.key}: wrong state for this move; got {self._device_state}, expected {expected}")

    def _refuse_in_call(self) -> None:
        if self._device_state is DeviceState.STREAMED:
            raise IllegalMove(f"{self.key}: a layer computes with it")

    def _move(self, state: DeviceState) -> None:
        if state not in DEVICE_MOVES[self._device_state]:
            raise IllegalMove(f"{self.key}: no move from {self._device_state} to {state}")
        self._device_state = state
        if state is not DeviceState.STREAMED:
            self.is_loaded = state in RESIDENT_STATES

    def _move_host(self, state: HostState) -> None:
        if state not in HOST_MOVES[self._host_state]:
            raise IllegalMove(f"{self.key}: no move from {self._host_state} to {state}")
        self._host_state = state

    def _show(self, tensor: torch.Tensor | None) -> None:
        """Put a tensor into the layers; None: one of its shape and type without values."""
        if tensor is None:
            tensor = self.in_module.to("meta") if self._unpatched_form is None else self._unpatched_form
        kind = type(tensor)
        for owner, name in self.owners:
            if name not in owner._parameters:
                owner._buffers[name] = tensor
            elif kind is nn.Parameter:
                owner._parameters[name] = tensor  # type: ignore[assignment]
            elif kind is torch.Tensor:  # as `nn.Parameter` does, whose own checks take a third of each streamed call
                owner._parameters[name] = torch.Tensor._make_subclass(nn.Parameter, tensor, False)
            else:
                owner._parameters[name] = nn.Parameter(tensor, requires_grad=False)

    def check_integrity(self) -> None:
        """Raise AssertionError when tensors, states and the module contradict each other."""
        state = self._state_before if self.is_streamed else self._device_state
        where = f"{self.key} ({self._host_state.value}, {state.value})"
        assert (self._host is None) == (self._host_state is HostState.ABSENT), f"{where}: wrong host state"
        assert (self._loaded is None) == (state is DeviceState.OFFLOADED), f"{where}: wrong device state"
        assert (self._unhooked is not None) == (state is DeviceState.HOOKED), f"{where}: wrongly hooked"
        assert self.is_loaded == (state in RESIDENT_STATES), f"{where}: wrongly loaded"
        assert (self._seen_before is not None) == self.is_streamed, f"{where}: wrongly streamed"
        if state is not DeviceState.HOOKED:
            assert bool(self._applied) == (state is DeviceState.PATCHED), f"{where}: wrongly patched"
        seen = self._host if state in (DeviceState.OFFLOADED, DeviceState.LOADING) else self._loaded
        if seen is not None and not self.is_streamed:
            assert self.in_module.data_ptr() == seen.data_ptr(), f"{where}: the module has another tensor"
