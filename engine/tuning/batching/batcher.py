"""Owner of the evaluations that runs of one engine share, and of the networks that their sampling uses."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from darkroom.engine.cancel import CancelToken, not_cancelled
from darkroom.engine.diffusion.options import Network, OptionDict
from darkroom.engine.errors import OutOfMemory
from darkroom.engine.runtime.turns import Turns
from darkroom.engine.tuning.batching.chunks import in_chunks
from darkroom.engine.tuning.batching.evaluation import Evaluation
from darkroom.engine.tuning.batching.kinds import OPTIONS_KEY, joined_arguments, padded
from darkroom.engine.tuning.batching.measure import measure_widths, varying_layers
from darkroom.engine.tuning.batching.side_stream import SideStream
from darkroom.engine.tuning.batching.widths import WidthFigure, Widths, chosen
from darkroom.engine.tuning.strategy import PROMPTS_OF_ROWS, PromptRows

MAX_KINDS = 64  # whose widths are remembered
MOST_ROWS = 32
ROWS_A_RUN = 2  # of a guided evaluation

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class _NetworkUse:
    way: Hashable
    num_runs: int = 0
    waiting: list[object] = field(default_factory=list)


@dataclass(slots=True)
class BatchFigures:
    """Counts since the start: evaluations made for runs, the batches they were made in, and their rows with padding."""

    evaluations: int = 0
    batches: int = 0
    rows: int = 0
    padded_rows: int = 0


class StepBatcher:
    """Batches of evaluations of different runs. All but `figures` is called by the run that has the turn.

    `choose` decides from the measured widths, the rows of an evaluation without company and the error that is allowed.
    `now` is the clock, in seconds, by which widths are measured. `side` is None on a device without streams.
    """

    def __init__(
        self,
        turns: Turns,
        max_runs: int,
        wait_for_device: Callable[[], None],
        choose: Callable[[Sequence[WidthFigure], int, float], Widths] = chosen,
        now: Callable[[], float] = time.perf_counter,
        side: SideStream | None = None,
    ) -> None:
        self.choose = choose
        self.side = side
        self._now = now
        self.turns = turns
        self.figures = BatchFigures()
        self._max_rows = min(MOST_ROWS, max_runs * ROWS_A_RUN)
        self._wait_for_device = wait_for_device
        self._widths: OrderedDict[Hashable, Widths] = OrderedDict()
        self._uses: dict[Hashable, _NetworkUse] = {}
        self._lock = threading.Lock()
        # The same thread computes all: each thread has a team of OpenMP's of its own, and teams wait for one another.
        self._evaluator = ThreadPoolExecutor(1, thread_name_prefix="batch")

    def close(self) -> None:
        """End the threads that compute. For when nothing runs."""
        self._evaluator.shutdown()
        if self.side is not None:
            self.side.close()

    @property
    def has_company(self) -> bool:
        """Return True while more than one run is in progress."""
        return self.turns.num_runs > 1

    def are_measured(self, evaluation: Evaluation) -> bool:
        """Return True where the widths of a kind are there."""
        return evaluation.measured_as in self._widths

    @property
    def widths_in_use(self) -> list[Widths]:
        """Return the widths chosen for each kind of evaluation."""
        return list(self._widths.values())

    # --- networks ----------------------------------------------------------------------------------------------------

    @contextmanager
    def using(self, key: Hashable, way: Hashable, cancel: CancelToken) -> Iterator[None]:
        """Use a network in one way while the context is open; wait first until nobody uses it in another way.

        Who waits longer comes first, so that nobody waits for ever. Raises `Interrupted` for a run that is cancelled.
        """
        ticket = object()

        def is_due() -> bool:
            return cancel.is_cancelled or (use.waiting[0] is ticket and (use.way == way or not use.num_runs))

        use = self._uses.setdefault(key, _NetworkUse(way))
        use.waiting.append(ticket)
        try:
            self.turns.wait_until(is_due)
            cancel.check()
        finally:
            use.waiting.remove(ticket)
            if not use.num_runs and not use.waiting:
                self._uses.pop(key, None)
        self._uses[key] = use
        use.way = way
        use.num_runs += 1
        try:
            yield
        finally:
            use.num_runs -= 1
            if not use.num_runs and not use.waiting:
                self._uses.pop(key, None)

    def is_used(self, key: Hashable) -> bool:
        """Return True while a run uses the network, or waits for it."""
        return key in self._uses

    # --- evaluations -------------------------------------------------------------------------------------------------

    def widths_for(self, evaluation: Evaluation, cancel: CancelToken) -> Widths:
        """Return the widths of a kind, measured with its first evaluation; none that the network failed at.

        Raises `Interrupted` for a run that is cancelled meanwhile.
        """
        found = self._widths.get(evaluation.measured_as)
        if found is None:
            found = self._computed(lambda: self._measured(evaluation, cancel))
            self._widths[evaluation.measured_as] = found
            while len(self._widths) > MAX_KINDS:
                self._widths.popitem(last=False)
        self._widths.move_to_end(evaluation.measured_as)
        return found

    def _measured(self, evaluation: Evaluation, cancel: CancelToken) -> Widths:
        """Return the widths for a kind, with layers in chunks where that gives more of them a row's same bits."""
        chunk_rows = evaluation.num_rows
        layers: tuple[str, ...] = ()
        if not evaluation.tolerance:
            layers = varying_layers(evaluation, chunk_rows, self._max_rows, cancel.check, self._now)
        for names in dict.fromkeys((layers, ())):
            with _prepared(evaluation.model, names, chunk_rows):
                figures = measure_widths(evaluation, self._max_rows, self._wait_for_device, cancel.check, self._now)
            found = self.choose(figures, evaluation.num_rows, evaluation.tolerance)
            log.info(
                "widths of batches measured: shape=%s widths=%s layers_in_chunks=%d reason=%s figures=%s",
                list(evaluation.x.shape[1:]),
                list(found.widths),
                len(names),
                found.reason,
                [(item.width, round(item.seconds, 4), item.bits, float(f"{item.error:.2g}")) for item in figures],
            )
            if found.widths and names:
                return replace(found, layers=names, chunk_rows=chunk_rows)
        return found

    def _computed(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, called on the evaluating thread with the context of this one."""

        def inferring() -> T:
            with torch.inference_mode():
                return work()

        return self._evaluator.submit(copy_context().run, inferring).result()

    def evaluate(self, waiting: Sequence[Evaluation]) -> None:
        """Make all these evaluations, those of a kind in batches, and set their results or errors. Never raises."""
        self._computed(lambda: self._evaluate(waiting))

    def _evaluate(self, waiting: Sequence[Evaluation]) -> None:
        by_kind: dict[Hashable, list[Evaluation]] = {}
        for evaluation in waiting:
            by_kind.setdefault(evaluation.kind, []).append(evaluation)
        for group in by_kind.values():
            while group:
                batch = self._take_batch(group)
                error = self._try_to_make(batch)
                if error is not None:
                    self._make_each(batch, error)
                for evaluation in batch:
                    evaluation.is_over = True

    def _take_batch(self, group: list[Evaluation]) -> list[Evaluation]:
        """Take evaluations off the group, in their order, as many as are fastest in one batch."""
        own_rows = group[0].num_rows
        number = self._widths[group[0].measured_as].num_to_join(own_rows, len(group))
        batch = group[:number]
        del group[:number]
        return batch

    def _try_to_make(self, batch: Sequence[Evaluation]) -> BaseException | None:
        """Return the error of a batch; of one that is made again without the frames, which hold its memory."""
        try:
            self._make(batch)
        except BaseException as error:  # noqa: BLE001 - it is raised in the runs whose evaluation it is
            if len(batch) == 1:
                return error
            error.__cause__ = error.__context__ = None
            return error.with_traceback(None)
        return None

    def _make(self, batch: Sequence[Evaluation]) -> None:
        """Make the evaluations in one batch, padded to a width in use."""
        first, widths = batch[0], self._widths[batch[0].measured_as]
        num_rows = sum(item.num_rows for item in batch)
        width = widths.fitting(num_rows) if num_rows <= widths.most else num_rows
        missing = width - num_rows
        first.model.current_patcher = first.patcher
        first.patcher.begin_batch([width, *first.x.shape[1:]], is_split=False)
        shared = not_cancelled() if len(batch) > 1 else nullcontext()  # one run's end is not the others'
        with shared, _prepared(first.model, widths.layers, widths.chunk_rows):
            out = first.model.apply_model(
                padded([item.x for item in batch], missing),
                padded([item.sigmas for item in batch], missing),
                **_with_prompts(joined_arguments([item.arguments for item in batch], missing), batch),
            )
        parts = out[:num_rows].split([item.num_rows for item in batch])
        for item, part in zip(batch, parts, strict=True):
            item.result = part.clone()
        with self._lock:
            self.figures.evaluations += len(batch)
            self.figures.batches += 1
            self.figures.rows += num_rows
            self.figures.padded_rows += width

    def _make_each(self, batch: Sequence[Evaluation], error: BaseException) -> None:
        """Make each evaluation of a failed batch by itself, so that only the runs fail whose own evaluation fails."""
        key = batch[0].measured_as
        if isinstance(error, (OutOfMemory, torch.OutOfMemoryError)) and len(batch) > 1:
            self._widths[key] = self._widths[key].without(sum(item.num_rows for item in batch))
        if len(batch) == 1:
            batch[0].error = error
            return
        log.warning("a batch of %d evaluations failed (%s): each is made by itself", len(batch), error)
        for evaluation in batch:
            evaluation.error = self._try_to_make([evaluation])


def _with_prompts(arguments: OptionDict, batch: Sequence[Evaluation]) -> OptionDict:
    """Return the arguments of a batch with the conditions that its rows belong to."""
    given = [(item.num_rows, item.arguments[OPTIONS_KEY]) for item in batch]
    prompts = tuple(PromptRows(num, inner.get("uuids", ()), inner.get("cond_or_uncond", ())) for num, inner in given)
    return {**arguments, OPTIONS_KEY: {**arguments[OPTIONS_KEY], PROMPTS_OF_ROWS: prompts}}


def _prepared(model: Network, layers: Sequence[str], num_rows: int) -> AbstractContextManager[None]:
    """Return the context in which these layers of a model's network are computed so many rows at a time."""
    return in_chunks(model.diffusion_model, layers, num_rows) if layers else nullcontext()
