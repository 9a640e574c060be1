"""Settings of the engine, as requested and as resolved for the device that was found.

`EngineSettings` has the flags of the engine's command with ComfyUI's names and defaults. `engine/__main__.py` fills it
in; a library user creates it directly. `ResolvedSettings` has the final decisions: it is created once, when the device
is known. Both are frozen, and code that needs few of their fields receives a slice of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

VramChoice = Literal["auto", "gpu_only", "highvram", "normalvram", "lowvram", "novram"]
CacheStrategy = Literal["classic", "lru", "ram", "none"]
PreviewMethod = Literal["none", "auto", "latent2rgb", "taesd"]
DtypeName = Literal["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Policy for caching results of earlier runs.

    classic: those the running prompt names. lru: the last `lru_size` results. ram: as many as fit while `ram_gb` of
    memory stay free (0: the engine chooses). none: only while a run still needs them.
    """

    strategy: CacheStrategy = "classic"
    lru_size: int = 0
    ram_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class DtypePolicy:
    """Types in which a network computes correctly (`computes`), and defaults without a flag, best first (`prefers`).

    float32 is used where the device computes none of `prefers` at full speed. A flag that names a type takes
    precedence.
    """

    prefers: tuple[DtypeName, ...] = ("float16",)
    computes: tuple[DtypeName, ...] = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, slots=True)
class DtypePolicies:
    """Dtype policies of a family's networks. Text encoders without one compute in float32."""

    unet: DtypePolicy = DtypePolicy()
    vae: DtypePolicy = DtypePolicy(prefers=("bfloat16",))
    text_encoder: DtypePolicy | None = None


@dataclass(frozen=True, slots=True)
class DtypeSettings:
    """Requested computation types; None leaves the choice to the device."""

    force_fp32: bool = False
    force_fp16: bool = False
    unet: DtypeName | None = None
    vae: DtypeName | None = None
    text_encoder: DtypeName | None = None


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Settings of model weights on the device.

    `reserve_vram_gb` None leaves the engine's own margin. `async_offload_streams` 0 means `--disable-async-offload`.
    `simulate_vram_gb` computes on the CPU under the rules of a device with that much memory, to test its behaviour.
    `idle_unload_seconds`: models not marked to be kept leave the device after that time without a prompt; 0 is never.
    """

    vram: VramChoice = "auto"
    reserve_vram_gb: float | None = None
    smart_memory: bool = True
    async_offload_streams: int | None = None
    pinned_memory: bool = True
    cpu_vae: bool = False
    simulate_vram_gb: float | None = None
    idle_unload_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Confinement:
    """Resource limits that the process sets on itself; None is no limit.

    `max_processes` counts processes and threads of this user in this user namespace; `max_file_bytes` applies to each
    file, `max_memory_bytes` to the data of each process.
    """

    max_processes: int | None = None
    max_file_bytes: int | None = None
    max_memory_bytes: int | None = None

    @property
    def is_confined(self) -> bool:
        return any(limit is not None for limit in (self.max_processes, self.max_file_bytes, self.max_memory_bytes))


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All requested settings of one engine. Folders left at None are in `base_directory`, as in ComfyUI.

    `max_input_pixels` limits the pixels in all frames of an image that is read.
    """

    listen: str = "127.0.0.1"
    port: int = 8188
    listen_fd: int | None = None  # an inherited listening socket, in place of `listen` and `port`
    allowed_hosts: tuple[str, ...] = ()  # names beside localhost under which browsers may reach a loopback address
    token_sha256: str | None = None  # of the bearer token that every request must bring
    base_directory: Path = field(default_factory=Path)
    input_directory: Path | None = None
    output_directory: Path | None = None
    temp_directory: Path | None = None
    extra_model_paths_config: tuple[Path, ...] = ()
    cpu: bool = False
    cache: CacheSettings = field(default_factory=CacheSettings)
    dtypes: DtypeSettings = field(default_factory=DtypeSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    embed_metadata: bool = True
    max_upload_mb: float = 100.0
    max_input_pixels: int = 1 << 27
    preview_method: PreviewMethod = "none"
    preview_size_px: int = 512
    animated_previews: bool = False  # of videos, beside the first frame
    front_end: bool = False  # serve ComfyUI's web interface, from `front_end_root` or its package
    front_end_root: Path | None = None
    user_directory: Path | None = None  # what the web interface stores
    disable_all_custom_nodes: bool = False
    whitelist_custom_nodes: tuple[str, ...] = ()
    cors_origin: str | None = None
    tls_keyfile: Path | None = None  # both or neither
    tls_certfile: Path | None = None
    cuda_device: int | None = None  # the only one this process sees
    default_device: int | None = None  # the first of those it sees
    tuning: tuple[str, ...] | None = None  # the strategies that may be used: None those that need no naming, () none
    tuning_directory: Path | None = None  # of compiled code that is kept
    checkpoint_directory: Path | None = None  # of the states of samplings, from which another engine goes on
    checkpoint_seconds: float = 30.0
    max_concurrent_runs: int = 1  # prompts in progress at a time, which share the steps of their sampling
    chooses_runs: bool = False  # the measurement of tuning chooses how many of them are in progress
    max_prompt_nodes: int = 50_000  # 0: no limit, as for the next two
    max_prompt_links: int = 250_000
    max_prompt_bytes: int = 64 * 1024 * 1024
    verbose: LogLevel = "INFO"

    @property
    def base_path(self) -> Path:
        return self.base_directory.expanduser().resolve()

    @property
    def models_path(self) -> Path:
        return self.base_path / "models"

    @property
    def custom_nodes_path(self) -> Path:
        return self.base_path / "custom_nodes"

    @property
    def input_path(self) -> Path:
        return self._folder(self.input_directory, "input")

    @property
    def output_path(self) -> Path:
        return self._folder(self.output_directory, "output")

    @property
    def user_path(self) -> Path:
        return self._folder(self.user_directory, "user")

    @property
    def temp_path(self) -> Path:
        """Folder of temporary files: `temp` in the folder that `--temp-directory` names, as in ComfyUI."""
        if self.temp_directory is None:
            return self.base_path / "temp"
        return self.temp_directory.expanduser().resolve() / "temp"

    def with_absolute_paths(self) -> Self:
        """Return the settings with the paths that are relative to this working directory, for use in another one."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return replace(self, **{name: _absolute(value) for name, value in values.items()})

    def _folder(self, asked: Path | None, default: str) -> Path:
        return self.base_path / default if asked is None else asked.expanduser().resolve()


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Settings resolved for this device. `device` is torch's name (`cpu`, `cuda:0`); types are torch's names too.

    Weights are stored as `unet_dtype`, `text_encoder_dtype` and computed in the types of the `..._compute_dtype`.
    """

    device: str
    vram: Literal["cpu", "gpu_only", "highvram", "normalvram", "lowvram", "novram", "shared"]
    unet_dtype: DtypeName
    vae_dtype: DtypeName
    text_encoder_dtype: DtypeName
    unet_compute_dtype: DtypeName
    text_encoder_compute_dtype: DtypeName


def _absolute(value: Any) -> Any:
    """Return a path, and the paths of a tuple, as absolute ones; any other value as it is."""
    if isinstance(value, tuple):
        return tuple(map(_absolute, value))
    return value.expanduser().absolute() if isinstance(value, Path) else value
