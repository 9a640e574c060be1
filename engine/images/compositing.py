"""One image over another: pasting through a mask, and the operators of Porter and Duff.

`B` batch, `C` channels, `H W` pixels or latent cells.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

PORTER_DUFF_MODES = (
    "ADD", "CLEAR", "DARKEN", "DST", "DST_ATOP", "DST_IN", "DST_OUT", "DST_OVER", "LIGHTEN", "MULTIPLY", "OVERLAY",
    "SCREEN", "SRC", "SRC_ATOP", "SRC_IN", "SRC_OUT", "SRC_OVER", "XOR",
)  # fmt: skip


def repeated(items: torch.Tensor, count: int) -> torch.Tensor:
    """Cut, or repeated from the start, to `count` items along the first dimension."""
    times = math.ceil(count / items.shape[0])
    return items.repeat(times, *[1] * (items.ndim - 1))[:count] if times > 1 else items[:count]


def with_last_repeated(items: torch.Tensor, count: int) -> torch.Tensor:
    """Grow to `count` items along the first dimension by repeating the last one."""
    return torch.cat((items, items[-1:].expand(count - items.shape[0], *items.shape[1:])))


def same_channels(destination: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Match two images [B, H, W, C] in the destination's channels: the source loses alpha or gains an opaque one."""
    missing = destination.shape[-1] - source.shape[-1]
    return destination, F.pad(source, (0, missing), value=1.0) if missing > 0 else source[..., : destination.shape[-1]]


def resize_mask(mask: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Resize a mask bilinearly: [..., H, W] -> [B, height, width]."""
    planes = mask.reshape((-1, 1, mask.shape[-2], mask.shape[-1]))
    return F.interpolate(planes, size=(height, width), mode="bilinear").squeeze(1)


def paste(
    destination: torch.Tensor, source: torch.Tensor, left: int, top: int, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Paste `source` [B, C, h, w] with its corner at (`left`, `top`) of `destination` [B, C, H, W]; a new tensor.

    What lies outside is left out; the smaller batch is repeated to that of `destination`. `mask` [..., H, W] is 1 where
    the source covers; it is resized to the source.
    """
    result = destination.clone()
    left, top = min(left, destination.shape[-1]), min(top, destination.shape[-2])
    below = result[..., top : top + source.shape[-2], left : left + source.shape[-1]]
    height, width = below.shape[-2:]
    above = repeated(source.to(destination.device), destination.shape[0])[..., :height, :width]
    if mask is not None:
        planes = resize_mask(mask.to(destination.device), source.shape[-2], source.shape[-1]).unsqueeze(1)
        share = repeated(planes, destination.shape[0])[..., :height, :width]
        above = share * above + (1.0 - share) * below
    below.copy_(above)
    return result


def porter_duff(
    source: torch.Tensor, source_alpha: torch.Tensor, destination: torch.Tensor, alpha: torch.Tensor, mode: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compose two images [H, W, C] with their opacities [H, W, 1]: (image, opacity), not premultiplied.

    T. Porter, T. Duff, "Compositing Digital Images", SIGGRAPH 1984, and the separable blend modes that SVG 1.2 adds to
    them. OVERLAY lacks the parts where only one image is opaque, and LIGHTEN and DARKEN take the larger and smaller
    premultiplied value, as in ComfyUI. Raises ValueError for a mode not in `PORTER_DUFF_MODES`.
    """
    src, dst = source * source_alpha, destination * alpha
    out, out_alpha = _composed(src, source_alpha, dst, alpha, mode)
    plain = torch.where(out_alpha > 1e-5, out / out_alpha, torch.zeros_like(out))
    return plain.clamp(0, 1), out_alpha


def _composed(
    src: torch.Tensor, src_alpha: torch.Tensor, dst: torch.Tensor, dst_alpha: torch.Tensor, mode: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compose premultiplied images; one branch an operator, as the paper's table lists them."""
    src_alone, dst_alone = (1 - dst_alpha) * src, (1 - src_alpha) * dst
    union = src_alpha + dst_alpha - src_alpha * dst_alpha
    match mode:
        case "ADD":
            return (src + dst).clamp(0, 1), (src_alpha + dst_alpha).clamp(0, 1)
        case "CLEAR":
            return torch.zeros_like(dst), torch.zeros_like(dst_alpha)
        case "DARKEN":
            return src_alone + dst_alone + torch.minimum(src, dst), union
        case "DST":
            return dst, dst_alpha
        case "DST_ATOP":
            return src_alpha * dst + src_alone, src_alpha
        case "DST_IN":
            return dst * src_alpha, src_alpha * dst_alpha
        case "DST_OUT":
            return dst_alone, (1 - src_alpha) * dst_alpha
        case "DST_OVER":
            return dst + src_alone, dst_alpha + (1 - dst_alpha) * src_alpha
        case "LIGHTEN":
            return src_alone + dst_alone + torch.maximum(src, dst), union
        case "MULTIPLY":
            return src * dst, src_alpha * dst_alpha
        case "OVERLAY":
            light = src_alpha * dst_alpha - 2 * (dst_alpha - src) * (src_alpha - dst)
            return torch.where(2 * dst < dst_alpha, 2 * src * dst, light), union
        case "SCREEN":
            return src + dst - src * dst, union
        case "SRC":
            return src, src_alpha
        case "SRC_ATOP":
            return dst_alpha * src + dst_alone, dst_alpha
        case "SRC_IN":
            return src * dst_alpha, src_alpha * dst_alpha
        case "SRC_OUT":
            return src_alone, (1 - dst_alpha) * src_alpha
        case "SRC_OVER":
            return src + dst_alone, src_alpha + (1 - src_alpha) * dst_alpha
        case "XOR":
            return src_alone + dst_alone, (1 - dst_alpha) * src_alpha + (1 - src_alpha) * dst_alpha
    raise ValueError(f"mode {mode!r}; expected one of {', '.join(PORTER_DUFF_MODES)}")
