"""Values that sampling takes of the run that it is a part of."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import torch

from darkroom.engine.cancel import CancelToken, Work, check_cancelled, not_cancelled
from darkroom.engine.diffusion.noise import prepare_noise
from darkroom.engine.diffusion.replacements import replacement_of
from darkroom.engine.diffusion.sampling_run import PLAIN, SamplingRun, run_in, sampling_run


class Recorded:
    """A record that has no answers yet; `runs` has what evaluations find as their run."""

    def evaluate(
        self, sides: Sequence[object], x: torch.Tensor, compute: Callable[[], list[torch.Tensor]]
    ) -> list[torch.Tensor]:
        return [answer + 1 for answer in compute()]


def test_runs_on_two_threads_find_their_own() -> None:
    barrier = Barrier(2)

    def found(run: SamplingRun) -> list[SamplingRun]:
        with run.current():
            barrier.wait(60)
            first = sampling_run()
            barrier.wait(60)
            return [first, sampling_run()]

    runs = [SamplingRun(), SamplingRun()]
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(found, runs))
    assert [[item is run for item in result] for result, run in zip(results, runs, strict=True)] == [[True, True]] * 2
    assert sampling_run() is PLAIN


def test_a_replacement_is_called_within_its_run_alone() -> None:
    def own(*args: object) -> torch.Tensor:
        return torch.full((1,), 7.0)

    latent = torch.zeros(1, 4, 2, 2)
    with SamplingRun(replacements={prepare_noise: own}).current():
        assert replacement_of(prepare_noise) is own
        assert prepare_noise(latent, 1).item() == 7.0
    assert prepare_noise(latent, 1).shape == latent.shape


def test_what_an_evaluation_evaluates_itself_is_not_recorded() -> None:
    run = SamplingRun(record=Recorded())
    x = torch.zeros(1)

    def inner(options: object) -> list[torch.Tensor]:
        assert isinstance(options, dict) and run_in(options).record is None
        return run_in(options).answers([None], x, options, lambda _: [x])

    options = run.in_options({"other": 1})
    assert run_in(options) is run
    assert run.answers([None], x, options, inner)[0].item() == 1.0, "recorded once"


def test_options_that_a_node_copies_have_the_same_run() -> None:
    run = SamplingRun(record=Recorded())
    assert run_in(copy.deepcopy(run.in_options({"a": [1]}))) is run
    assert run_in({}) is PLAIN


def test_work_for_other_runs_is_not_cancelled_and_keeps_its_own_run() -> None:
    cancel = CancelToken()
    run = SamplingRun(cancel=cancel, choices="mine")
    cancel.cancel()
    with run.current(), not_cancelled():
        check_cancelled()
        assert sampling_run().choices == "mine"
    with Work().current():
        assert sampling_run() is PLAIN


def test_without_strategies_work_is_done_once_by_the_run_itself() -> None:
    run = SamplingRun()
    assert run.attempt(None, lambda own: own) is run
    assert replace(run, choices="other").attempt_stream(None, lambda own: (item for item in (1, 2))) is not None
