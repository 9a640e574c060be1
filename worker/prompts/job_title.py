"""Title of a job: the prompt that its graph was given, for people who look for it. Pure."""

from __future__ import annotations

from typing import Final

from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.workflows.form import polarities_of

TEXTS: Final = ("text", "prompt", "positive_prompt", "text_g", "t5xxl", "clip_l", "tags", "lyrics", "value", "string")
"""Names of inputs that hold a prompt, the likeliest first."""

MAX_TITLE_LENGTH: Final = 300


def title_of(prompt: JsonObject) -> str:
    """Return the longest text that reaches a `positive` input, else that of any node but negative ones; "" without."""
    polarities = polarities_of(prompt)
    positive, other = "", ""
    for node_id in prompt:
        reached = polarities.get(node_id, frozenset())
        text = _text_of(object_at(prompt, node_id, "inputs"))
        if "positive" in reached:
            positive = max(positive, text, key=len)
        elif not reached:
            other = max(other, text, key=len)
    return (positive or other)[:MAX_TITLE_LENGTH]


def _text_of(inputs: JsonObject) -> str:
    return next((text.strip() for name in TEXTS if isinstance(text := inputs.get(name), str) and text.strip()), "")
