"""Choice among measured strategies: each is added where the image stays close enough and the speed rises. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from darkroom.engine.tuning.outcome import Choice, Figure
from darkroom.engine.tuning.quality import Quality

TIME_OVER = "not measured: the time for tuning was over"
CERTAIN = "used wherever it fits: it leaves out work"
ROUNDING_MARGIN = 2.0
"""Errors up to this many times that of one number rounded otherwise are no departure from the plain path: where numbers
have eight bits (bfloat16), any other order of additions makes more than the tolerance of parity."""
LEAST_GAIN = 1.03  # less than this is noise, and not worth a departure from the plain path

Names = tuple[str, ...]


class Candidate(Protocol):
    """Description of a strategy for the choice."""

    @property
    def name(self) -> str: ...
    @property
    def quality(self) -> Quality: ...
    @property
    def conflicts(self) -> frozenset[str]: ...
    @property
    def is_certain(self) -> bool: ...
    @property
    def certain_error(self) -> float: ...
    @property
    def is_graded(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps a second with the strategies and with those before, in turns, and the error against the plain path.

    `error` is a relative L2 distance, 0.0 for equal bits. `rounding_error` is that of the plain path itself with one
    number of its input rounded otherwise, 0.0 where it was not measured. `failure` says why the strategies did not run.
    Rates that are not `is_of_steps` are of decoding, and say nothing about the steps of a run.
    """

    it_per_s: float = 0.0
    before_it_per_s: float = 0.0
    error: float = 0.0
    failure: str | None = None
    is_of_steps: bool = True
    rounding_error: float = 0.0

    def is_too_far(self, quality: Quality) -> bool:
        """Return True where the error is more than a quality allows."""
        return not self.error <= self.most_error(quality)  # NaN is more than any tolerance

    def most_error(self, quality: Quality) -> float:
        """Return the largest error that a quality allows."""
        rounding = 0.0 if quality is Quality.EXACT else self.rounding_error * ROUNDING_MARGIN
        return max(quality.tolerance, rounding)


Measure = Callable[[Names, Names], Measured]
"""(strategies, those before the last was added) -> figures."""


def choose(
    candidates: Sequence[Candidate], measure: Measure, excluded: Mapping[str, str]
) -> tuple[list[Figure], dict[Quality, Choice]]:
    """Measure the candidates in their order and choose for each quality, the closest first.

    The strategies of a closer quality are the base of the next. `excluded` gives the reasons of those that are not to
    be measured. One that does not go with some that were chosen is measured against them, and takes their place where
    it is faster, unless they are certain. One that is graded, and whose error is more than its quality allows, is
    measured once more for the next, after the candidates of that one.
    """
    figures: dict[str, Figure] = {}
    choices: dict[Quality, Choice] = {}
    base = Choice()
    too_far: list[Candidate] = []
    certain = frozenset(item.name for item in candidates if item.is_certain)
    for quality in Quality:
        asked = [*(item for item in candidates if item.quality is quality), *too_far]
        too_far = []
        for candidate in asked:
            figure, base, is_too_far = _try(candidate, quality, base, measure, excluded.get(candidate.name), certain)
            figures[candidate.name] = figure
            if candidate.is_graded and is_too_far:
                too_far.append(candidate)
        choices[quality] = base
    return list(figures.values()), choices


def _try(
    candidate: Candidate, quality: Quality, base: Choice, measure: Measure, reason: str | None, certain: Collection[str]
) -> tuple[Figure, Choice, bool]:
    """Return the candidate's figure, the choice with it where it is chosen, and True where its error is too large."""
    name = candidate.name
    opposed = [other for other in base.names if other in candidate.conflicts]
    beside = tuple(other for other in base.names if other not in opposed)
    if reason is None and (candidate.is_certain or any(other in certain for other in opposed)) and opposed:
        reason = f"does not go with {opposed[0]}, which was chosen"
    if reason is not None:
        return Figure(name, quality, False, reason), base, False
    if candidate.is_certain:
        unmeasured = Choice((*base.names, name), base.it_per_s, max(base.error, candidate.certain_error))
        return Figure(name, quality, True, CERTAIN), unmeasured, False
    found = measure((*beside, name), base.names)
    if found.failure is not None:
        return Figure(name, quality, False, found.failure), base, False
    is_chosen, reason = judge(found, quality)
    if is_chosen:  # once more: what other load made look faster is not so twice
        again = measure((*beside, name), base.names)
        if again.failure not in (None, TIME_OVER):
            return Figure(name, quality, False, str(again.failure)), base, False
        found = again if again.failure is None and _gain(again) < _gain(found) else found
        is_chosen, reason = judge(found, quality)
    if opposed:
        reason = f"{reason}; measured in the place of {', '.join(opposed)}"
    figure = Figure(name, quality, is_chosen, reason, found.it_per_s, found.before_it_per_s, found.error)
    if not is_chosen:
        return figure, base, found.is_too_far(quality)
    rate = found.it_per_s if found.is_of_steps else base.it_per_s
    return figure, Choice((*beside, name), rate, found.error if found.is_of_steps else base.error), False


def judge(found: Measured, quality: Quality) -> tuple[bool, str]:
    """Return the decision, True for a strategy that is chosen, and the reason."""
    if found.is_too_far(quality):
        if quality is Quality.EXACT:
            return False, f"other bits than the plain path's: error {found.error:.2g}"
        return False, f"error {found.error:.2g} is more than {found.most_error(quality):.2g}"
    gain = _gain(found)
    if gain < LEAST_GAIN:
        return False, f"{gain:.2f} x the speed without it, less than {LEAST_GAIN}"
    return True, f"{gain:.2f} x the speed without it"


def _gain(found: Measured) -> float:
    return found.it_per_s / found.before_it_per_s
