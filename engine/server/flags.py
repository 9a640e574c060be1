"""The flags of `python -m darkroom.engine`: ComfyUI's names and defaults, read into `EngineSettings`.

Flags of ComfyUI that mean nothing here are accepted, so that its command lines work, and named in a warning.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from darkroom.contract.argument_parser import SuggestingParser
from darkroom.contract.concurrency import AUTO, AUTO_CONCURRENT_RUNS, MAX_CONCURRENT_RUNS
from darkroom.contract.quality import read_choice
from darkroom.engine.server.log_records import LogFormat
from darkroom.engine.settings import (
    CacheSettings,
    CacheStrategy,
    Confinement,
    DtypeName,
    DtypeSettings,
    EngineSettings,
    LogLevel,
    MemorySettings,
    PreviewMethod,
    VramChoice,
)

Group = argparse._ArgumentGroup
IGNORED_TITLE = "Accepted for ComfyUI's sake, without effect"
EVERYWHERE = "0.0.0.0,::"
LIMITS = {
    "processes": "processes and threads",
    "file-bytes": "bytes of each file",
    "memory-bytes": "bytes of each process's data",
}
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
UNET_DTYPES: dict[str, DtypeName] = {
    "--fp64-unet": "float64",
    "--fp32-unet": "float32",
    "--fp16-unet": "float16",
    "--bf16-unet": "bfloat16",
    "--fp8_e4m3fn-unet": "float8_e4m3fn",
    "--fp8_e5m2-unet": "float8_e5m2",
}
# Flags of ComfyUI that cannot be obeyed, and why.
REFUSED_SWITCHES = {
    "--fp8_e8m0fnu-unet": (
        "float8_e8m0fnu has neither sign nor fraction and cannot hold weights; "
        "expected --fp8_e4m3fn-unet or --fp8_e5m2-unet"
    ),
}
VAE_DTYPES: dict[str, DtypeName] = {
    "--fp16-vae": "float16",
    "--fp32-vae": "float32",
    "--bf16-vae": "bfloat16",
}
TEXT_DTYPES: dict[str, DtypeName] = {
    "--fp8_e4m3fn-text-enc": "float8_e4m3fn",
    "--fp8_e5m2-text-enc": "float8_e5m2",
    "--fp16-text-enc": "float16",
    "--fp32-text-enc": "float32",
    "--bf16-text-enc": "bfloat16",
}
VRAM_CHOICES: dict[str, tuple[VramChoice, str]] = {
    "--gpu-only": ("gpu_only", "keep and run everything on the device"),
    "--highvram": ("highvram", "keep models on the device after their use"),
    "--normalvram": (
        "normalvram",
        "load models to the device, in part where they do not fit; the default from 2 GiB of free memory",
    ),
    "--lowvram": ("lowvram", "as `--normalvram`, with text encoders on the CPU"),
    "--novram": ("novram", "keep as little as can be on the device at any time"),
}
IGNORED_SWITCHES = (
    "--auto-launch",
    "--disable-auto-launch",
    "--cuda-malloc",
    "--disable-cuda-malloc",
    "--force-channels-last",
    "--use-split-cross-attention",
    "--use-quad-cross-attention",
    "--use-pytorch-cross-attention",
    "--use-sage-attention",
    "--use-flash-attention",
    "--disable-xformers",
    "--dont-upcast-attention",
    "--force-upcast-attention",
    "--supports-fp8-compute",
    "--force-non-blocking",
    "--disable-ipex-optimize",
    "--deterministic",
    "--mmap-torch-files",
    "--disable-mmap",
    "--dont-print-server",
    "--windows-standalone-build",
    "--disable-api-nodes",
    "--multi-user",
    "--log-stdout",
    "--enable-compress-response-body",
)
IGNORED_OPTIONS = (
    "--oneapi-device-selector",
    "--database-url",
    "--front-end-version",
    "--default-hashing-function",
    "--comfy-api-base",
)


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """`liveness_fd` is the read end of the parent's pipe; `ignored` are the flags given that mean nothing here."""

    settings: EngineSettings
    liveness_fd: int | None
    ignored: tuple[str, ...]
    confinement: Confinement
    log_format: LogFormat


def read_flags(arguments: Sequence[str]) -> ServeCommand:
    """Parse the flags; exit with code 2 and a message, as argparse does, for an unknown flag or an invalid value."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    if (given.tls_keyfile is None) != (given.tls_certfile is None):
        parser.error("--tls-keyfile and --tls-certfile belong together")
    limits = Confinement(given.limit_processes, given.limit_file_bytes, given.limit_memory_bytes)
    return ServeCommand(_settings(given), given.liveness_fd, tuple(given.ignored), limits, given.log_format)


def build_parser() -> argparse.ArgumentParser:
    parser = SuggestingParser(
        prog="python -m darkroom.engine", description="The engine alone: ComfyUI's API, no front."
    )
    _add_server_flags(parser.add_argument_group("Server and access"))
    _add_limit_flags(parser.add_argument_group("Limits"))
    _add_folder_flags(parser.add_argument_group("Folders"))
    _add_cache_flags(parser.add_argument_group("Cache of results"))
    _add_device_flags(parser.add_argument_group("Device and model memory"))
    _add_dtype_flags(parser.add_argument_group("Number formats"))
    _add_image_flags(parser.add_argument_group("Images"))
    _add_front_end_flags(parser.add_argument_group("Web interface"))
    _add_custom_node_flags(parser.add_argument_group("Custom nodes"))
    for name in REFUSED_SWITCHES:
        parser.add_argument(name, action=_Refuse, nargs=0, help=argparse.SUPPRESS)
    ignored = parser.add_argument_group(IGNORED_TITLE)
    for name in IGNORED_SWITCHES:
        ignored.add_argument(name, action=_Ignore, nargs=0)
    for name in IGNORED_OPTIONS:
        ignored.add_argument(name, action=_Ignore, nargs=1)
    ignored.add_argument("--fast", action=_Ignore, nargs="*")
    parser.set_defaults(ignored=[])
    return parser


class _Ignore(argparse.Action):
    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        namespace.ignored = [*namespace.ignored, option or self.dest]


class _Refuse(argparse.Action):
    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        parser.error(f"{option}: {REFUSED_SWITCHES[option or self.option_strings[0]]}")


def _add_server_flags(group: Group) -> None:
    group.add_argument(
        "--listen", nargs="?", default="127.0.0.1", const=EVERYWHERE, metavar="IP",
        help="addresses to listen on, by comma; without a value all of them",
    )  # fmt: skip
    group.add_argument("--port", type=_port, default=8188, metavar="N", help="port; 0 takes a free one and logs it")
    group.add_argument(
        "--listen-fd", type=_at_least(0), default=None, metavar="FD",
        help="serve on this inherited listening socket in place of an address",
    )  # fmt: skip
    group.add_argument(
        "--allow-host", nargs="+", action="extend", default=[], metavar="NAME",
        help="accept requests for these host names, beside those of the loopback address",
    )  # fmt: skip
    group.add_argument(
        "--token-sha256", type=_sha256, default=None, metavar="HEX", help="require the bearer token with this hash"
    )
    group.add_argument(
        "--enable-cors-header", nargs="?", default=None, const="*", metavar="ORIGIN",
        help="let in the web pages of this origin; without a value those of all",
    )  # fmt: skip
    for kind, what in (("key", "private key"), ("cert", "certificate")):
        group.add_argument(
            f"--tls-{kind}file", type=Path, default=None, metavar="FILE", help=f"serve https with this {what}"
        )
    group.add_argument(
        "--liveness-fd", type=int, default=None, metavar="FD", help="exit when this inherited pipe closes"
    )
    group.add_argument(
        "--verbose", nargs="?", default="INFO", const="DEBUG", choices=get_args(LogLevel), metavar="LEVEL",
        help=f"lowest level of the log: {', '.join(get_args(LogLevel))}; without a value DEBUG",
    )  # fmt: skip
    group.add_argument(
        "--log-format", default="text", choices=get_args(LogFormat), metavar="FORM",
        help="form of the log: text, or json for one object a record with level, prompt and node",
    )  # fmt: skip


def _add_limit_flags(group: Group) -> None:
    for name, what in LIMITS.items():
        group.add_argument(
            f"--limit-{name}", type=_at_least(1), default=None, metavar="N",
            help=f"most {what}; a limit that the process puts on itself and on what it starts",
        )  # fmt: skip
    group.add_argument(
        "--max-upload-size", type=_at_least(0.0), default=100.0, metavar="MB", help="largest body of a request"
    )
    group.add_argument(
        "--max-concurrent-runs", type=_runs, default=1, metavar="N",
        help="prompts that run at the same time and share the steps of their sampling; auto: measured",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint-directory", type=Path, default=None, metavar="FOLDER",
        help="keep the state of samplings here, so that a prompt whose extra_data names it goes on at the same step",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint-seconds", type=_at_least(0.0), default=30.0, metavar="SECONDS",
        help="time of sampling between two writes of its state",
    )  # fmt: skip
    defaults = EngineSettings()
    for unit in ("nodes", "links", "bytes"):
        limit = getattr(defaults, f"max_prompt_{unit}")
        about = f"most {unit} of a prompt; 0: no limit"
        group.add_argument(f"--max-prompt-{unit}", type=_at_least(0), default=limit, metavar="N", help=about)
    group.add_argument(
        "--max-input-pixels", type=_at_least(1), default=1 << 27, metavar="N",
        help="most pixels in all frames of an image that is read",
    )  # fmt: skip


def _add_folder_flags(group: Group) -> None:
    group.add_argument(
        "--base-directory", type=Path, default=Path(), metavar="FOLDER", help="holds models, input, output and temp"
    )
    for kind in ("input", "output", "temp"):
        group.add_argument(
            f"--{kind}-directory", type=Path, default=None, metavar="FOLDER",
            help=f"in place of `{kind}` in the base directory",
        )  # fmt: skip
    group.add_argument(
        "--extra-model-paths-config", type=Path, nargs="+", action="extend", default=[], metavar="FILE",
        help="further files like `extra_model_paths.yaml`, with more model folders",
    )  # fmt: skip


def _add_cache_flags(group: Group) -> None:
    caches = group.add_mutually_exclusive_group()
    caches.add_argument("--cache-classic", action="store_true", help="keep what the last prompt names; the default")
    caches.add_argument("--cache-lru", type=_at_least(0), default=0, metavar="N", help="keep the last N results")
    caches.add_argument(
        "--cache-ram", type=_at_least(0.0), nargs="?", default=None, const=0.0, metavar="GB",
        help="keep results while so much RAM stays free; without a value the engine chooses",
    )  # fmt: skip
    caches.add_argument("--cache-none", action="store_true", help="keep nothing longer than a run requires it")


def _add_device_flags(group: Group) -> None:
    vram = group.add_mutually_exclusive_group()
    for name, (choice, about) in VRAM_CHOICES.items():
        vram.add_argument(name, dest="vram", action="store_const", const=choice, default="auto", help=about)
    vram.add_argument("--cpu", action="store_true", help="use no GPU")
    group.add_argument("--cuda-device", type=_device_id, default=None, metavar="ID", help="see this GPU alone")
    group.add_argument(
        "--default-device", type=_device_id, default=None, metavar="ID", help="run on this GPU and see the others too"
    )
    group.add_argument(
        "--reserve-vram", type=_at_least(0.0), default=None, metavar="GB", help="device memory to leave to others"
    )
    group.add_argument(
        "--disable-smart-memory", action="store_true", help="unload models to RAM as soon as they are not in use"
    )
    offload = group.add_mutually_exclusive_group()
    offload.add_argument(
        "--async-offload", type=_at_least(0), nargs="?", default=None, const=2, metavar="N",
        help="copy weights to the device beside the computation, on so many streams; without a value 2",
    )  # fmt: skip
    offload.add_argument(
        "--disable-async-offload", dest="async_offload", action="store_const", const=0,
        help="copy weights between computations",
    )  # fmt: skip
    group.add_argument("--disable-pinned-memory", action="store_true", help="keep offloaded weights in pageable memory")
    group.add_argument(
        "--tuning", type=_tuning, default=None, metavar="NAMES",
        help="strategies that may be used once they are measured: auto, off, or names by comma; the default is auto",
    )  # fmt: skip
    group.add_argument(
        "--tuning-directory", type=Path, default=None, metavar="FOLDER", help="keep compiled code of strategies here"
    )
    group.add_argument("--cpu-vae", action="store_true", help="run the VAE on the CPU beside a GPU")
    group.add_argument(
        "--simulate-vram", type=_at_least(0.0), default=None, metavar="GB",
        help="compute on the CPU by the memory rules of a device with so much",
    )  # fmt: skip
    group.add_argument(
        "--unload-when-idle", type=_at_least(0.0), default=0.0, metavar="SECONDS",
        help="time without a prompt after which models leave the device; 0: never",
    )  # fmt: skip


def _add_dtype_flags(group: Group) -> None:
    forced = group.add_mutually_exclusive_group()
    for width in (32, 16):
        forced.add_argument(f"--force-fp{width}", action="store_true", help=f"compute everything in float{width}")
    networks = (("unet", "denoising network", UNET_DTYPES), ("vae", "VAE", VAE_DTYPES),
                ("text_encoder", "text encoders", TEXT_DTYPES))  # fmt: skip
    for kind, network, names in networks:
        exclusive = group.add_mutually_exclusive_group()
        for name, dtype in names.items():
            exclusive.add_argument(
                name, dest=f"{kind}_dtype", action="store_const", const=dtype, default=None,
                help=f"keep the weights of the {network} in {dtype}",
            )  # fmt: skip


def _add_image_flags(group: Group) -> None:
    group.add_argument("--disable-metadata", action="store_true", help="save images without prompt and workflow")
    group.add_argument(
        "--preview-method", choices=get_args(PreviewMethod), default="none", metavar="METHOD",
        help=f"previews of unfinished images: {', '.join(get_args(PreviewMethod))}",
    )  # fmt: skip
    group.add_argument("--preview-size", type=_at_least(1), default=512, metavar="PX", help="longest side of a preview")
    group.add_argument(
        "--animated-previews", action="store_true",
        help="previews of videos have all latent frames, as animated WebP, for clients that read preview metadata",
    )  # fmt: skip


def _add_front_end_flags(group: Group) -> None:
    group.add_argument(
        "--front-end", action="store_true", help="serve ComfyUI's web interface, from the extra `front-end`"
    )
    group.add_argument(
        "--front-end-root", type=Path, default=None, metavar="FOLDER", help="serve the web interface of this folder"
    )
    group.add_argument(
        "--user-directory", type=Path, default=None, metavar="FOLDER",
        help="what the web interface stores, in place of `user` in the base directory",
    )  # fmt: skip


def _add_custom_node_flags(group: Group) -> None:
    group.add_argument("--disable-all-custom-nodes", action="store_true", help="load no custom nodes")
    group.add_argument(
        "--whitelist-custom-nodes", nargs="+", default=[], metavar="NAME", help="load these packs all the same"
    )


def _settings(given: argparse.Namespace) -> EngineSettings:
    return EngineSettings(
        listen=given.listen,
        port=given.port,
        listen_fd=given.listen_fd,
        allowed_hosts=tuple(given.allow_host),
        token_sha256=given.token_sha256,
        base_directory=given.base_directory,
        input_directory=given.input_directory,
        output_directory=given.output_directory,
        temp_directory=given.temp_directory,
        extra_model_paths_config=tuple(given.extra_model_paths_config),
        cpu=given.cpu,
        cache=CacheSettings(_cache_strategy(given), given.cache_lru, given.cache_ram or 0.0),
        dtypes=DtypeSettings(
            given.force_fp32, given.force_fp16, given.unet_dtype, given.vae_dtype, given.text_encoder_dtype
        ),
        memory=MemorySettings(
            vram=given.vram,
            reserve_vram_gb=given.reserve_vram,
            smart_memory=not given.disable_smart_memory,
            async_offload_streams=given.async_offload,
            pinned_memory=not given.disable_pinned_memory,
            cpu_vae=given.cpu_vae,
            simulate_vram_gb=given.simulate_vram,
            idle_unload_seconds=given.unload_when_idle,
        ),
        embed_metadata=not given.disable_metadata,
        max_upload_mb=given.max_upload_size,
        max_concurrent_runs=given.max_concurrent_runs or AUTO_CONCURRENT_RUNS,
        chooses_runs=given.max_concurrent_runs is None,
        max_prompt_nodes=given.max_prompt_nodes,
        max_prompt_links=given.max_prompt_links,
        max_prompt_bytes=given.max_prompt_bytes,
        max_input_pixels=given.max_input_pixels,
        preview_method=given.preview_method,
        preview_size_px=given.preview_size,
        animated_previews=given.animated_previews,
        front_end=given.front_end or given.front_end_root is not None,
        front_end_root=given.front_end_root,
        user_directory=given.user_directory,
        disable_all_custom_nodes=given.disable_all_custom_nodes,
        whitelist_custom_nodes=tuple(given.whitelist_custom_nodes),
        cors_origin=given.enable_cors_header,
        tls_keyfile=given.tls_keyfile,
        tls_certfile=given.tls_certfile,
        cuda_device=given.cuda_device,
        default_device=given.default_device,
        tuning=given.tuning,
        tuning_directory=given.tuning_directory,
        checkpoint_directory=given.checkpoint_directory,
        checkpoint_seconds=given.checkpoint_seconds,
        verbose=given.verbose,
    )


def _cache_strategy(given: argparse.Namespace) -> CacheStrategy:
    if given.cache_none:
        return "none"
    if given.cache_ram is not None:
        return "ram"
    return "lru" if given.cache_lru > 0 else "classic"


def _tuning(text: str) -> tuple[str, ...] | None:
    try:
        return read_choice(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _runs(text: str) -> int | None:
    """Return a number of runs, None for `auto`."""
    if text == AUTO:
        return None
    number = int(text)
    if not 1 <= number <= MAX_CONCURRENT_RUNS:
        raise argparse.ArgumentTypeError(f"{text} is neither auto nor between 1 and {MAX_CONCURRENT_RUNS}")
    return number


def _device_id(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("devices are counted from 0")
    return number


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is not between 0 and 65535")
    return port


def _sha256(text: str) -> str:
    if not SHA256.fullmatch(text):
        raise argparse.ArgumentTypeError("expected 64 hexadecimal digits")
    return text.lower()


def _at_least(low: float) -> Any:
    """Return a parser of numbers from `low`, whole ones where `low` is whole."""

    def number(text: str) -> float:
        value = type(low)(text)
        if not value >= low:
            raise argparse.ArgumentTypeError(f"{text} is less than {low}")
        return value

    return number
