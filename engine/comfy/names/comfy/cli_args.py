"""`comfy.cli_args`: the command-line flags for packs."""

from __future__ import annotations

from enum import Enum

from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.missing_symbol import not_supported
from darkroom.engine.settings import EngineSettings


class LatentPreviewMethod(Enum):
    NoPreviews = "none"
    Auto = "auto"
    Latent2RGB = "latent2rgb"
    TAESD = "taesd"


OFF = frozenset(
    [
        "auto_launch",
        "cuda_malloc",
        "disable_cuda_malloc",
        "directml",
        "force_channels_last",
        "use_split_cross_attention",
        "use_quad_cross_attention",
        "use_sage_attention",
        "use_flash_attention",
        "disable_xformers",
        "force_upcast_attention",
        "dont_upcast_attention",
        "force_non_blocking",
        "deterministic",
        "mmap_torch_files",
        "disable_mmap",
        "dont_print_server",
        "quick_test_for_ci",
        "windows_standalone_build",
        "disable_api_nodes",
        "multi_user",
        "log_stdout",
        "enable_compress_response_body",
        "supports_fp8_compute",
        "disable_ipex_optimize",
    ]
)
NOT_GIVEN = frozenset(["oneapi_device_selector", "user_directory"])


class _Arguments:
    """ComfyUI's flags with the engine's values.

    Flags that the engine ignores are off. Packs may change the preview kind.
    """

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in OFF:
            return False
        if name == "fast":
            return set()  # of ComfyUI's faster and less exact ways none is on
        if name in NOT_GIVEN:
            return None
        engine = HOST.get().engine
        values = {**flags(engine.settings), "preview_method": LatentPreviewMethod(engine.previews.method)}
        if name not in values:
            raise not_supported(f"comfy.cli_args.args.{name}")
        return values[name]

    def __setattr__(self, name: str, value: object) -> None:
        if name != "preview_method":
            raise not_supported(f"setting comfy.cli_args.args.{name}")
        HOST.get().engine.previews.method = LatentPreviewMethod(value).value


def flags(settings: EngineSettings) -> ValueDict:
    """Return the engine's settings under ComfyUI's flag names."""
    memory, dtypes = settings.memory, settings.dtypes
    vram = ("gpu_only", "highvram", "normalvram", "lowvram", "novram")
    return {
        "listen": settings.listen,
        "port": settings.port,
        "enable_cors_header": settings.cors_origin,
        "max_upload_size": settings.max_upload_mb,
        "base_directory": str(settings.base_path),
        "input_directory": None if settings.input_directory is None else str(settings.input_path),
        "output_directory": None if settings.output_directory is None else str(settings.output_path),
        "temp_directory": None if settings.temp_directory is None else str(settings.temp_path),
        "cpu": settings.cpu,
        "cuda_device": settings.cuda_device,
        "default_device": settings.default_device,
        "tls_keyfile": None if settings.tls_keyfile is None else str(settings.tls_keyfile),
        "tls_certfile": None if settings.tls_certfile is None else str(settings.tls_certfile),
        "cpu_vae": memory.cpu_vae,
        "reserve_vram": memory.reserve_vram_gb,
        "disable_smart_memory": not memory.smart_memory,
        "async_offload": bool(memory.async_offload_streams),
        **{name: memory.vram == name for name in vram},
        "force_fp32": dtypes.force_fp32,
        "force_fp16": dtypes.force_fp16,
        **{f"{short}_unet": dtypes.unet == name for short, name in DTYPES.items()},
        **{f"{short}_vae": dtypes.vae == name for short, name in DTYPES.items()},
        **{f"{short}_text_enc": dtypes.text_encoder == name for short, name in DTYPES.items()},
        "use_pytorch_cross_attention": True,
        "cache_lru": settings.cache.lru_size,
        "cache_none": settings.cache.strategy == "none",
        "cache_classic": settings.cache.strategy == "classic",
        "disable_metadata": not settings.embed_metadata,
        "preview_size": settings.preview_size_px,
        "disable_all_custom_nodes": settings.disable_all_custom_nodes,
        "whitelist_custom_nodes": list(settings.whitelist_custom_nodes),
        "verbose": settings.verbose,
    }


DTYPES = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
args = _Arguments()
