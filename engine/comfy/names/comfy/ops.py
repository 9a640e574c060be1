"""`comfy.ops`: layers from which packs build networks of their own.

`disable_weight_init` draws no weights, since they come from a file; `manual_cast` moreover computes in the input's type
and on its device, whatever its weights are kept in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def cast_bias_weight(
    s: Any,
    input: torch.Tensor | None = None,
    dtype: Any = None,
    device: Any = None,
    bias_dtype: Any = None,
    offloadable: bool = False,
) -> Any:
    """Return weight and bias of a layer, in the type and on the device of `input` unless others are given.

    With `offloadable` there is a third item for `uncast_bias_weight`: None, as nothing waits to be given back.
    """
    if input is not None:
        dtype = input.dtype if dtype is None else dtype
        device = input.device if device is None else device
    bias = s.bias
    if bias is not None:
        bias = _through(s.bias_function, bias.to(device=device, dtype=bias_dtype or dtype))
    weight = _through(s.weight_function, s.weight.to(device=device, dtype=dtype))
    return (weight, bias, None) if offloadable else (weight, bias)


def uncast_bias_weight(s: object, weight: object, bias: object, offload_stream: object) -> None:
    """Do nothing: what `cast_bias_weight` gave is freed when nobody has it."""
    return


def cast_to(weight: torch.Tensor, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    return weight.to(device=device, dtype=dtype)


def cast_to_input(weight: torch.Tensor, input: torch.Tensor, **_: object) -> torch.Tensor:
    return weight.to(input)


def _through(functions: list[Callable[[Any], Any]], tensor: torch.Tensor) -> torch.Tensor:
    for function in functions:
        tensor = function(tensor)
    return tensor


class CastWeightBiasOp:
    """Casting attributes of a layer class; the functions in the lists are applied to weight and bias at every call."""

    comfy_cast_weights = False
    weight_function: list[Callable[[Any], Any]] = []  # noqa: RUF012 - never added to: a layer is given a list of its own
    bias_function: list[Callable[[Any], Any]] = []  # noqa: RUF012


class _Cast(CastWeightBiasOp):
    """A layer that can cast. `computed` takes a weight and a bias."""

    def reset_parameters(self) -> None:
        """Do nothing: no weights are drawn."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.comfy_cast_weights or self.weight_function or self.bias_function:
            return self.forward_comfy_cast_weights(*args, **kwargs)
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def forward_comfy_cast_weights(self: Any, input: torch.Tensor) -> Any:
        if self.weight is None:
            return self.computed(input, None, None)
        return self.computed(input, *cast_bias_weight(self, input))


class _Linear(_Cast, nn.Linear):
    def computed(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return functional.linear(input, weight, bias)


class _Conv1d(_Cast, nn.Conv1d):
    def computed(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        return self._conv_forward(input, weight, bias)


class _Conv2d(_Cast, nn.Conv2d):
    def computed(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        return self._conv_forward(input, weight, bias)


class _Conv3d(_Cast, nn.Conv3d):
    def computed(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        return self._conv_forward(input, weight, bias)


class _ConvTranspose1d(_Cast, nn.ConvTranspose1d):
    def forward_comfy_cast_weights(self, input: torch.Tensor, output_size: Any = None) -> Any:
        return _transposed(self, functional.conv_transpose1d, input, output_size)


class _ConvTranspose2d(_Cast, nn.ConvTranspose2d):
    def forward_comfy_cast_weights(self, input: torch.Tensor, output_size: Any = None) -> Any:
        return _transposed(self, functional.conv_transpose2d, input, output_size)


def _transposed(layer: Any, function: Callable[..., torch.Tensor], input: torch.Tensor, output_size: Any) -> Any:
    """Apply a transposed convolution, with the given output size if there is one."""
    weight, bias = cast_bias_weight(layer, input)
    num_dims = weight.ndim - 2
    padding = layer._output_padding(
        input, output_size, layer.stride, layer.padding, layer.kernel_size, num_dims, layer.dilation
    )
    return function(input, weight, bias, layer.stride, layer.padding, padding, layer.groups, layer.dilation)


class _GroupNorm(_Cast, nn.GroupNorm):
    def computed(self, input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        return functional.group_norm(input, self.num_groups, weight, bias, self.eps)


class _LayerNorm(_Cast, nn.LayerNorm):
    def computed(self, input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        return functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class _RMSNorm(_Cast, nn.RMSNorm):
    bias = None

    def computed(self, input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        return functional.rms_norm(input, self.normalized_shape, weight, self.eps)


class _Embedding(_Cast, nn.Embedding):
    bias = None

    def forward_comfy_cast_weights(self, input: torch.Tensor, out_dtype: object = None) -> torch.Tensor:
        """Look up embeddings in `out_dtype`, else the weight's own type. Indices have no type to compute in."""
        weight, _ = cast_bias_weight(self, device=input.device, dtype=out_dtype or self.weight.dtype)
        return functional.embedding(
            input, weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )

    def forward(self, input: torch.Tensor, out_dtype: Any = None) -> torch.Tensor:
        found: torch.Tensor = super().forward(input)
        return found if out_dtype is None else found.to(out_dtype)


class disable_weight_init:
    """Layers without drawn weights. They do not cast unless `comfy_cast_weights` is set on one."""

    class Linear(_Linear):
        pass

    class Conv1d(_Conv1d):
        pass

    class Conv2d(_Conv2d):
        pass

    class Conv3d(_Conv3d):
        pass

    class ConvTranspose1d(_ConvTranspose1d):
        pass

    class ConvTranspose2d(_ConvTranspose2d):
        pass

    class GroupNorm(_GroupNorm):
        pass

    class LayerNorm(_LayerNorm):
        pass

    class RMSNorm(_RMSNorm):
        pass

    class Embedding(_Embedding):
        pass

    @classmethod
    def conv_nd(cls, dims: int, *args: Any, **kwargs: Any) -> nn.Module:
        """Return the convolution layer of 2 or 3 dimensions. Raises ValueError for another number."""
        if dims not in (2, 3):
            raise ValueError(f"there is no convolution of {dims} dimensions")
        return (cls.Conv2d if dims == 2 else cls.Conv3d)(*args, **kwargs)


class manual_cast(disable_weight_init):
    """Layers without drawn weights that cast."""

    class Linear(disable_weight_init.Linear):
        comfy_cast_weights = True

    class Conv1d(disable_weight_init.Conv1d):
        comfy_cast_weights = True

    class Conv2d(disable_weight_init.Conv2d):
        comfy_cast_weights = True

    class Conv3d(disable_weight_init.Conv3d):
        comfy_cast_weights = True

    class ConvTranspose1d(disable_weight_init.ConvTranspose1d):
        comfy_cast_weights = True

    class ConvTranspose2d(disable_weight_init.ConvTranspose2d):
        comfy_cast_weights = True

    class GroupNorm(disable_weight_init.GroupNorm):
        comfy_cast_weights = True

    class LayerNorm(disable_weight_init.LayerNorm):
        comfy_cast_weights = True

    class RMSNorm(disable_weight_init.RMSNorm):
        comfy_cast_weights = True

    class Embedding(disable_weight_init.Embedding):
        comfy_cast_weights = True


def pick_operations(
    weight_dtype: object, compute_dtype: object, load_device: object = None, **_: object
) -> type[disable_weight_init]:
    """Return layers that cast if weights are stored in another type than they compute in, else layers that do not."""
    return disable_weight_init if compute_dtype in (None, weight_dtype) else manual_cast
