"""Bytes that models of quantised files hold, beside the bytes of their files, and the most that a step of them takes.

    python -m benchmark.quantised_files [--width 512]

A transformer's linear layers of that width are written in each form: float16 first, float8 plain and scaled, GGUF Q8_0
and Q4_K, NF4. Each file is filled into a network for the CPU and for simulated cards that have room for all of it and
for a quarter, in a process of its own. What is measured: the bytes of the weights as they are held, anonymous memory
that the process took for loading and computing (what is mapped from the file does not count: it leaves when memory is
short), the most that the card was charged, buffers included, and whether results are the same bits on all of them. The
result is printed and written to benchmark/results/quantised_files.json.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from benchmark.machine import describe_cpu
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.quantised.open_model import open_model
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.weight_source import source_of
from darkroom.engine.memory.model_pool import ModelPool
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.plan import Limits
from darkroom.engine.memory.simulated_device import SimulatedDevice
from darkroom.engine.memory.state import VramState
from darkroom.engine.memory.transfer_streams import TransferStreams

RESULTS = Path(__file__).parent / "results" / "quantised_files.json"
STATUS = Path("/proc/self/status")
NUM_LAYERS, GROWTH, NUM_TOKENS = 96, 4, 8
FLOAT8 = (torch.float8_e4m3fn,)
CARDS: Mapping[str, float] = {"card": 4.0, "small card": 0.25}  # memory in sizes of the weights held
NF4 = (
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302,
    0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
# Types of GGUF: number, values and bytes of a block, and where its scales are, for values of deviation one.
BLOCKS: Mapping[str, tuple[int, int, int, Mapping[int, float]]] = {
    "Q8_0": (8, 32, 34, {0: 1 / 74}),
    "Q4_K": (12, 256, 144, {0: 1 / 230, 2: 7.5 / 230}),
}


def layers(width: int) -> nn.Sequential:
    """Return pairs of linear layers as those behind a transformer's attention, without values."""
    with torch.device("meta"):
        pairs = [(nn.Linear(width, GROWTH * width), nn.Linear(GROWTH * width, width)) for _ in range(NUM_LAYERS // 2)]
        return nn.Sequential(*(layer for pair in pairs for layer in pair))


def drawn(width: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    found = {}
    for name, weight in layers(width).named_parameters():
        deviation = weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.02
        found[name] = (torch.randn(weight.shape) * deviation).half()
    return found


# --- forms of files --------------------------------------------------------------------------------------------------


def write_float16(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    write_safetensors(path, tensors)


def write_float8(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    write_safetensors(path, {name: tensor.to(torch.float8_e4m3fn) for name, tensor in tensors.items()})


def write_scaled(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    found = {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    for name, tensor in tensors.items():
        scale = tensor.float().abs().max() / 448 if tensor.ndim > 1 else torch.ones(())
        found[name] = (tensor.float() / scale).to(torch.float8_e4m3fn)
        if tensor.ndim > 1:
            found[name.removesuffix("weight") + "scale_weight"] = scale.reshape(1)
    write_safetensors(path, found)


def write_four_bits(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    found = {}
    numbers = torch.tensor(NF4)
    for name, tensor in tensors.items():
        if tensor.ndim < 2:
            found[name] = tensor
            continue
        blocks = tensor.float().reshape(-1, 64)
        largest = blocks.abs().amax(1)
        codes = torch.bucketize((blocks / largest[:, None]).flatten(), (numbers[1:] + numbers[:-1]) / 2)
        found[name] = (codes[::2] << 4 | codes[1::2]).to(torch.uint8).unsqueeze(1)
        state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": list(tensor.shape)}
        found[f"{name}.absmax"], found[f"{name}.quant_map"] = largest, numbers
        content = bytearray(json.dumps(state).encode())
        found[f"{name}.quant_state.bitsandbytes__nf4"] = torch.frombuffer(content, dtype=torch.uint8)
    write_safetensors(path, found)


def write_blocks(kind: str) -> Callable[[Path, Mapping[str, torch.Tensor]], None]:
    """Return a writer of GGUF files with random blocks, of the deviation of the weights and without a mean."""
    number, num_values, num_bytes, scales = BLOCKS[kind]

    def content(tensor: torch.Tensor) -> bytes:
        if tensor.ndim < 2:
            return tensor.float().numpy().tobytes()
        blocks = torch.randint(256, (tensor.numel() // num_values, num_bytes), dtype=torch.uint8)
        for place, scale in scales.items():
            scaled = torch.tensor([scale * tensor.float().std()], dtype=torch.float16)
            blocks[:, place : place + 2] = scaled.view(torch.uint8)
        return blocks.numpy().tobytes()

    def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        head, contents, position = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0), [], 0
        for name, tensor in tensors.items():
            data = content(tensor)
            text, shape = name.encode(), tensor.shape[::-1]
            head += struct.pack("<Q", len(text)) + text + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
            head += struct.pack("<IQ", number if tensor.ndim > 1 else 0, position)
            contents.append(data + bytes(-len(data) % 32))
            position += len(contents[-1])
        path.write_bytes(b"".join([head + bytes(-len(head) % 32), *contents]))

    return write


FORMS: Mapping[str, tuple[str, Callable[[Path, Mapping[str, torch.Tensor]], None]]] = {
    "float16": ("safetensors", write_float16),
    "float8": ("safetensors", write_float8),
    "scaled float8": ("safetensors", write_scaled),
    "GGUF Q8_0": ("gguf", write_blocks("Q8_0")),
    "GGUF Q4_K": ("gguf", write_blocks("Q4_K")),
    "NF4": ("safetensors", write_four_bits),
}


# --- measures, in a process of their own -----------------------------------------------------------------------------


def anonymous_bytes() -> int:
    fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def filled(path: Path, width: int, to: Destination) -> nn.Sequential:
    network = layers(width)
    names = {name: name for name, _ in network.named_parameters()}
    fill(network, open_model(path), names, torch.float16, to=to, keep=FLOAT8)
    return network


def computed(weights: ModuleWeights, pool: ModelPool, width: int) -> torch.Tensor:
    x = torch.linspace(-1, 1, NUM_TOKENS * width, dtype=torch.float32).reshape(NUM_TOKENS, width)
    with pool.add(weights, "unet").in_use() as network, torch.inference_mode():
        for layer in network:
            x = layer(x).clamp(-2, 2)
    return x


def measure(path: Path, width: int) -> dict[str, object]:
    """Return the figures of one file."""
    computed_on, cards = {}, {}
    before = anonymous_bytes()
    network = filled(path, width, Destination.RAM)
    size = sum(weight.nbytes for weight in (*network.parameters(), *network.buffers()))
    pool = ModelPool(VramState.DISABLED, limits=Limits(0, 0))
    weights = ModuleWeights("cpu", network, source=source_of(network), compute_dtype=torch.float32)
    computed_on["cpu"] = computed(weights, pool, width)
    anonymous = anonymous_bytes() - before
    for label, share in CARDS.items():
        network = filled(path, width, Destination.SIMULATED_DEVICE)
        largest = GROWTH * width * width
        device = SimulatedDevice(int(share * size) + 40 * largest)
        weights = ModuleWeights(
            label, network, device=device, streams=TransferStreams(device), source=source_of(network),
            compute_dtype=torch.float32,
        )  # fmt: skip
        pool = ModelPool(VramState.NORMAL_VRAM, limits=Limits(0, 0))
        computed_on[label] = computed(weights, pool, width)
        cards[label] = {"loaded_bytes": weights.loaded_bytes, "most_charged_bytes": device.most_charged_bytes}
    first = computed_on["cpu"]
    return {
        "file_bytes": path.stat().st_size,
        "held_bytes": size,
        "anonymous_bytes_on_cpu": anonymous,
        "cards": cards,
        "same_bits_everywhere": all(torch.equal(first, other) for other in computed_on.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the memory that models of quantised files hold.")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure one file and print its figures")
    arguments = parser.parse_args()
    if arguments.measure is not None:
        sys.stdout.write(json.dumps(measure(arguments.measure, arguments.width)))
        return
    found: dict[str, object] = {}
    tensors = drawn(arguments.width)
    with tempfile.TemporaryDirectory() as folder:
        for form, (ending, write) in FORMS.items():
            path = Path(folder) / f"model.{ending}"
            write(path, tensors)
            command = [sys.executable, "-m", "benchmark.quantised_files", "--width", str(arguments.width)]
            command += ["--measure", str(path)]
            found[form] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            path.unlink()
    num_values = sum(tensor.numel() for tensor in tensors.values())
    result = {"cpu": describe_cpu(), "torch": torch.__version__, "values": num_values, "forms": found}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
