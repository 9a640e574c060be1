"""Small sets of tensors that change a large weight: LoRA and its relatives.

An adapter is the value of a weight patch (`engine/memory/weight_patches.py`). `O` outputs, `I` inputs (with the kernel
of a convolution where it has one), `r` rank; every difference has the weight's shape. The formulas are those of LyCORIS
(Yeh et al. 2023, arXiv 2309.14859).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from darkroom.engine.log_context import report_warning

Function = Callable[[torch.Tensor], torch.Tensor]

log = logging.getLogger(__name__)


class WeightAdapter(ABC):
    """Base of the adapters of a weight.

    `alpha` scales by alpha / rank. With `dora_scale` only the direction of rows (or columns) is learned (DoRA).
    """

    name: ClassVar[str]
    alpha: float | None
    dora_scale: torch.Tensor | None

    @abstractmethod
    def difference(self, weight: torch.Tensor, strength: float) -> torch.Tensor:
        """Return the tensor that is added to `weight`, of its shape, before scale and strength."""

    @property
    @abstractmethod
    def rank(self) -> int | None:
        """Divisor of alpha, or None where alpha does not scale."""

    @property
    def scale(self) -> float:
        return 1.0 if self.alpha is None or self.rank is None else self.alpha / self.rank

    @property
    def dora_factor(self) -> float:
        """Factor of the difference under a DoRA scale."""
        return self.scale

    def resized(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight in the size that the adapter is for."""
        return weight

    def calculate_weight(
        self,
        weight: torch.Tensor,
        key: str,
        strength: float,
        strength_model: float,
        offset: object,
        function: Function,
        intermediate_dtype: torch.dtype = torch.float32,
        original_weight: object = None,
    ) -> torch.Tensor:
        """Apply the adapter to `weight` (float32, changed in place) and return it.

        An adapter that does not fit is skipped with a warning.
        """
        weight = self.resized(weight)
        try:
            difference = self.difference(weight, strength).reshape(weight.shape)
            if self.dora_scale is not None:
                scale = self.dora_scale.to(weight)
                return _redirected(weight, difference * self.dora_factor, scale, strength, function)
            weight += function(((strength * self.scale) * difference).to(weight.dtype))
        except (RuntimeError, ValueError) as error:
            report_warning(log, "patch_left_out", f"{self.name} does not fit {key} and is left out: {error}")
        return weight


def _redirected(
    weight: torch.Tensor, difference: torch.Tensor, dora_scale: torch.Tensor, strength: float, function: Function
) -> torch.Tensor:
    """Return the sum rescaled to the learned lengths: weight-decomposed adaptation (Liu et al.

    2024, arXiv 2402.09353).
    """
    changed = weight + function(difference).to(weight.dtype)
    if dora_scale.shape[0] == changed.shape[0]:
        # ComfyUI takes the lengths of the unchanged rows here and of the changed columns below: kept, as it is.
        norm = weight.flatten(1).norm(dim=1).reshape(-1, *[1] * (weight.ndim - 1))
    else:
        norm = changed.transpose(0, 1).flatten(1).norm(dim=1).reshape(1, -1, *[1] * (weight.ndim - 2))
    changed *= dora_scale / (norm + torch.finfo(weight.dtype).eps)
    return weight.add_(strength * (changed - weight)) if strength != 1.0 else weight.copy_(changed)


@dataclass(frozen=True, slots=True, eq=False)
class LoraAdapter(WeightAdapter):
    """Low-rank adaptation (Hu et al. 2021, arXiv 2106.09685): up [O, r] times down [r, I].

    For convolutions there may be a kernel of rank r between them (`mid` [r, r, kh, kw]).
    """

    name = "lora"
    up: torch.Tensor
    down: torch.Tensor
    alpha: float | None = None
    mid: torch.Tensor | None = None
    dora_scale: torch.Tensor | None = None
    reshape: list[int] | None = None  # a larger shape that the weight is padded to

    @property
    def rank(self) -> int:
        return int(self.down.shape[0])

    @property
    def matrices(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """`up` [O, r] and `down` [r, I] where their product, scaled, is all that is added to a weight; else None."""
        is_product = self.mid is None and self.dora_scale is None and self.reshape is None
        return (self.up, self.down) if is_product and self.up.ndim == self.down.ndim == 2 else None

    def difference(self, weight: torch.Tensor, strength: float) -> torch.Tensor:
        up, down = self.up.to(weight), self.down.to(weight)
        if self.mid is not None:
            mid = self.mid.to(weight)
            inner = down.transpose(0, 1).flatten(1) @ mid.transpose(0, 1).flatten(1)  # [I, r * kh * kw]
            down = inner.reshape(down.shape[1], down.shape[0], *mid.shape[2:]).transpose(0, 1)
        return up.flatten(1) @ down.flatten(1)

    def resized(self, weight: torch.Tensor) -> torch.Tensor:
        return weight if self.reshape is None else padded(weight, self.reshape)


def padded(weight: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Return `weight` in the first corner of zeros of a larger shape."""
    larger = weight.new_zeros(shape)
    larger[tuple(slice(0, size) for size in weight.shape)] = weight
    return larger


def _core_product(core: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply a Tucker decomposition: core [i, j, kh, kw], left [i, O] and right [j, I] -> [O, I, kh, kw]."""
    return torch.einsum("i j k l, j r, i p -> p r k l", core, right, left)


@dataclass(frozen=True, slots=True, eq=False)
class LohaAdapter(WeightAdapter):
    """The elementwise product of two low-rank matrices (FedPara, Hyeon-Woo et al. 2021, arXiv 2108.06098)."""

    name = "loha"
    w1_a: torch.Tensor
    w1_b: torch.Tensor
    w2_a: torch.Tensor
    w2_b: torch.Tensor
    alpha: float | None = None
    t1: torch.Tensor | None = None
    t2: torch.Tensor | None = None
    dora_scale: torch.Tensor | None = None

    @property
    def rank(self) -> int:
        return int(self.w1_b.shape[0])

    def difference(self, weight: torch.Tensor, strength: float) -> torch.Tensor:
        first, second = (
            a.to(weight) @ b.to(weight) if t is None else _core_product(t.to(weight), a.to(weight), b.to(weight))
            for a, b, t in ((self.w1_a, self.w1_b, self.t1), (self.w2_a, self.w2_b, self.t2))
        )
        return first * second


@dataclass(frozen=True, slots=True, eq=False)
class LokrAdapter(WeightAdapter):
    """The Kronecker product of two matrices, each whole or of low rank (KronA, arXiv 2212.10650)."""

    name = "lokr"
    w1: torch.Tensor | None
    w2: torch.Tensor | None
    alpha: float | None = None
    w1_a: torch.Tensor | None = None
    w1_b: torch.Tensor | None = None
    w2_a: torch.Tensor | None = None
    w2_b: torch.Tensor | None = None
    t2: torch.Tensor | None = None
    dora_scale: torch.Tensor | None = None

    @property
    def rank(self) -> int | None:
        """Rank that divides alpha, the second factor's before the first's; None if no factor is of low rank."""
        if self.w2 is None and self.w2_b is not None:
            return int(self.w2_b.shape[0])
        return int(self.w1_b.shape[0]) if self.w1 is None and self.w1_b is not None else None

    def difference(self, weight: torch.Tensor, strength: float) -> torch.Tensor:
        first = self._factor(weight, self.w1, self.w1_a, self.w1_b, None)
        second = self._factor(weight, self.w2, self.w2_a, self.w2_b, self.t2)
        if second.ndim == 4:
            first = first[:, :, None, None]
        return torch.kron(first, second)

    def _factor(
        self,
        weight: torch.Tensor,
        whole: torch.Tensor | None,
        a: torch.Tensor | None,
        b: torch.Tensor | None,
        core: torch.Tensor | None,
    ) -> torch.Tensor:
        if whole is not None:
            return whole.to(weight)
        if a is None or b is None:
            raise ValueError("a factor is missing")
        a, b = a.to(weight), b.to(weight)
        return a @ b if core is None else _core_product(core.to(weight), a, b)


@dataclass(frozen=True, slots=True, eq=False)
class GloraAdapter(WeightAdapter):
    """Generalised LoRA (Chavan et al. 2023, arXiv 2306.07967): a low-rank sum and a low-rank product."""

    name = "glora"
    a1: torch.Tensor
    a2: torch.Tensor
    b1: torch.Tensor
    b2: torch.Tensor
    alpha: float | None = None
    dora_scale: torch.Tensor | None = None

    @property
    def rank(self) -> int:
        old, new = self._fits_layouts()
        if old and new:
            return int(min(self.a1.shape[:2]))
        return int(self.a1.shape[0] if old else self.a2.shape[0])

    def _fits_layouts(self) -> tuple[bool, bool]:
        """Return True for each layout of the factors that fits.

        The first is that of LyCORIS before version 3 (factors swapped), the second the current one.
        """
        old = self.b2.shape[1] == self.b1.shape[0] == self.a1.shape[0] == self.a2.shape[1]
        new = self.b2.shape[0] == self.b1.shape[1] == self.a1.shape[1] == self.a2.shape[0]
        return bool(old), bool(new)

    def _is_old_layout(self, weight: torch.Tensor) -> bool:
        old, new = self._fits_layouts()
        if old and new:  # of a square weight: the old layout where the first factor is as large as the weight
            return bool(self.a2.shape[0] == weight.shape[0] == weight.shape[1])
        return old

    def difference(self, weight: torch.Tensor, strength: float) -> torch.Tensor:
        a1, a2, b1, b2 = (item.to(weight).flatten(1) for item in (self.a1, self.a2, self.b1, self.b2))
        if self._is_old_layout(weight):
            return b2 @ b1 + (weight.flatten(1) @ a2) @ a1
        product = torch.einsum("o i ..., i j -> o j ...", torch.einsum("o i ..., i j -> o j ...", weight, a1), a2)
        return product + (b1 @ b2).reshape(weight.shape)


def _rotations(blocks: torch.Tensor, constraint: float) -> torch.Tensor:
    """Map skew-symmetric matrices [..., n, n] to rotations by Cayley's map; `constraint` bounds the angle."""
    identity = torch.eye(blocks.shape[-1], device=blocks.device, dtype=blocks.dtype)
    skew = blocks - blocks.transpose(-1, -2)
    norm = torch.norm(skew) + 1e-8
    if constraint > 0 and norm > constraint:
        skew = skew * constraint / norm
    return (identity + skew) @ (identity - skew).float().inverse().to(blocks.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class OftAdapter(WeightAdapter):
    """Orthogonal finetuning (Qiu et al. 2023, arXiv 2306.07280): blocks [n, b, b] turn groups of outputs.

    `alpha` is the constraint. The strength counts twice, in the rotation and on the difference, and a DoRA scale takes
    the constraint for a factor: ComfyUI's way, kept.
    """

    name = "oft"
    blocks: torch.Tensor
    alpha: float | None = None
    rescale: torch.Tensor | None = None  # read by LyCORIS, unused by ComfyUI for this kind
    dora_scale: torch.Tensor | None = None

    @property
    def rank(self) -> None:
        return None

    @property
    def dora_factor(self) -> float:
        return self.alpha or 0.0

    def difference(self, weight: torch.Tensor, strength: float) -> torch.Tensor:
        blocks = self.blocks.to(weight)
        rotation = _rotations(blocks, self.alpha or 0.0)
        turn = rotation * strength - strength * torch.eye(blocks.shape[-1], device=blocks.device, dtype=blocks.dtype)
        groups = weight.reshape(blocks.shape[0], blocks.shape[1], *weight.shape[1:])
        return torch.einsum("k n m, k n ... -> k m ...", turn, groups)


@dataclass(frozen=True, slots=True, eq=False)
class BoftAdapter(WeightAdapter):
    """Butterfly orthogonal finetuning (Liu et al. 2023, arXiv 2311.06243): m levels of blocks [m, n, b, b].

    `alpha` is the constraint, as in `OftAdapter`. ComfyUI skips files without one.
    """

    name = "boft"
    blocks: torch.Tensor
    alpha: float | None = None
    rescale: torch.Tensor | None = None
    dora_scale: torch.Tensor | None = None

    @property
    def rank(self) -> None:
        return None

    @property
    def dora_factor(self) -> float:
        return self.alpha or 0.0

    def difference(self, weight: torch.Tensor, strength: float) -> torch.Tensor:
        if self.alpha is None:
            raise ValueError("no alpha, which bounds the rotation")
        blocks = self.blocks.to(weight)
        levels, _, size, _ = blocks.shape
        identity = torch.eye(size, device=blocks.device, dtype=blocks.dtype)
        turned = weight
        for level, rotation in enumerate(_rotations(blocks, self.alpha)):
            turn = rotation if strength == 1 else rotation * strength + (1 - strength) * identity
            stride = 2**level * (size // 2)
            rest = weight.shape[1:]
            mixed = turned.reshape(-1, 2, stride, *rest).transpose(1, 2).reshape(-1, size, *rest)
            mixed = torch.einsum("b i j, b j ... -> b i ...", turn, mixed)
            turned = mixed.reshape(-1, stride, 2, *rest).transpose(1, 2).reshape(weight.shape)
        if self.rescale is not None:
            turned = turned * self.rescale.to(weight)
        return turned - weight
