"""Settings of the fallback: a ComfyUI for workflows that our engine cannot run."""

from __future__ import annotations

from typing import Annotated

from darkroom.worker.settings.section import PositiveSeconds, Section, env


class FallbackSettings(Section):
    """The fallback engine. `engine` empty: there is none."""

    engine: Annotated[str, env("FALLBACK_ENGINE")] = ""
    """A ComfyUI for workflows that our engine cannot run: its folder or the command that starts it, both with its flags
    behind, or the URL of one that runs ([fallback](engines.md#fallback))."""

    takes_failures: Annotated[bool, env("FALLBACK_ON_ERROR")] = False
    """Run a job once more on the fallback when it failed on our engine by a node's error."""

    idle_seconds: PositiveSeconds = 300.0
    """Seconds without a job after which the fallback's process is ended: longer than its start takes."""
