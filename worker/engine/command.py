"""How an engine of ours is started: its program, flags, environment. Pure but for reading /proc/cpuinfo."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.engine.client import LocalFolders
from worker.inputs.picture_bounds import MAX_INPUT_PIXELS
from worker.setting_slices import EngineLaunch

PIXELS_FLAG = "--max-input-pixels"
FAST_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "amx_tile"})


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How to start one engine. `arguments` come after the address and the liveness pipe."""

    program: Sequence[str]
    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    port: int = 0  # 0: any free one
    folders: LocalFolders | None = None  # where its files will lie


def engine_command(
    launch: EngineLaunch,
    environment: Mapping[str, str],
    processor_flags: frozenset[str],
    *,
    index: int | None = None,
    any_port: int = 0,
    gpu: str | None = None,
) -> EngineCommand:
    """The command for our own engine, the `index`th of several (None: the only one), which sees only `gpu` if that is
    given. Pure: `processor_flags` are those of /proc/cpuinfo; `any_port` is a free one, taken when none is asked for.

    Several share the input and output folders; each has a folder for its temporary files, which it empties.
    """
    given = list(launch.arguments)
    port = int(_take_option(given, "--port") or 0)
    port = port + (index or 0) if port else any_port
    base = launch.base_directory
    places = {kind: _place_of(given, kind, base) for kind in ("input", "output")}
    temp = _take_option(given, "--temp-directory")
    parent = base if temp is None else Path(temp)
    if index is not None:
        parent = parent / "temp" / str(port)
    flags = ["--base-directory", str(base)]
    for kind, place in places.items():
        flags += [] if place == base / kind else [f"--{kind}-directory", str(place)]
    flags += [] if parent == base else ["--temp-directory", str(parent)]
    if launch.is_cpu and "--cpu" not in given:
        flags.append("--cpu")
    if launch.metadata == "none" and "--disable-metadata" not in given:
        flags.append("--disable-metadata")
    if launch.max_input_pixels != MAX_INPUT_PIXELS and not any(flag.startswith(PIXELS_FLAG) for flag in given):
        flags += [PIXELS_FLAG, str(launch.max_input_pixels)]
    flags += precision_flags(launch.precision, processor_flags, given)
    return EngineCommand(
        program=(sys.executable, "-m", "engine"),
        arguments=(*flags, *given),
        environment={**environment, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})},
        directory=Path(__file__).resolve().parents[2],
        port=port,
        folders=LocalFolders(places["input"], places["output"], parent / "temp"),
    )


def input_folder_of(launch: EngineLaunch) -> Path:
    """Where engines of ours look for their inputs."""
    return _place_of(list(launch.arguments), "input", launch.base_directory)


def _place_of(given: list[str], kind: str, base: Path) -> Path:
    return Path(_take_option(given, f"--{kind}-directory") or base / kind)


def precision_flags(precision: str, processor_flags: frozenset[str], given: Sequence[str]) -> list[str]:
    """`auto` asks for bfloat16 where the processor computes it natively; the engine ignores that on a GPU's behalf."""
    if any(flag.endswith("-unet") or flag.startswith("--force-fp") for flag in given):
        return []
    if precision == "auto":
        return ["--bf16-unet"] if processor_flags & FAST_BFLOAT16_FLAGS else []
    return {"fp32": ["--force-fp32"], "fp16": ["--force-fp16"], "bf16": ["--bf16-unet"]}[precision]


def read_processor_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


def _take_option(arguments: list[str], name: str) -> str | None:
    """Removes `name value` or `name=value` from the list and gives the value."""
    for position, argument in enumerate(arguments):
        if argument == name and position + 1 < len(arguments):
            value = arguments[position + 1]
            del arguments[position : position + 2]
            return value
        if argument.startswith(f"{name}="):
            del arguments[position]
            return argument.partition("=")[2]
    return None
