"""Choice of the way by which a weight that leaves its device comes back: from RAM, or from its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.memory.offload import transfer_speeds
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.offload.transfer_speeds import LEAST_BYTES, TransferSpeeds
from darkroom.engine.memory.offload.weight_state import HostState
from darkroom.engine.memory.simulated_device import SimulatedDevice
from tests.engine.memory.test_ram import SIZE, X, read


@pytest.mark.parametrize(
    ("read_gb_per_s", "copied_gb_per_s", "expected"),
    [(5.0, None, True), (1.0, None, False), (5.0, 20.0, True), (3.0, 20.0, False), (None, None, False)],
)
def test_a_file_is_read_again_where_that_takes_no_longer_than_the_copy_and_the_way_back(
    read_gb_per_s: float | None, copied_gb_per_s: float | None, expected: bool
) -> None:
    speeds = TransferSpeeds()
    if read_gb_per_s is not None:
        speeds.note_read(1_000_000_000, 1 / read_gb_per_s)
    if copied_gb_per_s is not None:
        speeds.note_copied(1_000_000_000, 1 / copied_gb_per_s)
    assert speeds.prefers_file is expected


def test_a_small_transfer_says_nothing() -> None:
    speeds = TransferSpeeds()
    speeds.note_read(LEAST_BYTES - 1, 1e-6)
    assert not speeds.prefers_file


@pytest.mark.parametrize("seconds_of_reading", [1e-6, 1.0])
def test_converted_weights_are_read_again_from_a_fast_file_and_copied_beside_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_of_reading: float
) -> None:
    monkeypatch.setattr(transfer_speeds, "LEAST_BYTES", 1)
    module, source = read(tmp_path, 0, stored=torch.float16, copies=False)
    device = SimulatedDevice(3 * SIZE)
    weights = ModuleWeights("model", module, device=device, source=source)
    clock = iter([0.0, seconds_of_reading, 10.0, 20.0, 30.0, 30.5])
    weights._device_weights._now = lambda: next(clock)
    weights.load()
    first = module(X)
    weights.unload()
    states = {weight.host_state for weight in weights._weights.values()}
    assert states == ({HostState.ABSENT} if seconds_of_reading < 1 else {HostState.IN_RAM})
    assert device.charged_bytes == 0 and weights.ram_bytes == (0 if seconds_of_reading < 1 else SIZE)
    weights.load()
    assert torch.equal(module(X), first)
