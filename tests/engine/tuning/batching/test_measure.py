"""Measurement of the widths of batches: what it costs is bounded by the time of one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from darkroom.engine.errors import Interrupted
from darkroom.engine.tuning.batching.evaluation import Evaluation
from darkroom.engine.tuning.batching.measure import BUDGET_SECONDS, measure_widths


class CountingNetwork:
    """Network whose evaluations take `seconds_a_row` of its own clock, and `first_seconds` more the first time."""

    current_patcher: Any = None

    def __init__(self, seconds_a_row: float, first_seconds: float = 0.0) -> None:
        self.seconds_a_row = seconds_a_row
        self.first_seconds = first_seconds
        self.now = 0.0
        self.rows: list[int] = []

    def apply_model(self, x: torch.Tensor, sigmas: torch.Tensor, **arguments: Any) -> torch.Tensor:
        self.now += self.seconds_a_row * x.shape[0] + (0.0 if self.rows else self.first_seconds)
        self.rows.append(x.shape[0])
        return x * 2 + sigmas[:, None]

    def memory_required(self, shape: Sequence[int]) -> int:
        return shape[0]

    def free_bytes(self) -> int:
        return 1000


def measured_widths(network: CountingNetwork, own_rows: int = 2, max_rows: int = 16) -> list[int]:
    sample = Evaluation(
        "kind", network, network, torch.rand(own_rows, 3), torch.ones(own_rows), {"transformer_options": {}}
    )
    figures = measure_widths(sample, max_rows, lambda: None, lambda: None, lambda: network.now)
    return [figure.width for figure in figures]


def test_a_fast_network_is_measured_at_every_width() -> None:
    assert measured_widths(CountingNetwork(0.001)) == [2, 4, 6, 8, 12, 16]
    assert measured_widths(CountingNetwork(0.001), own_rows=1) == [1, 2, 3, 4, 6, 8, 12, 16]


def test_the_largest_widths_of_a_slow_network_are_not_measured() -> None:
    network = CountingNetwork(0.2)
    assert measured_widths(network) == [2, 4, 6, 8]
    assert network.now < BUDGET_SECONDS + 4 * 2 * network.seconds_a_row


def test_a_network_that_is_too_slow_to_share_is_evaluated_twice_only() -> None:
    network = CountingNetwork(2.0)
    assert measured_widths(network) == []
    assert network.rows == [2, 2]


def test_no_width_is_measured_where_none_has_place_for_a_second_run() -> None:
    network = CountingNetwork(1.0)  # slow enough for widths of 1 and 2 alone
    assert measured_widths(network) == []
    assert network.rows == [2, 2]


def test_a_moment_of_other_load_is_not_taken_for_a_widths_own_time() -> None:
    network = CountingNetwork(0.001)
    quiet = network.apply_model

    def apply_model(x: torch.Tensor, sigmas: torch.Tensor, **arguments: Any) -> torch.Tensor:
        if x.shape[0] == 4 and network.rows.count(4) < 2:  # while this width is compared, but not in the later rounds
            network.now += 1
        return quiet(x, sigmas, **arguments)

    network.apply_model = apply_model  # type: ignore[method-assign]
    sample = Evaluation("kind", network, network, torch.rand(2, 3), torch.ones(2), {"transformer_options": {}})
    figures = measure_widths(sample, 4, lambda: None, lambda: None, lambda: network.now)
    assert [round(figure.seconds, 6) for figure in figures] == [0.002, 0.004]


def test_a_slow_first_evaluation_leaves_no_width_out() -> None:
    network = CountingNetwork(0.001, first_seconds=60)
    assert measured_widths(network, max_rows=4) == [2, 4]


def test_a_network_that_fails_at_once_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    network = CountingNetwork(0.001)

    def fail(x: torch.Tensor, sigmas: torch.Tensor, **arguments: Any) -> torch.Tensor:
        raise ValueError("no such shape")

    monkeypatch.setattr(network, "apply_model", fail)
    assert measured_widths(network) == []


def test_a_cancelled_run_does_not_go_on_measuring() -> None:
    network = CountingNetwork(0.001)
    sample = Evaluation("kind", network, network, torch.rand(1, 3), torch.ones(1), {"transformer_options": {}})

    def check_cancelled() -> None:
        if len(network.rows) == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        measure_widths(sample, 16, lambda: None, check_cancelled, lambda: network.now)
    assert len(network.rows) == 3


def test_each_width_has_its_rows_error_against_those_without_company() -> None:
    network = CountingNetwork(0.001)
    exact = network.apply_model

    def apply_model(x: torch.Tensor, sigmas: torch.Tensor, **arguments: Any) -> torch.Tensor:
        return exact(x, sigmas, **arguments) * (1 + 1e-3 * (x.shape[0] == 8))

    network.apply_model = apply_model  # type: ignore[method-assign]
    sample = Evaluation("kind", network, network, torch.rand(2, 3), torch.ones(2), {"transformer_options": {}})
    figures = measure_widths(sample, 8, lambda: None, lambda: None, lambda: network.now)
    assert [(figure.width, round(figure.error, 6), figure.bits) for figure in figures] == [
        (2, 0.0, 0), (4, 0.0, 0), (6, 0.0, 0), (8, 0.001, 1)
    ]  # fmt: skip
