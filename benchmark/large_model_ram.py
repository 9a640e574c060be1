"""RAM of a machine that a transformer of 14 thousand million float8 weights takes while it computes.

    python -m benchmark.large_model_ram [--evaluations 2] [--folder DIR]

The file of Wan 14B has its real layers and size, 14.3 GB, but no content: its zeros take no space on disk, and as many
pages in RAM as others would. A process of its own loads it as `UNETLoader` does and evaluates it on the CPU. Anonymous
memory is what a machine has to have; pages of the file are read again when they had to leave. The result is printed and
written to benchmark/results/large_model_ram.json. Linux alone.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmark.loading_peak import MIB
from benchmark.machine import describe_cpu
from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.weight_source import source_of
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.load import LoadTypes, load_unet
from darkroom.engine.models.model import Model
from darkroom.engine.models.store import denoiser
from darkroom.engine.settings import EngineSettings

RESULTS = Path(__file__).parent / "results" / "large_model_ram.json"
FAMILY = family_named("wan")
CONFIG = replace(FAMILY.scales["full"].denoiser, width=5120, num_blocks=40, inner_width=13824)
LATENT = (1, 16, 3, 16, 16)  # nine frames of 128 x 128
TEXT = (1, 16, 4096)
LOOK_SECONDS = 0.05


def write_hollow_file(path: Path) -> int:
    """Write a safetensors file of the transformer in float8 whose values are no data on disk; return its bytes."""
    with torch.device("meta"):
        network = FAMILY.denoiser.build(CONFIG)
    header, place = {}, 0
    for name, weight in network.named_parameters():
        end = place + math.prod(weight.shape)
        header[name] = {"dtype": "F8_E4M3", "shape": list(weight.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(len(text) + 8 + place)
    return place


class Watched(threading.Thread):
    """The most that this process has of each kind of memory, looked at all the time until `end`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = {"RssAnon": 0, "RssFile": 0}
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
                name, _, value = line.partition(":")
                if name in self.most:
                    self.most[name] = max(self.most[name], int(value.split()[0]) * 1024)

    def end(self) -> dict[str, int]:
        """Stop looking and return bytes by kind."""
        self._ended.set()
        self.join()
        return self.most


def measure(path: Path, evaluations: int) -> dict[str, object]:
    """Load the file, evaluate it, and return what it took."""
    types = LoadTypes(room_bytes=path.stat().st_size)  # less than they would take in float32: they stay float8
    watched = Watched()
    watched.start()
    loaded = load_unet(path, types)
    network = denoiser(loaded)
    loaded.unet.compute_dtype = network.manual_cast_dtype = loaded.computed
    memory = ModelMemory(EngineSettings(cpu=True))
    model = Model(memory.keep("unet", network, role="unet", source=source_of(loaded.unet)))
    model.set_model_compute_dtype(loaded.computed)
    seconds = []
    with model.in_use(working_bytes=MIB), torch.inference_mode():
        for _ in range(evaluations):
            began = time.monotonic()
            network.apply_model(torch.randn(LATENT), torch.tensor([0.5]), c_crossattn=torch.randn(TEXT))
            seconds.append(round(time.monotonic() - began, 1))
    most = watched.end()
    return {
        "weights_mib": round(model.size / MIB), "anonymous_mib": round(most["RssAnon"] / MIB),
        "file_pages_mib": round(most["RssFile"] / MIB), "evaluation_seconds": seconds,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the RAM of a 14B float8 transformer.")
    parser.add_argument("--evaluations", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="for the file, on a disk that stores holes as such")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        sys.stdout.write(json.dumps(measure(arguments.measure, arguments.evaluations)))
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "hollow.safetensors"
        file_bytes = write_hollow_file(path)
        command = [sys.executable, "-m", "benchmark.large_model_ram", "--measure", str(path)]
        command += ["--evaluations", str(arguments.evaluations)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result = {"machine": describe_cpu(), "file_mib": round(file_bytes / MIB), **json.loads(done.stdout)}
    text = json.dumps(result, indent=2) + "\n"
    RESULTS.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
