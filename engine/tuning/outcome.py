"""Outcome of a measurement: figures of every strategy, and those chosen for each quality. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from darkroom.contract.quality import RETIRED, STRATEGIES
from darkroom.engine.tuning.quality import Quality

VERSION = 2  # 1: by the class of the network alone, whose shape is not known

log = logging.getLogger(__name__)

Fields = Mapping[str, Any]  # of a JSON object


@dataclass(frozen=True, slots=True)
class Figure:
    """Figures of one strategy on top of those chosen before it.

    `it_per_s` with it, `before_it_per_s` without it, measured in turns; `error` is the relative L2 distance of the
    latents from the plain path's. `reason` says why it was chosen or not.
    """

    name: str
    quality: Quality
    is_chosen: bool
    reason: str
    it_per_s: float | None = None
    before_it_per_s: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Strategies chosen for one quality, with their speed and error together."""

    names: tuple[str, ...] = ()
    it_per_s: float | None = None
    error: float = 0.0


PLAIN = Choice()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome for one network on one machine.

    `machine` identifies the device and the versions, `network` and `fingerprint` the class and the shape of the
    network, `vae` those of the VAE as one text, `workload` what was sampled. It says nothing about other networks.
    `concurrent_runs` is how many runs are fastest at a time, None where it was not measured.
    """

    machine: Mapping[str, str]
    network: str
    workload: Fields
    plain_it_per_s: float | None
    figures: tuple[Figure, ...]
    choices: Mapping[Quality, Choice]
    seconds: float = 0.0
    concurrent_runs: int | None = None
    fingerprint: str = ""
    vae: str = ""
    version: int = field(default=VERSION)

    @property
    def key(self) -> str:
        """Class and shape of the network as one text."""
        return f"{self.network}:{self.fingerprint}"

    def choice(self, quality: Quality) -> Choice:
        """Return the choice for a quality, or for the next closer one of an outcome from before there was that one."""
        closer = [item for item in Quality if quality.allows(item) and item in self.choices]
        return self.choices[closer[-1]] if closer else PLAIN

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "choices": {str(quality): asdict(choice) for quality, choice in self.choices.items()}}


def read_outcome(body: Fields) -> Outcome:
    """Parse the JSON form. Raises ValueError for anything else.

    A strategy that this version does not have is left out of the choices, with a warning.
    """
    try:
        if body["version"] != VERSION:
            raise ValueError(f"version: of another form; got {body['version']!r}, expected {VERSION}")
        figures = tuple(Figure(**{**item, "quality": Quality(item["quality"])}) for item in body["figures"])
        choices = {
            Quality(quality): Choice(_names(item["names"]), item["it_per_s"], float(item["error"]))
            for quality, item in body["choices"].items()
        }
        machine = {str(key): str(value) for key, value in body["machine"].items()}
        workload, plain = dict(body["workload"]), body["plain_it_per_s"]
        runs = None if body.get("concurrent_runs") is None else int(body["concurrent_runs"])
        network, fingerprint, vae = str(body["network"]), str(body["fingerprint"]), str(body["vae"])
        seconds = float(body["seconds"])
        return Outcome(machine, network, workload, plain, figures, choices, seconds, runs, fingerprint, vae)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"outcome: not complete; {type(error).__name__}: {error}") from None


def _names(names: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in (*STRATEGIES, *RETIRED)]
    if unknown:
        log.warning("strategies of an outcome left out: names=%s reason=this version has none such", ",".join(unknown))
    return tuple(name for name in names if name in STRATEGIES)
