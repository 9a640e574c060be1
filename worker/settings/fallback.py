"""Settings of the fallback: a ComfyUI for workflows that our engine cannot run."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from darkroom.worker.settings.engines import split_shell_words
from darkroom.worker.settings.section import PositiveSeconds, Section, env


class FallbackSettings(Section):
    """The fallback engine. `engine` empty: there is none."""

    engine: Annotated[str, env("FALLBACK_ENGINE")] = ""
    """A ComfyUI for workflows that our engine cannot run: its folder, the command that starts it, or the URL of one
    that runs ([fallback](engines.md#fallback))."""

    arguments: Annotated[tuple[str, ...], BeforeValidator(split_shell_words), env("FALLBACK_ARGS")] = ()
    """Flags for the ComfyUI of `FALLBACK_ENGINE`, as in a shell."""

    idle_seconds: Annotated[PositiveSeconds, env("FALLBACK_IDLE_SECONDS")] = 300.0
    """Seconds without a job after which the fallback's process is ended. It is started again when it is needed."""

    takes_failures: Annotated[bool, env("FALLBACK_ON_ERROR")] = False
    """Run a job once more on the fallback when it failed on our engine by a node's or a model's error."""
