"""The name under which the history reports the prompts that a prompt's own nodes queued, for front and engine."""

from __future__ import annotations

CONTINUED_BY = "continued_by"
"""Field of a history entry: the ids of the prompts that go on with what this one began."""
