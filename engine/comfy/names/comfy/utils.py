"""`comfy.utils`: progress, resizing, weight files, tiles, and attributes by dotted name."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from darkroom.engine.comfy.missing_symbol import not_supported
from darkroom.engine.comfy.names.comfy.unet_weight_names import (
    TRANSFORMER_BLOCKS,
    UNET_MAP_ATTENTIONS,
    UNET_MAP_BASIC,
    UNET_MAP_RESNET,
)
from darkroom.engine.diffusion.conditions import repeat_to_batch_size
from darkroom.engine.diffusion.nested_latent import packed, shapes_of, unpacked
from darkroom.engine.formats.pickle_file import read_pickle
from darkroom.engine.formats.safetensors_header import read_header
from darkroom.engine.formats.weight_file import is_pickled, open_weights
from darkroom.engine.images import pixels
from darkroom.engine.images.pixels import bislerp, lanczos
from darkroom.engine.nodes.running_call import running_context

__all__ = [
    "TRANSFORMER_BLOCKS",
    "UNET_MAP_ATTENTIONS",
    "UNET_MAP_BASIC",
    "UNET_MAP_RESNET",
    "bislerp",
    "lanczos",
    "repeat_to_batch_size",
]

PROGRESS_BAR_ENABLED = True


class ProgressBar:
    """Progress of the running node. Outside of a node's call it reports nothing."""

    def __init__(self, total: int, node_id: str | None = None) -> None:
        self.total = total
        self.current: float = 0
        self.node_id = node_id
        self._context = running_context()

    def update_absolute(self, value: float, total: int | None = None, preview: object = None) -> None:
        """Report progress. `preview` is `(format, Pillow image, largest side)`."""
        self.total = self.total if total is None else total
        self.current = min(value, self.total)
        context = self._context or running_context()
        if context is None:
            return
        context.report_progress(self.current, self.total)
        if preview is not None and context.report_preview is not None:
            context.report_preview(preview)

    def update(self, value: float) -> None:
        self.update_absolute(self.current + value)


def set_progress_bar_enabled(enabled: bool) -> None:
    """Do nothing: progress goes to clients, there is no terminal bar to turn off."""
    if enabled is False:
        raise not_supported("comfy.utils.set_progress_bar_enabled")


def set_progress_bar_global_hook(function: object) -> None:
    raise not_supported("comfy.utils.set_progress_bar_global_hook")


# --- images and latents -------------------------------------------------------------------------


def common_upscale(samples: torch.Tensor, width: int, height: int, upscale_method: str, crop: str) -> torch.Tensor:
    """Resize [B, C, H, W] (or with more dimensions between C and H)."""
    if samples.ndim <= 4:
        return pixels.resize(samples, width, height, upscale_method, crop)
    batch, channels, *between = samples.shape[:-2]
    flat = samples.movedim(1, -3).reshape(-1, channels, *samples.shape[-2:])
    resized = pixels.resize(flat, width, height, upscale_method, crop)
    return resized.reshape(batch, *between, channels, height, width).movedim(-3, 1)


def resize_to_batch_size(tensor: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Pick items evenly, so that there are `batch_size` of them."""
    count = tensor.shape[0]
    if count == batch_size:
        return tensor
    if batch_size <= 1:
        return tensor[:batch_size]
    scale = (count - 1) / (batch_size - 1) if batch_size < count else count / batch_size
    offset = 0.0 if batch_size < count else 0.5
    index = [min(round((place + offset) * scale - offset), count - 1) for place in range(batch_size)]
    return tensor[torch.tensor(index, device=tensor.device)]


def pack_latents(latents: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[tuple[int, ...]]]:
    """Return the streams of a latent as one tensor [B, 1, N], and their shapes."""
    streams = list(latents)
    return packed(streams), list(shapes_of(streams))


def unpack_latents(combined_latent: torch.Tensor, latent_shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return the streams of one tensor [B, 1, N]; one of a single shape as it is."""
    if len(latent_shapes) < 2:
        return [combined_latent]
    return unpacked(combined_latent, tuple(tuple(shape) for shape in latent_shapes))


def reshape_mask(input_mask: torch.Tensor, output_shape: Sequence[int]) -> torch.Tensor:
    """Return a mask [B, H, W] reshaped for a batch of that shape."""
    planes = input_mask.reshape((-1, 1, *input_mask.shape[-2:]))
    mask = torch.nn.functional.interpolate(planes, size=tuple(output_shape[-2:]), mode="bilinear")
    mask = mask.expand(-1, output_shape[1], -1, -1) if mask.shape[1] < output_shape[1] else mask
    return repeat_to_batch_size(mask, output_shape[0])


# --- tiles ----------------------------------------------------------------------------------------


def get_tiled_scale_steps(width: int, height: int, tile_x: int, tile_y: int, overlap: int) -> int:
    """Return the number of tiles that `tiled_scale` needs for an image."""
    rows = 1 if height <= tile_y else math.ceil((height - overlap) / (tile_y - overlap))
    columns = 1 if width <= tile_x else math.ceil((width - overlap) / (tile_x - overlap))
    return rows * columns


def tiled_scale(
    samples: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    tile_x: int = 64,
    tile_y: int = 64,
    overlap: int = 8,
    upscale_amount: float = 4,
    out_channels: int = 3,
    output_device: object = "cpu",
    pbar: ProgressBar | None = None,
) -> torch.Tensor:
    """Apply `tiled_scale_multidim` to [B, C, H, W]."""
    return tiled_scale_multidim(
        samples, function, (tile_y, tile_x), overlap, upscale_amount, out_channels, output_device, pbar=pbar
    )


@torch.inference_mode()
def tiled_scale_multidim(
    samples: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    tile: Sequence[int] = (64, 64),
    overlap: int | Sequence[int] = 8,
    upscale_amount: float | Sequence[float] = 4,
    out_channels: int = 3,
    output_device: Any = "cpu",
    downscale: bool = False,
    index_formulas: Any = None,
    pbar: ProgressBar | None = None,
) -> torch.Tensor:
    """Apply `function` to overlapping tiles of [B, C, ...] and blend them with weights that fade over the overlap."""
    if index_formulas is not None or callable(upscale_amount) or downscale:
        raise not_supported("comfy.utils.tiled_scale_multidim with formulas, functions or downscale")
    num_dims = len(tile)
    overlaps = [overlap] * num_dims if isinstance(overlap, int) else list(overlap)
    scales = [upscale_amount] * num_dims if isinstance(upscale_amount, (int, float)) else list(upscale_amount)
    sizes = [round(size * scale) for size, scale in zip(samples.shape[2:], scales, strict=True)]
    output = torch.empty((samples.shape[0], out_channels, *sizes), device=output_device)
    for index, item in enumerate(torch.split(samples, 1)):
        total = torch.zeros((1, out_channels, *sizes), device=output_device)
        weights = torch.zeros((1, 1, *sizes), device=output_device)
        starts = [
            _starts(size, *given) for size, given in zip(item.shape[2:], zip(tile, overlaps, strict=True), strict=True)
        ]
        for corner in itertools.product(*starts):
            part, places = item, []
            for dim, (start, side) in enumerate(zip(corner, tile, strict=True)):
                length = min(side, item.shape[dim + 2] - start)
                part = part.narrow(dim + 2, start, length)
                places.append(round(start * scales[dim]))
            made = function(part).to(output_device)
            weight = torch.ones((1, 1, *made.shape[2:]), device=output_device)
            for dim in range(num_dims):
                _feather(weight, dim + 2, round(overlaps[dim] * scales[dim]))
            where = (
                slice(None),
                slice(None),
                *(slice(at, at + size) for at, size in zip(places, made.shape[2:], strict=True)),
            )
            total[where] += made * weight
            weights[where] += weight
            if pbar is not None:
                pbar.update(1)
        output[index : index + 1] = total / weights
    return output


def _starts(size: int, side: int, overlap: int) -> list[int]:
    """Return the start of each tile along one dimension; the last tile is moved back to end with the image."""
    if size <= side:
        return [0]
    return [max(0, min(size - overlap, start)) for start in range(0, size - overlap, side - overlap)]


def _feather(weight: torch.Tensor, dim: int, width: int) -> None:
    """Fade the weight in from both ends of a dimension, in place."""
    if width >= weight.shape[dim]:
        return
    for step in range(width):
        weight.narrow(dim, step, 1).mul_((step + 1) / width)
        weight.narrow(dim, weight.shape[dim] - 1 - step, 1).mul_((step + 1) / width)


# --- weight files ---------------------------------------------------------------------------------


def load_torch_file(
    ckpt: str | Path, safe_load: bool = False, device: Any = None, return_metadata: bool = False
) -> Any:
    """Return weights by name; those of a pickle in its own nesting of dictionaries.

    With `return_metadata` also returns the file's texts (None if it has none).
    """
    path = Path(ckpt)
    if is_pickled(path):
        weights = _moved(_unwrapped(read_pickle(path)), device or "cpu")
        return (weights, None) if return_metadata else weights
    file = open_weights(path)
    weights = {name: file.tensor(name).to(device or "cpu") for name in file.tensors}
    return (weights, dict(file.metadata) or None) if return_metadata else weights


def _unwrapped(content: Any) -> Any:
    """Return the content below `state_dict`, or below the only key, where training programs store weights."""
    inner = content.get("state_dict", next(iter(content.values())) if len(content) == 1 else content)
    return inner if isinstance(inner, dict) or "state_dict" in content else content


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return {key: _moved(item, device) for key, item in value.items()} if isinstance(value, dict) else value


def save_torch_file(
    sd: Mapping[str, torch.Tensor], ckpt: str | Path, metadata: Mapping[str, str] | None = None
) -> None:
    save_file({name: tensor.contiguous() for name, tensor in sd.items()}, str(ckpt), dict(metadata or {}) or None)


def calculate_parameters(sd: Mapping[str, torch.Tensor], prefix: str = "") -> int:
    return sum(tensor.nelement() for name, tensor in sd.items() if name.startswith(prefix))


def weight_dtype(sd: Mapping[str, torch.Tensor], prefix: str = "") -> torch.dtype | None:
    """Return the type that most elements have."""
    counts: dict[torch.dtype, int] = {}
    for name, tensor in sd.items():
        if name.startswith(prefix):
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel()
    return max(counts, key=lambda dtype: counts[dtype]) if counts else None


def state_dict_key_replace(state_dict: dict[str, object], keys_to_replace: Mapping[str, str]) -> dict[str, object]:
    for old, new in keys_to_replace.items():
        if old in state_dict:
            state_dict[new] = state_dict.pop(old)
    return state_dict


def state_dict_prefix_replace(
    state_dict: dict[str, object], replace_prefix: Mapping[str, str], filter_keys: bool = False
) -> dict[str, object]:
    """Replace prefixes of names; `filter_keys` keeps only names that had one of them."""
    out: dict[str, Any] = {} if filter_keys else state_dict
    for old, new in replace_prefix.items():
        for key in [key for key in state_dict if key.startswith(old)]:
            out[new + key[len(old) :]] = state_dict.pop(key)
    return out


def safetensors_header(safetensors_path: str, max_size: int = 100 * 1024 * 1024) -> bytes | None:
    """Return the file's JSON header, or None when it is longer than `max_size`."""
    with open(safetensors_path, "rb") as file:
        return read_header(file, max_size).raw


# --- attributes -----------------------------------------------------------------------------------


def get_attr(obj: Any, attr: str) -> Any:
    for name in attr.split("."):
        obj = getattr(obj, name)
    return obj


def set_attr(obj: object, attr: str, value: object) -> object:
    """Set an attribute by dotted name and return its previous value."""
    path, _, last = attr.rpartition(".")
    owner = get_attr(obj, path) if path else obj
    before = getattr(owner, last)
    setattr(owner, last, value)
    return before


def set_attr_param(obj: object, attr: str, value: torch.Tensor) -> object:
    return set_attr(obj, attr, torch.nn.Parameter(value, requires_grad=False))


def copy_to_param(obj: object, attr: str, value: torch.Tensor) -> None:
    get_attr(obj, attr).data.copy_(value)


def string_to_seed(data: bytes) -> int:
    """Return the CRC-32 of the bytes."""
    return zlib.crc32(data)
