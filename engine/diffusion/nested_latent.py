"""Latents of several streams, such as a video and its audio, which are sampled as one.

A sampler works on the packed form [B, 1, N]: the numbers of all streams behind each other. `N` numbers of an item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import torch

from darkroom.engine.diffusion.steps_reported import ProgressCallback

StreamShapes = tuple[tuple[int, ...], ...]
"""The shapes of the streams of a packed latent, batch first."""


class NestedLatent:
    """Tensors of several streams [B, ...] in the place of a latent's tensor (ComfyUI's `NestedTensor`).

    Its shape, type and device are those of the first stream. What else takes one tensor is refused, with advice.
    """

    is_nested = True

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = list(tensors)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: object, args: Sequence[object] = (), kwargs: object = None
    ) -> NoReturn:
        """Refuse torch's functions, which take one tensor. Raises ValueError."""
        raise ValueError(_advice(getattr(func, "__name__", str(func))))

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse members that a latent of several streams does not have. Raises AttributeError."""
        raise AttributeError(name if name.startswith("__") else _advice(name))

    def apply_operation(self, other: object, operation: Callable[[Any, Any], Any]) -> NestedLatent:
        """Return the operation of each stream and `other`, of another nested latent with its stream."""
        others = other.tensors if isinstance(other, NestedLatent) else [other] * len(self.tensors)
        return NestedLatent([operation(own, theirs) for own, theirs in zip(self.tensors, others, strict=True)])

    def __add__(self, other: object) -> NestedLatent:
        return self.apply_operation(other, lambda own, theirs: own + theirs)

    def __sub__(self, other: object) -> NestedLatent:
        return self.apply_operation(other, lambda own, theirs: own - theirs)

    def __mul__(self, other: object) -> NestedLatent:
        return self.apply_operation(other, lambda own, theirs: own * theirs)

    def __truediv__(self, other: object) -> NestedLatent:
        return self.apply_operation(other, lambda own, theirs: own / theirs)

    def __getitem__(self, items: Any) -> NestedLatent:
        return NestedLatent([tensor[items] for tensor in self.tensors])

    def unbind(self) -> list[torch.Tensor]:
        """Return the streams."""
        return self.tensors

    def to(self, *args: Any, **kwargs: Any) -> NestedLatent:
        """Return the streams on another device or of another type."""
        return NestedLatent([tensor.to(*args, **kwargs) for tensor in self.tensors])

    def float(self) -> NestedLatent:
        return self.to(dtype=torch.float32)

    def cpu(self) -> NestedLatent:
        return self.to(device="cpu")

    def new_ones(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.tensors[0].new_ones(*args, **kwargs)

    def size(self) -> torch.Size:
        return self.tensors[0].size()

    def get_ram_usage(self) -> int:
        """Return the bytes of all streams in the host's memory."""
        return sum(tensor.nbytes for tensor in self.tensors if tensor.is_cpu)

    @property
    def shape(self) -> torch.Size:
        return self.tensors[0].shape

    @property
    def ndim(self) -> int:
        return max(tensor.ndim for tensor in self.tensors)

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    @property
    def layout(self) -> torch.layout:
        return self.tensors[0].layout

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tensors!r})"


def nested(streams: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a nested latent, of the type of the tensor in whose place it is."""
    return cast(torch.Tensor, NestedLatent(streams))


def _advice(used: str) -> str:
    return (
        f"latent: it has several streams, such as a video and its audio; got one where {used!r} takes a single tensor, "
        "expected one of its streams (LTXVSeparateAVLatent)"
    )


def streams_of(latent: object) -> list[torch.Tensor]:
    """Return the streams of a nested latent, none for a plain tensor. Other classes are told by `is_nested`."""
    return list(latent.unbind()) if isinstance(latent, NestedLatent) else _streams_of_other(latent)


def _streams_of_other(latent: Any) -> list[torch.Tensor]:
    is_nested = getattr(latent, "is_nested", False) and not isinstance(latent, torch.Tensor)
    return list(latent.unbind()) if is_nested else []


def first_stream(latent: Any) -> Any:
    """Return the video of a nested latent, and a plain latent as it is."""
    streams = streams_of(latent)
    return streams[0] if streams else latent


def last_stream(latent: Any) -> Any:
    """Return the audio of a nested latent, and a plain latent as it is."""
    streams = streams_of(latent)
    return streams[-1] if streams else latent


def shapes_of(streams: Sequence[torch.Tensor]) -> StreamShapes:
    """Return the shapes of streams."""
    return tuple(tuple(stream.shape) for stream in streams)


def packed(streams: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return streams [B, ...] as one tensor [B, 1, N]."""
    return torch.cat([stream.reshape(stream.shape[0], 1, -1) for stream in streams], dim=-1)


def unpacked(latent: torch.Tensor, shapes: StreamShapes) -> list[torch.Tensor]:
    """Return the streams of a packed latent [B, 1, N], of its own batch size."""
    parts = torch.split(latent, [math.prod(shape[1:]) for shape in shapes], dim=-1)
    return [part.reshape(part.shape[0], *shape[1:]) for part, shape in zip(parts, shapes, strict=True)]


def by_stream(function: Callable[[Any], Any], latent: torch.Tensor, shapes: StreamShapes) -> torch.Tensor:
    """Return a function of a latent; of a packed one of the nested latent, packed again."""
    if not shapes:
        plain: torch.Tensor = function(latent)
        return plain
    return packed(streams_of(function(NestedLatent(unpacked(latent, shapes)))))


def packed_mask(
    mask: Any, shapes: StreamShapes, resize: Callable[[torch.Tensor, torch.Size], torch.Tensor]
) -> torch.Tensor:
    """Return the masks of streams as one tensor [B, 1, N], float32.

    `mask` is that of the first stream, or a nested one; streams without a mask are painted as a whole. `resize` brings
    a mask to a stream's shape.
    """
    masks = (streams_of(mask) or [mask])[: len(shapes)]
    masks += [torch.ones(shape) for shape in shapes[len(masks) :]]
    return packed([resize(item, torch.Size(shape)) for item, shape in zip(masks, shapes, strict=True)]).float()


def nested_callback(callback: ProgressCallback, shapes: StreamShapes) -> ProgressCallback:
    """Return a callback that is given packed latents, and gives nested ones to `callback`."""

    def report(step: int, denoised: torch.Tensor, x: torch.Tensor, num_steps: int) -> None:
        callback(step, nested(unpacked(denoised, shapes)), nested(unpacked(x, shapes)), num_steps)

    return report
