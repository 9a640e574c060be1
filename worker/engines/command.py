"""Command that starts an engine of ours: its program, flags and environment. Pure.

The engine listens on a Unix socket that the front creates, unless the operator's flags name a port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from darkroom.start import command_of
from darkroom.worker.engines.client.files import LocalFolders
from darkroom.worker.engines.sandbox import EngineUser, Sandbox, SandboxPaths
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.media.image_bounds import MAX_INPUT_PIXELS
from darkroom.worker.settings.engines import EngineLaunch, SandboxConfig

PACKAGE = Path(__file__).parents[2]
"""`darkroom`, with links to its rooms in a checkout."""

PROJECT = Path(__file__).resolve().parents[2]
RUNS_FLAG = "--max-concurrent-runs"
PIXELS_FLAG = "--max-input-pixels"
DEFAULT_PORT = 8188
EVERYWHERE = "0.0.0.0,::"
LOOPBACK = "127.0.0.1"
FAST_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "amx_tile"})


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """Command to start one engine. `arguments` come after the address and the liveness pipe.

    `listen` is the operator's addresses, separated by commas; empty: the engine gets a Unix socket,
    `socket_directory/NAME.sock`. `port` 0 beside addresses: any free one.
    """

    program: Sequence[str]
    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    listen: str = ""
    port: int = 0
    folders: LocalFolders | None = None  # where its files will lie
    name: str = "engine-0"
    socket_directory: Path | None = None  # None: a private temporary folder
    sandbox: Sandbox | None = None

    @property
    def connect_host(self) -> str:
        """Address among `listen` that the front connects to."""
        first = self.listen.split(",")[0].strip()
        return {"0.0.0.0": LOOPBACK, "::": "::1", "": LOOPBACK}.get(first, first)


def engine_command(
    launch: EngineLaunch,
    environment: Mapping[str, str],
    processor_flags: frozenset[str],
    *,
    index: int | None = None,
    temp_name: str = "",
    gpu: str | None = None,
    user: EngineUser | None = None,
) -> EngineCommand:
    """Return the command for our own engine, the `index`th of several (None: the only one). Pure.

    The engine sees only `gpu` if that is given. `processor_flags` are those of /proc/cpuinfo. Several engines share the
    input and output folders; each has a folder `temp/temp_name` for its temporary files, which it empties.
    """
    given = list(launch.arguments)
    listen, port = _take_address(given)
    port = port + (index or 0) if port else 0
    base = launch.base_directory
    places = {kind: _place_of(given, kind, base) for kind in ("input", "output")}
    temp = _take_option(given, "--temp-directory")
    parent = base if temp is None else Path(temp)
    is_sandboxed = launch.sandbox.level != "off"
    if is_sandboxed and index is None:
        index, temp_name = 0, "engine-0"  # it may not remove and make a folder in the base directory
    if index is not None:
        parent = parent / "temp" / (temp_name or f"engine-{index}")
    flags = ["--base-directory", str(base)]
    for kind, place in places.items():
        flags += [] if place == base / kind else [f"--{kind}-directory", str(place)]
    flags += [] if parent == base else ["--temp-directory", str(parent)]
    if launch.is_cpu and "--cpu" not in given:
        flags.append("--cpu")
    if launch.has_front_end and "--front-end" not in given:
        flags.append("--front-end")
    if launch.metadata == "none" and "--disable-metadata" not in given:
        flags.append("--disable-metadata")
    if launch.max_input_pixels != MAX_INPUT_PIXELS and not any(flag.startswith(PIXELS_FLAG) for flag in given):
        flags += [PIXELS_FLAG, str(launch.max_input_pixels)]
    flags += log_flags(launch.log_level, given)
    flags += precision_flags(launch.precision, processor_flags, given)
    flags += limit_flags(launch.sandbox) if is_sandboxed else []
    flags += tuning_flags(launch, given)
    flags += checkpoint_flags(launch, given)
    if launch.runs_at_once > 1 and not any(flag.startswith(RUNS_FLAG) for flag in given):
        flags += [RUNS_FLAG, str(launch.max_concurrent_runs)]
    return EngineCommand(
        program=command_of("darkroom.engine"),
        arguments=(*flags, *given),
        environment={**environment, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})},
        directory=PROJECT,
        listen=listen,
        port=port,
        name=f"engine-{index or 0}",
        socket_directory=launch.private_directory,
        folders=LocalFolders(places["input"], places["output"], parent / "temp"),
        sandbox=_sandbox(launch, user, places, parent, given) if is_sandboxed else None,
    )


def log_flags(level: str, given: Sequence[str]) -> list[str]:
    """Return the flags for structured records of at least this level; empty: the engine's own default."""
    flags = [] if any(flag.startswith("--log-format") for flag in given) else ["--log-format", "json"]
    if level and not any(flag.startswith("--verbose") for flag in given):
        flags += ["--verbose", level.upper()]
    return flags


def tuning_flags(launch: EngineLaunch, given: Sequence[str]) -> list[str]:
    """Return the flags for TUNING. A sandboxed engine has no folder that outlives it, and compiles anew."""
    if any(flag.startswith("--tuning") for flag in given):
        return []
    flags = [] if launch.tuning == "auto" else ["--tuning", launch.tuning]
    if launch.compiled_directory is not None and launch.tuning != "off" and launch.sandbox.level == "off":
        flags += ["--tuning-directory", str(launch.compiled_directory)]
    return flags


def checkpoint_flags(launch: EngineLaunch, given: Sequence[str]) -> list[str]:
    if launch.checkpoint_directory is None or any(flag.startswith("--checkpoint-") for flag in given):
        return []
    seconds = f"{launch.checkpoint_seconds:g}"
    return ["--checkpoint-directory", str(launch.checkpoint_directory), "--checkpoint-seconds", seconds]


def limit_flags(config: SandboxConfig) -> list[str]:
    limits = {
        "processes": config.max_processes,
        "file-bytes": config.max_file_bytes,
        "memory-bytes": config.max_memory_bytes,
    }
    return [part for name, limit in limits.items() if limit for part in (f"--limit-{name}", str(limit))]


def _sandbox(
    launch: EngineLaunch, user: EngineUser | None, places: Mapping[str, Path], temp: Path, given: Sequence[str]
) -> Sandbox:
    base, config = launch.base_directory, launch.sandbox
    named = [Path(flag) for flag in given if flag.startswith("/")]  # such as --extra-model-paths-config
    checkpoints = () if launch.checkpoint_directory is None else (launch.checkpoint_directory,)
    own = (base / "models", base / "custom_nodes", base / "extra_model_paths.yaml")
    return Sandbox(
        config.level,
        user,
        SandboxPaths(
            package=PACKAGE,
            home=temp / "home",
            input=places["input"],
            readable=(*own, *named, *config.readable),
            writable=(places["output"], temp, *checkpoints),
            hidden=launch.hidden,
        ),
    )


def input_folder_of(launch: EngineLaunch) -> Path:
    """Return the folder in which engines of ours look for their inputs."""
    return _place_of(list(launch.arguments), "input", launch.base_directory)


def _take_address(given: list[str]) -> tuple[str, int]:
    """Remove `--listen` and `--port` from the flags and return them; ("", 0) where neither is there.

    Raises SettingsInvalid.
    """
    has_listen = any(flag == "--listen" or flag.startswith("--listen=") for flag in given)
    for position, flag in enumerate(given):  # without a value it means every address
        if flag == "--listen" and (position + 1 == len(given) or given[position + 1].startswith("-")):
            given[position] = f"--listen={EVERYWHERE}"
    listen, port = _take_option(given, "--listen"), _take_option(given, "--port")
    if port is not None and not (port.isdecimal() and int(port) <= 65535):
        raise SettingsInvalid(f"ENGINE_ARGS: --port is no port; got {port!r}, expected 0 to 65535")
    if not has_listen:
        return (LOOPBACK, int(port)) if port is not None else ("", 0)
    return listen or EVERYWHERE, DEFAULT_PORT if port is None else int(port)


def _place_of(given: list[str], kind: str, base: Path) -> Path:
    return Path(_take_option(given, f"--{kind}-directory") or base / kind)


def precision_flags(precision: str, processor_flags: frozenset[str], given: Sequence[str]) -> list[str]:
    """Return the flags for a precision.

    `auto` requests bfloat16 where the processor computes it natively; an engine with a GPU ignores that.
    """
    if any(flag.endswith("-unet") or flag.startswith("--force-fp") for flag in given):
        return []
    if precision == "auto":
        return ["--bf16-unet"] if processor_flags & FAST_BFLOAT16_FLAGS else []
    return {"fp32": ["--force-fp32"], "fp16": ["--force-fp16"], "bf16": ["--bf16-unet"]}[precision]


def _take_option(arguments: list[str], name: str) -> str | None:
    """Remove `name value` or `name=value` from the list and return the value."""
    for position, argument in enumerate(arguments):
        if argument == name and position + 1 < len(arguments):
            value = arguments[position + 1]
            del arguments[position : position + 2]
            return value
        if argument.startswith(f"{name}="):
            del arguments[position]
            return argument.partition("=")[2]
    return None
