"""Outcomes of tuning for tests whose subject is what a choice does, not which network it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from darkroom.engine import Engine
from darkroom.engine.tuning.outcome import Choice, Outcome
from darkroom.engine.tuning.quality import Quality


class OfEveryNetwork(dict[str, Outcome]):
    """Outcomes of which the latest holds for every network."""

    def get(self, key: str, default: object = None) -> Any:
        return next(reversed(self.values()))


def outcome_of(choices: Mapping[str, Sequence[str]], error: float = 0.0) -> dict[str, Any]:
    """An outcome in its JSON form, of a network that no engine has; `choices` are the strategies by quality."""
    chosen = {Quality(quality): Choice(tuple(names), 1.0, error) for quality, names in choices.items()}
    return Outcome({}, "UnetModel", {}, 1.0, (), chosen).as_json()


def use_everywhere(engine: Engine, choices: Mapping[str, Sequence[str]], error: float = 0.0, **fields: Any) -> None:
    """Have an engine use these strategies for every network, in place of what it had before."""
    engine.tuning.adopt(outcome_of(choices, error) | fields)
    engine.tuner._outcomes = OfEveryNetwork(engine.tuner._outcomes)
