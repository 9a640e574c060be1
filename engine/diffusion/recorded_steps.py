"""The point at which evaluations of a sampling run are recorded, and given again to a run that resumes.

A sampler is a function of its start, its levels, the network's answers and the random numbers it draws. Given the same
answers again it makes the same steps, whatever it remembers between them. So the answers are what is recorded, and
every sampler resumes to the bit, those of node packs among them. `engine/runtime/resume` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from engine.diffusion.conditions import Condition
from engine.diffusion.options import Options
from engine.diffusion.wrappers import APPLY_MODEL, CALC_COND_BATCH, DIFFUSION_MODEL

BELOW_RECORD = (CALC_COND_BATCH, APPLY_MODEL, DIFFUSION_MODEL)  # wrappers that a recorded answer leaves out
OWN_CODE = "engine."
REMEMBERING = "engine.diffusion.step_cache"


@dataclass(frozen=True, slots=True)
class SamplingStart:
    """Start of a sampling run: unit noise and the scaled latent `[B, C, h, w]`, levels `[steps + 1]`.

    `obstacle` is the reason why its evaluations cannot be answered from a record, empty if they can.
    """

    noise: torch.Tensor
    latent_image: torch.Tensor
    sigmas: torch.Tensor
    denoise_mask: torch.Tensor | None
    seed: int | None
    sampler: str
    obstacle: str = ""


class EvaluationRecord(Protocol):
    """Record of one sampling run."""

    def evaluate(
        self, sides: Sequence[object], x: torch.Tensor, compute: Callable[[], list[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Return the recorded answer to this evaluation, else what `compute` returns, which is then recorded.

        Of `sides` those that are None have the answer 0.
        """
        ...


class RunRecording(Protocol):
    """Records of the sampling runs of one prompt."""

    def sampling(self, start: SamplingStart) -> AbstractContextManager[EvaluationRecord | None]:
        """Return the context in which a run samples; it yields None for a run that is not recorded."""
        ...


_RECORDING: ContextVar[RunRecording | None] = ContextVar("run_recording", default=None)
_RECORD: ContextVar[EvaluationRecord | None] = ContextVar("evaluation_record", default=None)


@contextmanager
def recording_active(recording: RunRecording | None) -> Iterator[None]:
    """Record sampling runs while the context is open, in its thread and in the tasks it starts."""
    token = _RECORDING.set(recording)
    try:
        yield
    finally:
        _RECORDING.reset(token)


def recorded_sampling(start: Callable[[], SamplingStart]) -> AbstractContextManager[None]:
    """Return the context in which a sampler runs. `start` is called only where runs are recorded."""
    recording = _RECORDING.get()
    return nullcontext() if recording is None else _entered(recording, start())


@contextmanager
def _entered(recording: RunRecording, start: SamplingStart) -> Iterator[None]:
    with recording.sampling(start) as record:
        token = _RECORD.set(record)
        try:
            yield
        finally:
            _RECORD.reset(token)


def is_recording() -> bool:
    """Return True where evaluations are recorded."""
    return _RECORD.get() is not None


def recorded(sides: Sequence[object], x: torch.Tensor, compute: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    """Return the answers of an evaluation, from the current record or by `compute`."""
    record = _RECORD.get()
    if record is None:
        return compute()
    token = _RECORD.set(None)  # what an evaluation evaluates itself is a part of it
    try:
        return record.evaluate(sides, x, compute)
    finally:
        _RECORD.reset(token)


def obstacle_to_record(options: Options, conditions: Sequence[Sequence[Condition]]) -> str:
    """Return what may remember something between evaluations below the record, or "".

    What nodes of ours put there remembers nothing, but for EasyCache. Of a pack's code it is not known.
    """
    if any(condition.get("hooks") is not None for side in conditions for condition in side):
        return "conditions have hooks, which follow the steps"
    inner = options.get("transformer_options", {})
    for kind in BELOW_RECORD:
        wrappers = [wrapper for found in inner.get("wrappers", {}).get(kind, {}).values() for wrapper in found]
        if any(not _is_own(wrapper) or _module_of(wrapper) == REMEMBERING for wrapper in wrappers):
            return f"the model has wrappers of {kind}"
    wrapper = options.get("model_function_wrapper")
    patches = [patch for found in inner.get("patches", {}).values() for patch in found]
    replaced = [patch for found in inner.get("patches_replace", {}).values() for patch in found.values()]
    for function in (wrapper, *patches, *replaced):
        if function is not None and not _is_own(function):
            return "a node pack has put a function into the network"
    return ""


def _is_own(function: Any) -> bool:
    return _module_of(function).startswith(OWN_CODE)


def _module_of(function: Any) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__)
