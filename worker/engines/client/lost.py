"""Errors of prompts that an engine does not have any more."""

from __future__ import annotations

from darkroom.worker.engines.loss import Loss, LossReason
from darkroom.worker.errors import EngineUnreachable


class EngineLost(EngineUnreachable):
    """Error for an engine that went away while it had a prompt of ours. `was_running`: the prompt had begun.

    `is_culprit`: the prompt caused the loss. `is_suspect`: this one or another one there did. `is_bystander`: the
    prompt had begun, and another one caused the loss.
    """

    code = "engine_lost"

    def __init__(
        self,
        message: str,
        *,
        was_running: bool = False,
        loss: Loss | None = None,
        is_culprit: bool = False,
        is_suspect: bool = False,
        is_bystander: bool = False,
    ) -> None:
        super().__init__(message, was_running=was_running)
        self.was_running = was_running
        self.loss = loss or Loss(LossReason.GONE)
        self.is_culprit = is_culprit
        self.is_suspect = is_suspect
        self.is_bystander = is_bystander


class PromptRecalled(EngineLost):
    """Error for a prompt that was recalled before it began, because it can begin sooner elsewhere."""

    code = "prompt_recalled"
