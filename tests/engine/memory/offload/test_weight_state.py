"""States of a weight: random moves, legal or not, and the tables of legal ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import nn

from darkroom.engine.memory.offload.weight import Weight
from darkroom.engine.memory.offload.weight_state import DEVICE_MOVES, HOST_MOVES, DeviceState, HostState, IllegalMove

PATCHES = ((1.0, (torch.ones(3, 2),), 1.0, None, None),)
READABLE = (HostState.READ, HostState.IN_RAM, HostState.PINNED)


def tensor() -> torch.Tensor:
    return torch.rand(3, 2)


def weight_of(host: torch.Tensor | None, state: HostState) -> tuple[nn.Linear, Weight]:
    layer = nn.Linear(2, 3, bias=False, device="meta" if host is None else "cpu").requires_grad_(False)
    return layer, Weight("weight", [(layer, "weight")], layer.weight if host is not None else None, state)


def test_every_state_can_be_reached_and_left() -> None:
    for moves, start in ((DEVICE_MOVES, DeviceState.OFFLOADED), (HOST_MOVES, HostState.MAPPED)):
        table: dict[Any, Any] = dict(moves)
        reached, found = {start}, {start}
        while found:
            found = {after for state in found for after in table[state]} - reached
            reached |= found
        assert reached == set(table) == set(type(start))
        assert all(table.values())


@pytest.mark.parametrize("move", ["end_load", "unhook", "end_stream", "keep_on_device", "load_in_place", "forget_host"])
def test_an_absent_weight_refuses_every_move_that_needs_values(move: str) -> None:
    _, weight = weight_of(None, HostState.ABSENT)
    with pytest.raises(IllegalMove, match="weight"):
        getattr(weight, move)()
    weight.check_integrity()


def test_a_weight_that_a_layer_computes_with_is_not_offloaded() -> None:
    layer, weight = weight_of(tensor(), HostState.IN_RAM)
    weight.stream(tensor())
    with pytest.raises(IllegalMove):
        weight.offload()
    weight.end_stream()
    weight.offload()
    assert layer.weight is weight.host


class Moves(RuleBasedStateMachine):
    """One weight under random calls, beside a plain model of what it must have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = weight_of(tensor(), HostState.MAPPED)

    def tried(self, legal: bool, move: str, *args: Any) -> bool:
        """Make a move, which raises if and only if it is illegal."""
        seen, states = self.layer.weight, (self.weight.host_state, self.weight.device_state)
        if legal:
            getattr(self.weight, move)(*args)
            return True
        with pytest.raises(IllegalMove):
            getattr(self.weight, move)(*args)
        assert self.layer.weight is seen and states == (self.weight.host_state, self.weight.device_state)
        return False

    @property
    def state(self) -> DeviceState:
        return self.weight.device_state

    def seen(self, expected: torch.Tensor) -> bool:
        return self.layer.weight.data_ptr() == expected.data_ptr()

    @rule()
    def end_load(self) -> None:
        if self.tried(self.state is DeviceState.LOADING, "end_load"):
            assert self.weight.loaded is not None and self.seen(self.weight.loaded) and self.weight.is_loaded

    @rule()
    def begin_load(self) -> None:
        if self.tried(self.state is DeviceState.OFFLOADED, "begin_load", tensor()):
            assert not self.weight.is_loaded

    @rule()
    def load_in_place(self) -> None:
        has_original = self.weight.host is not None
        if self.tried(self.state is DeviceState.OFFLOADED and has_original, "load_in_place"):
            assert self.weight.loaded is self.weight.host

    @rule()
    def patch(self) -> None:
        changed = tensor()
        if self.tried(self.state is DeviceState.LOADED, "patch", changed, PATCHES):
            assert self.seen(changed) and self.weight.applied == PATCHES

    @rule()
    def unpatch(self) -> None:
        original = tensor()
        if self.tried(self.state is DeviceState.PATCHED, "unpatch", original):
            assert self.seen(original) and not self.weight.applied

    @rule()
    def hook(self) -> None:
        below, hooked = self.weight.loaded, tensor()
        if self.tried(self.state in (DeviceState.LOADED, DeviceState.PATCHED), "hook", hooked):
            assert self.seen(hooked) and self.weight.unhooked is below and self.weight.is_hooked

    @rule()
    def unhook(self) -> None:
        below, was_patched = self.weight.unhooked, bool(self.weight.applied)
        if self.tried(self.state is DeviceState.HOOKED, "unhook"):
            assert below is not None and self.seen(below)
            assert self.state is (DeviceState.PATCHED if was_patched else DeviceState.LOADED)

    @rule()
    def stream(self) -> None:
        before, buffer = self.state, tensor()
        seen = self.layer.weight
        if self.tried(before not in (DeviceState.LOADING, DeviceState.STREAMED), "stream", buffer):
            assert self.seen(buffer) and self.weight.is_loaded == (before is not DeviceState.OFFLOADED)
            self.weight.check_integrity()
            self.weight.end_stream()
            assert self.layer.weight is seen and self.state is before

    @rule()
    def begin_stream(self) -> None:
        self.tried(self.state not in (DeviceState.LOADING, DeviceState.STREAMED), "stream", tensor())

    @rule()
    def end_stream(self) -> None:
        self.tried(self.state is DeviceState.STREAMED, "end_stream")

    @rule()
    def offload(self) -> None:
        if self.tried(self.state is not DeviceState.STREAMED, "offload"):
            assert self.state is DeviceState.OFFLOADED and not self.weight.applied
            assert self.layer.weight.is_meta if self.weight.host is None else self.seen(self.weight.host)

    @precondition(lambda self: self.weight.loaded is not self.weight.host or self.weight.host is None)
    @rule(state=st.sampled_from(READABLE))
    def put_host(self, state: HostState) -> None:
        original = tensor()
        if self.tried(
            not self.weight.is_streamed and state in HOST_MOVES[self.weight.host_state], "put_host", original, state
        ):
            assert self.weight.host is original
            assert self.state is not DeviceState.OFFLOADED or self.seen(original)

    @precondition(lambda self: self.weight.loaded is not self.weight.host or self.weight.host is None)
    @rule()
    def forget_host(self) -> None:
        legal = not self.weight.is_streamed and HostState.ABSENT in HOST_MOVES[self.weight.host_state]
        if self.tried(legal, "forget_host"):
            assert self.weight.host is None

    @rule()
    def keep_on_device(self) -> None:
        if self.tried(self.state is DeviceState.LOADED, "keep_on_device"):
            assert self.weight.host is self.weight.loaded and self.weight.host_state is HostState.ON_DEVICE

    @invariant()
    def holds_together(self) -> None:
        self.weight.check_integrity()
        assert self.layer.weight.shape == (3, 2)
        assert self.weight.host_state.takes_ram <= (self.weight.host is not None)


Moves.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
test_random_moves_raise_or_leave_a_weight_whole = Moves.TestCase
