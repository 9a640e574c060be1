"""The speed of a strategy is that of a usual request, with what it costs at its begin and end."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.tuning.choose import LEAST_GAIN, Measured, judge
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.workload import USUAL_STEPS, rate_of_request, rounded_otherwise


def rate(first: float, step: float, last: float = 0.0, num_steps: int = 8) -> float:
    ends = (10.0 + first, 10.0 + first + (num_steps - 1) * step)
    return rate_of_request(10.0, ends, ends[-1] + last, num_steps)


def test_the_rate_is_that_of_a_request_of_usual_length_however_short_the_trial() -> None:
    assert rate(0.1, 0.1) == pytest.approx(10.0)
    assert rate(0.3, 0.1, 0.1) == pytest.approx(USUAL_STEPS / (USUAL_STEPS * 0.1 + 0.3))
    assert rate(0.3, 0.1, 0.1, num_steps=4) == pytest.approx(rate(0.3, 0.1, 0.1))


def test_a_strategy_that_costs_more_at_the_start_than_it_gains_is_not_chosen() -> None:
    """7 ms a step: a twentieth less in each is 7 ms a request, which a capture of 200 ms in each takes many times."""
    before = rate(0.007, 0.007)
    gaining, capturing = rate(0.0066, 0.0066), rate(0.2066, 0.0066)
    assert judge(Measured(gaining, before), Quality.SAME)[0] and gaining / before > LEAST_GAIN
    assert not judge(Measured(capturing, before), Quality.SAME)[0]


def test_a_single_step_has_a_rate() -> None:
    assert rate_of_request(1.0, (), 3.0, 1) == pytest.approx(0.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_number_rounded_otherwise_is_the_next_one_of_the_type(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.5, -2.0], [1.0, 0.0]])
    changed = rounded_otherwise(x, dtype)
    rounded, before = changed.to(dtype), x.to(dtype)
    assert torch.equal(rounded != before, torch.tensor([[False, True], [False, False]]))
    assert rounded[0, 1] == torch.nextafter(before[0, 1], torch.tensor(-torch.inf, dtype=dtype))
    assert x[0, 1] == -2.0
