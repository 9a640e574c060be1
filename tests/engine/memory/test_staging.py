"""From files to a simulated device: what arrives, and what RAM and the device give for it meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_source import WeightInFile, source_of
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.simulated_device import SimulatedDevice
from darkroom.engine.memory.staging import MAX_CHUNK_BYTES, max_conversion_bytes, plan_chunks, upload

KIB, MIB = 1 << 10, 1 << 20


def write(folder: Path, tensors: Sequence[torch.Tensor]) -> list[WeightInFile]:
    path = folder / "weights.safetensors"
    write_safetensors(path, {str(index): tensor for index, tensor in enumerate(tensors)})
    file = SafetensorsFile(path)
    return [WeightInFile(file, str(index)) for index in range(len(tensors))]


@given(st.integers(0, 1 << 32))
@example(1)
def test_all_chunks_together_are_below_the_largest_tensor_and_a_fifth(largest_bytes: int) -> None:
    num_chunks, chunk_bytes = plan_chunks(largest_bytes)
    assert num_chunks >= 1 and 1 <= chunk_bytes <= MAX_CHUNK_BYTES
    assert num_chunks * chunk_bytes <= max(1, 1.2 * largest_bytes)
    assert chunk_bytes & (chunk_bytes - 1) == 0, "torch would take more than was asked for"


def test_a_large_model_is_read_by_several_readers_in_large_chunks() -> None:
    assert plan_chunks(76 * MIB) == (5, 16 * MIB)
    assert plan_chunks(29 * MIB) == (5, 4 * MIB)
    assert plan_chunks(100 * KIB) == (1, 64 * KIB)


@pytest.mark.parametrize("pretended_bytes", [40, 1000, 1 << 20])
def test_weights_arrive_in_their_types_and_layouts(tmp_path: Path, pretended_bytes: int) -> None:
    device = SimulatedDevice(1 << 20)
    sources = [torch.randn(7, 5), torch.randn(4, 3, 2, 2).half(), torch.randn(3), torch.arange(100).reshape(10, 10)]
    wanted = [
        sources[0],
        sources[1].contiguous(memory_format=torch.channels_last),
        sources[2].half(),
        sources[3].reshape(10, 10, 1, 1),
    ]
    targets = [device.empty_like(tensor) for tensor in [*wanted, torch.empty(0)]]
    weights = write(tmp_path, [*sources, torch.empty(0)])
    upload(device, zip(targets, weights, strict=True), pretended_bytes)
    assert all(torch.equal(*pair) for pair in zip(targets, wanted, strict=False))
    assert targets[1].is_contiguous(memory_format=torch.channels_last)
    assert device.host_bytes == 0 and device.charged_bytes == sum(target.nbytes for target in targets)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=12),
    st.sampled_from([torch.float16, torch.float32]),
)
def test_loading_takes_no_more_of_ram_and_of_the_device_than_was_said(
    shapes: list[tuple[int, int]], wanted: torch.dtype
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        tensors = {f"{index}.weight": torch.randn(shape).half() for index, shape in enumerate(shapes)}
        write_safetensors(path, tensors)
        with unfilled():
            network = nn.Sequential(*(nn.Linear(inputs, outputs, bias=False) for outputs, inputs in shapes))
        fill(network, SafetensorsFile(path), {name: name for name in tensors}, wanted, to=Destination.DEVICE)
        device = SimulatedDevice(1 << 30)
        weights = ModuleWeights("model", network, device=device, source=source_of(network))
        weights.load()
        largest = max(tensor.nbytes for tensor in tensors.values())
        assert 0 < device.most_host_bytes <= max(1, 1.2 * largest) and device.host_bytes == 0
        assert weights.ram_bytes == 0
        passing = 0 if wanted is torch.float16 else max_conversion_bytes(largest)
        assert device.most_charged_bytes <= weights.size_bytes + passing
        assert all(torch.equal(weights.values.current(name), tensors[name].to(wanted)) for name in tensors)


def test_a_file_that_has_become_shorter_is_named_as_such(tmp_path: Path) -> None:
    (weight,) = write(tmp_path, [torch.randn(1000, 1000)])
    (tmp_path / "weights.safetensors").write_bytes(b"")
    device = SimulatedDevice(1 << 30)
    with pytest.raises(BadModelFile, match="cut off"):
        upload(device, [(device.empty((1000, 1000), torch.float32), weight)], weight.num_bytes)
