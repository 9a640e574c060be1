"""RAM that loading takes in addition to the weights that stay."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_source import WeightInFile, source_of
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.simulated_device import SimulatedDevice
from darkroom.engine.memory.staging import upload
from darkroom.engine.memory.transfer_streams import TransferStreams

STATUS = Path("/proc/self/status")
LIBC = ctypes.CDLL(None)
MIB = 1 << 20
NUM_LAYERS, WIDTH = 24, 1024  # 100 MB as float32, the largest tensor 4 MB

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="needs Linux")


def anonymous_bytes() -> int:
    fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


@contextmanager
def watched() -> Iterator[Callable[[], int]]:
    """Gives, afterwards, the most anonymous and shared memory there was beyond that at the start.

    What earlier tests freed goes back to the system first: the allocator would hand it out again, unseen.
    """
    gc.collect()
    if hasattr(LIBC, "malloc_trim"):  # glibc
        LIBC.malloc_trim(0)
    before, seen, over = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.0005):
            seen.append(anonymous_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: max(seen)
    finally:
        over.set()
        watcher.join()
        seen.append(anonymous_bytes() - before)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "large.safetensors"
    shape = (WIDTH, WIDTH)
    write_safetensors(path, {f"{index}.weight": torch.randn(shape).half() for index in range(NUM_LAYERS)})
    return path


def empty_network(num_layers: int) -> nn.Sequential:
    with unfilled():
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(num_layers)))


def test_on_the_cpu_no_more_than_the_weights_that_stay(path: Path) -> None:
    fill(empty_network(1), SafetensorsFile(path), {"0.weight": "0.weight"}, torch.float32)  # torch's own beginnings
    network = empty_network(NUM_LAYERS)
    with watched() as most:
        fill(network, SafetensorsFile(path), {name: name for name in network.state_dict()}, torch.float32)
    staying = sum(weight.nbytes for weight in network.parameters())
    assert staying == NUM_LAYERS * WIDTH**2 * 4
    assert staying * 0.5 < most() <= staying * 1.15


def test_on_the_way_to_a_device_no_more_than_the_largest_tensor_and_a_fifth(path: Path) -> None:
    file = SafetensorsFile(path)
    device = SimulatedDevice(1 << 30)
    targets = {
        name: device.empty_like(file.tensor(name)).fill_(1) for name in file.tensors
    }  # its memory is there before
    with watched() as most:
        upload(device, [(targets[name], WeightInFile(file, name)) for name in targets], WIDTH**2 * 2)
    assert most() <= 1.2 * WIDTH**2 * 2 + MIB  # the last for the readers' threads
    assert all(torch.equal(target, file.tensor(name)) for name, target in targets.items())


def test_what_is_read_later_is_not_read_when_a_file_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(SafetensorsFile, "_populate", lambda file, place: read.append(place))
    network = empty_network(NUM_LAYERS)
    names = {name: name for name in network.state_dict()}
    fill(network, SafetensorsFile(path), names, torch.float16, to=Destination.DEVICE)
    assert not read and torch.equal(network.state_dict()["0.weight"], SafetensorsFile(path).tensor("0.weight"))
    device = SimulatedDevice(1 << 30)
    weights = ModuleWeights("model", network, device=device, streams=TransferStreams(device), source=source_of(network))
    read.clear()
    weights.load()
    assert not read, "several readers do that"
    for _ in range(2):
        weights.load(0)
        assert len(read) == NUM_LAYERS, "once, as they are brought over from there"
