"""Measurement of the widths of batches, with the first evaluation of a kind as the sample."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.diffusion.options import OptionDict
from engine.errors import Interrupted
from engine.tuning.batching.evaluation import Evaluation
from engine.tuning.batching.kinds import OPTIONS_KEY, joined_arguments, padded
from engine.tuning.batching.widths import WidthFigure, candidates

MEMORY_MARGIN = 1.5  # how many times the estimate has to be free, as in guidance
BUDGET_SECONDS = 20.0  # no further width is begun after that time
SIGMA_SHARE = 0.97  # of the noise level of the row before, so that no two rows are alike

log = logging.getLogger(__name__)


def measure_widths(
    sample: Evaluation, max_rows: int, wait_for_device: Callable[[], None], check_cancelled: Callable[[], None]
) -> list[WidthFigure]:
    """Return the time of an evaluation of each width, and which widths give all rows the same bits.

    The rows are variations of the sample, as different as those of different prompts. Every width computes all rows, in
    as many evaluations as it takes. Widths too large for the free memory are left out, and so is one at which the
    network fails, with those above it. Raises what `check_cancelled` raises, which is called between evaluations.
    """
    widths = [width for width in candidates(max_rows) if _fits(sample, width)] or [sample.num_rows]
    num_rows = max(widths[-1], sample.num_rows)
    x, sigmas, arguments = _varied(sample, num_rows)
    figures: list[WidthFigure] = []
    known: list[torch.Tensor] = []  # the results of which no two are equal
    began = time.monotonic()
    for width in widths:
        if figures and time.monotonic() - began > BUDGET_SECONDS:
            break
        made = _try_to_compute(sample, x, sigmas, arguments, width, wait_for_device, check_cancelled)
        if made is None:
            break
        found, seconds, is_steady = made
        bits = next((number for number, item in enumerate(known) if torch.equal(item, found)), len(known))
        if bits == len(known):
            known.append(found)
        figures.append(WidthFigure(width, seconds, bits if is_steady else None))
    return figures


def _fits(sample: Evaluation, width: int) -> bool:
    needed = sample.model.memory_required([width, *sample.x.shape[1:]])
    return bool(needed * MEMORY_MARGIN < sample.patcher.free_bytes())


def _try_to_compute(
    sample: Evaluation, x: torch.Tensor, sigmas: torch.Tensor, arguments: OptionDict, width: int,
    wait_for_device: Callable[[], None], check_cancelled: Callable[[], None],
) -> tuple[torch.Tensor, float, bool] | None:  # fmt: skip
    """Return what `_compute` does, None where the network fails. A failure that is the run's own comes once more."""
    try:
        return _compute(sample, x, sigmas, arguments, width, wait_for_device, check_cancelled)
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 - the run can do without this width
        log.warning("width of a batch left out: width=%d shape=%s reason=%s", width, list(sample.x.shape[1:]), error)
        return None


def _compute(
    sample: Evaluation, x: torch.Tensor, sigmas: torch.Tensor, arguments: OptionDict, width: int,
    wait_for_device: Callable[[], None], check_cancelled: Callable[[], None],
) -> tuple[torch.Tensor, float, bool]:  # fmt: skip
    """Return the denoised rows, computed so many at a time, the seconds of the fastest evaluation, and steadiness.

    Steady is a width at which a row has the same bits at each place of the batch: one evaluation is of shifted rows.
    """
    num_rows = x.shape[0]

    def evaluate(rows: Sequence[int]) -> tuple[torch.Tensor, float]:
        check_cancelled()
        missing = width - len(rows)
        given = joined_arguments([_rows_of(arguments, rows, num_rows)], missing)
        latents, levels = padded([x[list(rows)]], missing), padded([sigmas[list(rows)]], missing)
        wait_for_device()
        began = time.perf_counter()
        out = sample.model.apply_model(latents, levels, **given)
        wait_for_device()
        return out[: len(rows)], time.perf_counter() - began

    chunks = [range(start, min(start + width, num_rows)) for start in range(0, num_rows, width)]
    made = [evaluate(chunk) for chunk in chunks]
    found = torch.cat([out for out, _ in made])
    shifted = [num_rows - 1, *range(width - 1)]
    again, seconds = evaluate(shifted)  # the first evaluation also chooses kernels and allocates: no measure of time
    is_steady = torch.equal(again, found[shifted])
    return found, min(seconds, evaluate(shifted)[1], *(took for _, took in made)), is_steady


def _rows_of(arguments: OptionDict, rows: Sequence[int], num_rows: int) -> OptionDict:
    return {name: value[list(rows)] if _has_rows(name, value, num_rows) else value for name, value in arguments.items()}


def _varied(sample: Evaluation, num_rows: int) -> tuple[torch.Tensor, torch.Tensor, OptionDict]:
    """Return rows that are variations of the sample's: latent and texts are shifted, noise levels fall."""
    own = sample.num_rows
    places = [row % own for row in range(num_rows)]
    shifts = [row // own for row in range(num_rows)]

    def vary(tensor: torch.Tensor) -> torch.Tensor:
        rows = [tensor[place : place + 1] for place in places]
        if tensor.ndim < 2 or not tensor.is_floating_point():
            return torch.cat(rows)
        return torch.cat([row.roll(shift, -1) for row, shift in zip(rows, shifts, strict=True)])

    factors = torch.tensor([SIGMA_SHARE**shift for shift in shifts]).to(sample.sigmas)
    arguments = {
        name: vary(value) if _has_rows(name, value, own) else value for name, value in sample.arguments.items()
    }
    return vary(sample.x), torch.cat([sample.sigmas[place : place + 1] for place in places]) * factors, arguments


def _has_rows(name: str, value: Any, num_rows: int) -> bool:
    return name != OPTIONS_KEY and isinstance(value, torch.Tensor) and value.ndim > 0 and value.shape[0] == num_rows
