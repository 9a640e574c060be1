"""Flags of the whole process: set while a run uses them, and what they were before at the end of the last."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.tuning.process_setting import ProcessSetting
from darkroom.engine.tuning.registry import make_strategies
from darkroom.engine.tuning.strategies.library_flags import CudnnBenchmark, Fp16Accumulation
from darkroom.engine.tuning.strategy import MachineFacts, SamplingUse, Strategy
from tests.engine.tuning.test_strategies import Patcher

FLAGS = [
    (CudnnBenchmark(), torch.backends.cudnn, "benchmark"),
    (Fp16Accumulation(), torch.backends.cuda.matmul, "allow_fp16_accumulation"),
]


def use_of(dtype: torch.dtype, layer: torch.nn.Module) -> SamplingUse:
    holder = Denoiser(torch.nn.Sequential(layer))
    holder.manual_cast_dtype = dtype
    return SamplingUse(Patcher(holder), holder, {})


@pytest.fixture
def use() -> SamplingUse:
    return use_of(torch.float16, torch.nn.Conv2d(1, 1, 1))


@pytest.fixture(params=FLAGS, ids=lambda item: item[0].name)
def flag(request: pytest.FixtureRequest) -> Iterator[tuple[Strategy, Any, str]]:
    strategy, place, name = request.param
    before = getattr(place, name)
    yield strategy, place, name
    assert getattr(place, name) == before


def test_a_flag_is_set_by_the_first_use_and_restored_by_the_last(
    flag: tuple[Strategy, Any, str], use: SamplingUse
) -> None:
    strategy, place, name = flag
    assert strategy.unfit(use) is None and not getattr(place, name)
    first, second = strategy.apply(use), strategy.apply(use)
    assert getattr(place, name)
    first()
    first()  # undone twice, it ends one use
    assert getattr(place, name)
    second()
    assert not getattr(place, name)


def test_a_flag_that_was_set_before_stays(flag: tuple[Strategy, Any, str], use: SamplingUse) -> None:
    strategy, place, name = flag
    setattr(place, name, True)
    try:
        strategy.apply(use)()
        assert getattr(place, name)
    finally:
        setattr(place, name, False)


def test_a_flag_is_not_used_beside_other_requests(flag: tuple[Strategy, Any, str], use: SamplingUse) -> None:
    beside_others = replace(use, may_share=True)
    assert flag[0].unfit(beside_others) == "other requests may compute at the same time"


def test_flags_are_for_networks_that_they_change() -> None:
    linear = use_of(torch.bfloat16, torch.nn.Linear(1, 1))
    assert CudnnBenchmark().unfit(linear) == "the network has no convolutions"
    assert Fp16Accumulation().unfit(linear) == "the network computes in bfloat16"


@pytest.mark.parametrize("name", ["cudnn_benchmark", "fp16_accumulation"])
def test_flags_are_measured_where_there_is_a_card(name: str) -> None:
    strategy = make_strategies()[name]
    assert strategy.missing(MachineFacts("cpu", "a processor")) == "needs a CUDA device"
    assert strategy.missing(MachineFacts("cuda", "a card")) is None


def test_uses_of_several_threads_end_in_any_order() -> None:
    values = [False]

    def write(value: bool) -> None:
        values[0] = value

    setting = ProcessSetting(lambda: values[0], write)

    def use_it() -> None:
        for _ in range(200):
            end = setting.hold(True)
            assert values[0]
            end()

    threads = [threading.Thread(target=use_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not values[0] and not setting._num_uses
