"""EasyCache: a skipped step gives the input plus the last known difference of each condition and stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.step_cache import KEY, CacheRun, CacheSettings, ChangeWatch, wrap_network

IMAGE, VIDEO, AUDIO = (4, 16, 16), (4, 3, 16, 16), (2, 5, 8)


class Network:
    """A network that adds its number to each condition, and counts its calls."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, x: Any, timesteps: Any, context: Any, y: Any, control: Any, options: Any) -> Any:
        self.num_calls += 1
        streams = [x] if isinstance(x, torch.Tensor) else x
        added = torch.tensor([float(name) for name in options["uuids"]])
        outputs = [item + added.view(-1, *[1] * (item.ndim - 1)) for item in streams]
        return outputs[0] if isinstance(x, torch.Tensor) else outputs


def call(run: CacheRun, network: Network, x: Any, sigma: float, conditions: list[int]) -> Any:
    run.is_skipping = False  # as at the beginning of each evaluation
    options = {KEY: run, "sigmas": torch.tensor([sigma]), "uuids": conditions}
    timesteps = torch.full((len(conditions),), sigma)
    return wrap_network(network, x, timesteps, None, None, None, options)


def new_run() -> CacheRun:
    settings = CacheSettings("EasyCache", 100.0, 0.0, 1.0, is_verbose=False)
    return CacheRun(settings, start_sigma=10.0, end_sigma=0.0, watch=ChangeWatch(100.0))


@pytest.mark.parametrize("shapes", [(IMAGE,), (VIDEO,), (VIDEO, AUDIO)])
def test_each_condition_and_stream_gets_its_own_difference(shapes: tuple[tuple[int, ...], ...]) -> None:
    run, network = new_run(), Network()
    for sigma in (3.0, 2.0, 1.0):
        streams = [torch.randn(2, *shape) for shape in shapes]
        given = [stream.clone() for stream in streams]  # a skipped step's output takes the place of its input
        found = call(run, network, given if len(shapes) > 1 else given[0], sigma, [1, 5])
    outputs = found if len(shapes) > 1 else [found]
    assert network.num_calls == 2 and run.num_skipped == 1
    for stream, output in zip(streams, outputs, strict=True):
        assert torch.allclose(output[0], stream[0] + 1.0, atol=1e-5)
        assert torch.allclose(output[1], stream[1] + 5.0, atol=1e-5)


def test_a_condition_that_begins_later_is_evaluated() -> None:
    run, network = new_run(), Network()
    for sigma in (4.0, 3.0):
        call(run, network, torch.randn(1, *IMAGE), sigma, [1])
    x = torch.randn(2, *IMAGE)
    assert torch.equal(call(run, network, x, 2.0, [1, 7])[1], x[1] + 7.0)
    assert network.num_calls == 3
    call(run, network, x, 1.0, [1, 7])
    assert network.num_calls == 3 and run.num_skipped == 1
