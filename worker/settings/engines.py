"""Settings of the engines: their address or start, sandbox and supervision, and the launch derived from them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from darkroom.contract.concurrency import AUTO_CONCURRENT_RUNS, MAX_CONCURRENT_RUNS
from darkroom.worker.settings.child_environment import find_pattern_problem
from darkroom.worker.settings.outputs import Metadata
from darkroom.worker.settings.section import (
    GIB,
    LOWER,
    Addresses,
    CommaList,
    NaturalInt,
    PositiveInt,
    PositiveSeconds,
    Section,
    env,
)


def _check_patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    problems = [problem for pattern in value if (problem := find_pattern_problem(pattern, ()))]
    if problems:
        raise ValueError("; ".join(problems))
    return value


def _split_shell_words(value: object) -> object:
    return tuple(shlex.split(value)) if isinstance(value, str) else value


class EngineSettings(Section):
    """Engines to use. `urls` empty: start our own as child processes."""

    urls: Annotated[Addresses, env("ENGINE_URL", "COMFYUI_BACKENDS", "COMFYUI_API_BASE")] = ()
    """One ComfyUI server or a comma list of them, instead of an engine of our own."""

    arguments: Annotated[tuple[str, ...], BeforeValidator(_split_shell_words), env("ENGINE_ARGS")] = ()
    """Flags for our engine, as in a shell. With `--port` or `--listen` it listens on a port, with a token, instead of a
    Unix socket ([engines](engines.md#address))."""

    environment_names: Annotated[CommaList[str], AfterValidator(_check_patterns), env("ENGINE_ENVIRONMENT")] = ()
    """Comma list of further environment variables that our engine and its node packs get, `NAME*` for all that begin
    so. Without it they get what PyTorch, CUDA and Python need, and no setting or secret
    ([engines](engines.md#environment))."""

    has_front_end: Annotated[bool, env("FRONT_END")] = False
    """Serve ComfyUI's web interface of the first engine at `/comfy/`, to operators alone
    ([front end](interfaces.md#behind-the-workers-keys))."""

    precision: Annotated[Literal["auto", "fp32", "fp16", "bf16"], LOWER, env("PRECISION")] = "auto"
    """`auto`, `fp32`, `fp16` or `bf16`. `auto` leaves it to the engine, but chooses bfloat16 on a CPU that has it in
    hardware."""

    is_cpu: Annotated[bool, env("CPU")] = False
    """Run the engine on the CPU even if there is a GPU."""

    count: Annotated[Annotated[int, Field(gt=0, le=64)] | Literal["auto"], LOWER, env("ENGINES")] = "auto"
    """Number of engines of our own; `auto`: one for each GPU ([engines](engines.md))."""

    max_concurrent_runs: Annotated[
        Annotated[int, Field(gt=0, le=MAX_CONCURRENT_RUNS)] | Literal["auto"], LOWER, env("MAX_CONCURRENT_RUNS")
    ] = 1
    """Requests that an engine of our own runs at the same time, up to 16. Their sampling steps run in one batch where
    that is faster. `auto`: as many as the start-up benchmark finds to be fastest, up to 8
    ([performance](performance.md#several-requests-in-one-batch))."""


class SandboxConfig(Section):
    """Isolation of the engine's node packs from the rest of the machine. None: no such limit.

    `user` is a name, UID or UID:GID, used where the front is root. `readable` are folders beside the engine's own.
    """

    level: Annotated[Literal["off", "user", "bwrap"], LOWER, env("ENGINE_SANDBOX")] = "off"
    """Isolation of node packs: `off`, they reach what the worker's user may; `user`, the engine runs as a user of its
    own (the worker as root); `bwrap`, read-only files, no network, no other processes, by bubblewrap
    ([sandbox](security.md#sandbox)). `user:NAME` and `bwrap:NAME` name the engine's user, also as `UID:GID`."""

    user: Annotated[str, env("ENGINE_USER", part_of="ENGINE_SANDBOX")] = "10002"
    """The user alone, where the worker runs as root."""

    readable: Annotated[CommaList[Annotated[Path, AfterValidator(Path.absolute)]], env("ENGINE_SANDBOX_PATHS")] = ()
    """Comma list of further folders that a sandboxed engine may read, for models stored elsewhere."""

    max_processes: PositiveInt = 2048
    """Processes and threads of a sandboxed engine: far above what node packs start, far below what ends a machine."""

    max_file_bytes: PositiveInt = 16 * GIB
    """The largest file that a sandboxed engine may write: hours of video."""

    max_memory_bytes: PositiveInt | None = None
    """Private memory of each process of a sandboxed engine. None: all memory where there is no GPU, else no limit, as
    a driver maps more than there is."""

    @model_validator(mode="before")
    @classmethod
    def _take_user_out(cls, given: object) -> object:
        """Move the user from `LEVEL:USER` to the field of users, unless that is set."""
        if not isinstance(given, dict) or not isinstance(given.get("ENGINE_SANDBOX"), str):
            return given
        level, sign, user = given["ENGINE_SANDBOX"].partition(":")
        if not sign:
            return given
        return {"ENGINE_USER": user.strip(), **given, "ENGINE_SANDBOX": level}


class SupervisionConfig(Section):
    """Thresholds at which an engine counts as hung or too large, and the number of restarts.

    `soft_limit_bytes` None: a share of the memory of the machine or the container; 0: no limit.
    """

    stall_seconds: Annotated[PositiveSeconds, env("STALL_TIMEOUT")] = 600.0
    """Seconds a node may run without reporting any progress; then the engine is replaced."""

    silence_seconds: PositiveSeconds = 120.0
    """Seconds without any reply of the engine's server; then it is replaced. Code that holds the interpreter's lock,
    such as reading a large file, keeps it silent for less than that."""

    cancel_grace_seconds: PositiveSeconds = 15.0
    """Seconds a prompt may go on after its job was cancelled or timed out, or three times its longest gap between two
    progress reports where that is longer; then the engine is replaced."""

    max_restarts: NaturalInt = 10
    """Restarts of an engine within ten minutes, failed starts and its own losses counted apart; one more
    and it is not restarted again. Losses that jobs cause do not count."""

    soft_limit_bytes: Annotated[NaturalInt | None, env("MEMORY_SOFT_LIMIT_BYTES")] = None
    """Memory of front and engines over which an engine frees memory, or is replaced, between jobs; 0: no limit, empty:
    85 % of the container's or the machine's."""


class EngineLaunch(EngineSettings):
    """Engines to use, with the settings of other sections that their start depends on.

    `private_directory` is the front's own, for sockets and the token; None: a temporary one. `hidden` are files and
    folders of the front's secrets. `tuning` is TUNING, `compiled_directory` where compiled code of an engine outside of
    the sandbox is kept. `checkpoint_directory` None: engines record nothing.
    """

    base_directory: Path
    metadata: Metadata
    max_input_pixels: int = 1 << 27
    private_directory: Path | None = None
    tuning: str = "auto"
    compiled_directory: Path | None = None
    checkpoint_directory: Path | None = None
    checkpoint_seconds: float = 0.0
    sandbox: SandboxConfig = SandboxConfig()
    hidden: tuple[Path, ...] = ()
    log_level: str = ""

    @property
    def runs_at_once(self) -> int:
        """Largest number of prompts that an engine of our own runs at the same time; 1 for foreign engines."""
        if self.urls:
            return 1
        return AUTO_CONCURRENT_RUNS if self.max_concurrent_runs == "auto" else self.max_concurrent_runs

    @property
    def num_engines(self) -> int | None:
        """Number of engines of our own; None: one for each GPU."""
        return None if self.count == "auto" else self.count
