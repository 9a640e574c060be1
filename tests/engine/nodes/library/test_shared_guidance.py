"""Two engines that share the guidance of one sampling compute the same, whatever becomes of the helper."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cancel import CancelToken
from engine.nodes import exchange as exchanges
from engine.nodes.exchange import Exchange
from engine.nodes.library.sampling.shared_guidance import GuidanceExchange

NUM_STEPS = 6


class Evaluations:
    """A network whose answer depends on the latent and the side; counts the sides that it computes."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.sides: list[int] = []
        self._fails_after = fails_after

    def __call__(self, model: object, conds: list[Any], x: torch.Tensor, *rest: object) -> list[torch.Tensor]:
        if self._fails_after is not None and len(self.sides) >= self._fails_after:
            raise RuntimeError("the engine is gone")
        self.sides += [number for number, cond in enumerate(conds) if cond is not None]
        return [
            torch.zeros_like(x) if cond is None else torch.sin(x * (number + 2)) for number, cond in enumerate(conds)
        ]


def sampled(exchange: Exchange, network: Evaluations, *, is_helper: bool) -> torch.Tensor:
    wrapper = GuidanceExchange(exchange, CancelToken(), is_helper=is_helper)
    x = torch.linspace(0, 1, 16).view(1, 1, 4, 4)
    for _ in range(NUM_STEPS):
        positive, negative = wrapper(network, None, ["a", "b"], x, None, {})
        x = x + 0.1 * (negative + 3 * (positive - negative))
    return x


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    made = Exchange(tmp_path, "job-1")
    made.open()
    return made


def alone(tmp_path: Path) -> torch.Tensor:
    exchange = Exchange(tmp_path, "alone")
    exchange.open()
    return sampled(exchange, Evaluations(), is_helper=False)


def test_each_engine_computes_one_side_and_both_have_the_bits_of_one(exchange: Exchange, tmp_path: Path) -> None:
    owner, helper, found = Evaluations(), Evaluations(), list[torch.Tensor]()
    thread = threading.Thread(target=lambda: found.append(sampled(exchange, helper, is_helper=True)))
    thread.start()
    found.append(sampled(exchange, owner, is_helper=False))
    thread.join()
    assert all(torch.equal(latent, alone(tmp_path)) for latent in found)
    assert owner.sides.count(0) == NUM_STEPS and 0 not in helper.sides
    assert owner.sides.count(1) + helper.sides.count(1) == NUM_STEPS


def test_a_helper_that_comes_late_takes_what_is_there(exchange: Exchange, tmp_path: Path) -> None:
    ours, helper = sampled(exchange, Evaluations(), is_helper=False), Evaluations()
    assert torch.equal(sampled(exchange, helper, is_helper=True), ours) and helper.sides == []


def test_the_owner_goes_on_alone_when_the_helper_is_lost(
    exchange: Exchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "LEAST_WAIT_SECONDS", 0.05)

    def helps() -> None:
        with pytest.raises(RuntimeError, match="gone"):
            sampled(exchange, Evaluations(fails_after=0), is_helper=True)

    thread = threading.Thread(target=helps)
    thread.start()
    thread.join()
    owner = Evaluations()
    assert torch.equal(sampled(exchange, owner, is_helper=False), alone(tmp_path))
    assert owner.sides.count(1) == NUM_STEPS


def test_one_side_alone_is_not_shared(exchange: Exchange, tmp_path: Path) -> None:
    network = Evaluations()
    wrapper = GuidanceExchange(exchange, CancelToken(), is_helper=False)
    x = torch.ones(1, 1, 2, 2)
    assert torch.equal(wrapper(network, None, ["a", None], x, None, {})[0], torch.sin(x * 2)) and network.sides == [0]
    assert not list((tmp_path / ".shared_work" / "job-1").iterdir())
