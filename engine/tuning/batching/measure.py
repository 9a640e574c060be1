"""Measurement of the widths of batches, with the first evaluation of a kind as the sample."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.diffusion.options import OptionDict
from darkroom.engine.errors import Interrupted
from darkroom.engine.tuning.batching.chunks import VaryingLayers
from darkroom.engine.tuning.batching.evaluation import Evaluation
from darkroom.engine.tuning.batching.kinds import OPTIONS_KEY, joined_arguments, padded
from darkroom.engine.tuning.batching.widths import WidthFigure, affordable, candidates

MEMORY_MARGIN = 1.5  # how many times the estimate has to be free, as in guidance
BUDGET_SECONDS = 20.0  # for all widths by estimate; no further one is begun after that time
COMPARING_SECONDS = 5.0  # for the bits of single layers
ROUNDS = 2  # in which the widths are timed in turns, so that other load on the machine is not taken for a width's
SIGMA_SHARE = 0.97  # of the noise level of the row before, so that no two rows are alike

log = logging.getLogger(__name__)

T = TypeVar("T")


def measure_widths(
    sample: Evaluation, max_rows: int, wait_for_device: Callable[[], None], check_cancelled: Callable[[], None],
    now: Callable[[], float] = time.perf_counter,
) -> list[WidthFigure]:  # fmt: skip
    """Return the time of an evaluation of each width, and which widths give all rows the same bits.

    The rows are variations of the sample, as different as those of different prompts. Every width computes all rows, in
    as many evaluations as it takes. Left out are widths too large for the free memory, the largest ones where the
    network is too slow to measure them in `BUDGET_SECONDS`, and one at which it fails, with those above it. Raises what
    `check_cancelled` raises, which is called between evaluations.
    """
    return _Measurement(sample, wait_for_device, check_cancelled, now).figures(max_rows)


def varying_layers(
    sample: Evaluation, chunk_rows: int, max_rows: int, check_cancelled: Callable[[], None],
    now: Callable[[], float] = time.perf_counter,
) -> tuple[str, ...]:  # fmt: skip
    """Return the names of layers that give rows other bits in a batch than in chunks of so many rows.

    Looks at ever wider batches for at most about `COMPARING_SECONDS`. Raises what `check_cancelled` raises.
    """
    network = getattr(sample.model, "diffusion_model", None)
    if not isinstance(network, torch.nn.Module):
        return ()
    found, began = VaryingLayers(network, chunk_rows), now()
    row_seconds = 0.0
    for width in candidates(max_rows, sample.num_rows):
        is_due = width >= chunk_rows and now() - began + 2 * width * row_seconds < COMPARING_SECONDS
        if not is_due or width % chunk_rows or not _fits(sample, width):
            continue
        x, sigmas, arguments = _varied(sample, width)
        check_cancelled()
        started = now()
        try:
            with found.compared():
                sample.model.apply_model(x, sigmas, **arguments)
        except Exception as error:  # noqa: BLE001 - the widths are measured without chunks, which shows it again
            log.warning("layers of a batch not compared: width=%d reason=%s", width, error)
            break
        row_seconds = (now() - started) / (2 * width)
    return found.names


class _Measurement:
    def __init__(
        self, sample: Evaluation, wait_for_device: Callable[[], None], check_cancelled: Callable[[], None],
        now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._sample = sample
        self._wait_for_device = wait_for_device
        self._check_cancelled = check_cancelled
        self._now = now

    def figures(self, max_rows: int) -> list[WidthFigure]:
        all_widths = candidates(max_rows, self._sample.num_rows)
        widths = self._affordable([width for width in all_widths if _fits(self._sample, width)])
        if not widths:
            return []
        rows = _varied(self._sample, widths[-1])
        began = self._now()
        figures: list[WidthFigure] = []
        known: list[torch.Tensor] = []  # the results of which no two are equal
        alone: torch.Tensor | None = None
        for width in widths:
            if figures and self._now() - began > BUDGET_SECONDS:
                break
            made = self._unless_it_fails(partial(self._compute, *rows, width), width)
            if made is None:
                break
            found, seconds, is_steady = made
            alone = found if alone is None else alone  # the first width is that without company
            error = relative_error(found, alone)
            bits = next((number for number, item in enumerate(known) if torch.equal(item, found)), len(known))
            if bits == len(known):
                known.append(found)
            figures.append(WidthFigure(width, seconds, bits if is_steady else None, error))
        for _ in range(ROUNDS):
            if self._now() - began > BUDGET_SECONDS:
                break
            figures = [replace(item, seconds=min(item.seconds, self._seconds(*rows, item.width))) for item in figures]
        return figures

    def _affordable(self, widths: Sequence[int]) -> list[int]:
        """Return the widths that the budget has time for, by the time of an evaluation of the sample itself.

        The first evaluation also chooses kernels and allocates: where its time leaves widths out, a second one counts.
        """
        sample, own_rows = self._sample, self._sample.num_rows
        left, seconds = list(widths), 0.0
        for _ in range(2):
            timed = self._unless_it_fails(partial(self._timed, sample.x, sample.sigmas, sample.arguments), own_rows)
            if timed is None:
                return []
            _, seconds = timed
            left = affordable(widths, own_rows, seconds / own_rows, BUDGET_SECONDS)
            if left == widths:
                break
        if left != widths:
            dropped = [width for width in widths if width not in left]
            about = "widths of batches too slow to measure: shape=%s rows=%d seconds=%.2f widths=%s"
            log.info(about, list(sample.x.shape[1:]), own_rows, seconds, dropped)
        return left

    def _unless_it_fails(self, work: Callable[[], T], width: int) -> T | None:
        """Return the result of `work`, None where the network fails. A failure of the run itself occurs again."""
        try:
            return work()
        except Interrupted:
            raise
        except Exception as error:  # noqa: BLE001 - the run can do without this width
            shape = list(self._sample.x.shape[1:])
            log.warning("width of a batch left out: width=%d shape=%s reason=%s", width, shape, error)
            return None

    def _timed(self, x: torch.Tensor, sigmas: torch.Tensor, arguments: OptionDict) -> tuple[torch.Tensor, float]:
        """Return an evaluation's result and its seconds."""
        self._check_cancelled()
        self._wait_for_device()
        began = self._now()
        out = self._sample.model.apply_model(x, sigmas, **arguments)
        self._wait_for_device()
        return out, self._now() - began

    def _compute(
        self, x: torch.Tensor, sigmas: torch.Tensor, arguments: OptionDict, width: int
    ) -> tuple[torch.Tensor, float, bool]:
        """Return the denoised rows, computed so many at a time, the seconds of the last evaluation, and steadiness.

        Steady is a width at which a row has the same bits at each place of the batch: shifted rows are evaluated, too.
        """
        num_rows = x.shape[0]
        chunks = [range(start, min(start + width, num_rows)) for start in range(0, num_rows, width)]
        found = torch.cat([self._rows(x, sigmas, arguments, width, chunk)[0] for chunk in chunks])
        shifted = _shifted(num_rows, width)
        again, seconds = self._rows(x, sigmas, arguments, width, shifted)
        return found, seconds, torch.equal(again, found[shifted])

    def _seconds(self, x: torch.Tensor, sigmas: torch.Tensor, arguments: OptionDict, width: int) -> float:
        return self._rows(x, sigmas, arguments, width, _shifted(x.shape[0], width))[1]

    def _rows(
        self, x: torch.Tensor, sigmas: torch.Tensor, arguments: OptionDict, width: int, rows: Sequence[int]
    ) -> tuple[torch.Tensor, float]:
        """Return some of the rows, denoised in one evaluation of that width, and its seconds."""
        missing = width - len(rows)
        given = joined_arguments([_rows_of(arguments, rows, x.shape[0])], missing)
        out, seconds = self._timed(padded([x[list(rows)]], missing), padded([sigmas[list(rows)]], missing), given)
        return out[: len(rows)], seconds


def _fits(sample: Evaluation, width: int) -> bool:
    needed = sample.model.memory_required([width, *sample.x.shape[1:]])
    return bool(needed * MEMORY_MARGIN < sample.patcher.free_bytes())


def _shifted(num_rows: int, width: int) -> list[int]:
    return [num_rows - 1, *range(width - 1)]


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
