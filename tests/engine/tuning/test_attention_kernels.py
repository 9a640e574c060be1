"""Attention by the fastest kernel that is as exact as torch's choice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.layers.attention import KERNEL_OPTION, optimized_attention
from darkroom.engine.tuning.strategies import attention_kernels
from darkroom.engine.tuning.strategies.attention_kernels import DEFAULT, AttentionKernels

Sizes = tuple[int, int, int, int]


class Kernels:
    """Kernels whose calls are counted: torch's choice, one that is wrong, one that lacks code, and a good one."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.all = {DEFAULT: self.default, "wrong": self.wrong, "lacking": self.lacking, "good": self.good}

    def default(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.calls[DEFAULT] += 1
        return scaled_dot_product_attention(q, k, v)

    def wrong(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.calls["wrong"] += 1
        return q * 1.0

    def lacking(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel for these sizes")

    def good(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.calls["good"] += 1
        return scaled_dot_product_attention(q, k, v)


def tokens(batch: int, length: int, width: int = 32) -> torch.Tensor:
    return torch.randn(batch, length, width, generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize(("times", "expected"), [({"good": 1.0}, "good"), ({"good": 1.99}, DEFAULT)], ids=str)
def test_the_fastest_exact_kernel_is_used_for_a_size(
    times: dict[str, float], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Kernels()

    def seconds(work: Any) -> float:
        return {DEFAULT: 2.0, "wrong": 0.0, **times}[work.func.__name__]

    monkeypatch.setattr(attention_kernels, "_seconds", seconds)
    strategy = AttentionKernels(kernels.all)
    options = {KERNEL_OPTION: strategy.attend}
    q, k = tokens(2, 9), tokens(2, 5)
    optimized_attention(q, k, k, 4, transformer_options=options)
    kernels.calls.clear()
    for batch in (1, 2):
        found = optimized_attention(q[:batch], k[:batch], k[:batch], 4, transformer_options=options)
        assert relative_error(found, optimized_attention(q[:batch], k[:batch], k[:batch], 4)) < 1e-6
    assert kernels.calls == {expected: 2}
    optimized_attention(q, k, k, 4, mask=torch.zeros(9, 5), transformer_options=options)
    assert kernels.calls == {expected: 2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("length", "heads"), [(64, 4), (5, 1)])
def test_every_kernel_of_this_machine_attends_as_torch_does(length: int, heads: int, dtype: torch.dtype) -> None:
    q, k = tokens(2, 16).to(dtype), tokens(2, length).to(dtype)
    found = optimized_attention(q, k, k, heads, transformer_options={KERNEL_OPTION: AttentionKernels().attend})
    expected = optimized_attention(q.float(), k.float(), k.float(), heads)
    assert relative_error(found.float(), expected) < (1e-5 if dtype is torch.float32 else 0.02)


def test_no_kernel_changes_what_the_process_computes_attention_with() -> None:
    """Another thread may decode meanwhile: its heads may fit none of the kernels that this one tries."""
    before = torch._C._get_flash_sdp_enabled(), torch._C._get_math_sdp_enabled(), torch._C._get_cudnn_sdp_enabled()
    seen: list[object] = []

    class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(
                (torch._C._get_flash_sdp_enabled(), torch._C._get_math_sdp_enabled(), torch._C._get_cudnn_sdp_enabled())
            )
            return func(*args, **(kwargs or {}))

    with Watching():  # type: ignore[no-untyped-call]
        optimized_attention(
            tokens(1, 9), tokens(1, 9), tokens(1, 9), 4, transformer_options={KERNEL_OPTION: AttentionKernels().attend}
        )
    assert len(seen) > 20 and set(seen) == {before}


@pytest.mark.parametrize("name", ["math", "products"])
def test_no_kernel_holds_all_scores_of_a_long_video(name: str) -> None:
    """At 33,000 tokens and 12 heads they take 49 GiB."""
    calls: list[torch.Size] = []

    def counted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        calls.append(q.shape)
        return q

    strategy = AttentionKernels({DEFAULT: lambda q, k, v: scaled_dot_product_attention(q, k, v), name: counted})
    short, long = torch.randn(1, 2, 16, 8), torch.randn(1, 1, 8193, 1)
    strategy.attend(short, short, short)
    assert calls == [short.shape]
    strategy.attend(long, long, long)
    assert calls == [short.shape]
