"""Demo checkpoint that ships with the engine: its defaults, its size, and the note in its results. Pure.

The user's checkpoints have priority. Only where there are none do the modifiers fall back on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from darkroom.worker.json.values import JsonObject

DEMO_CHECKPOINT: Final = "darkroom-emoji.safetensors"
# The training configuration. A modifier without one of these fields ignores it.
DEMO_DEFAULTS: Final[Mapping[str, Any]] = {"width": 128, "height": 128, "cfg_scale": 4.0}
DEMO_PROMPT: Final = "a red apple on a blue background"
NOTE: Final = (
    f"Drawn by the built-in demo model {DEMO_CHECKPOINT}, which knows some emoji at 128x128 and nothing else. "
    "Get a real one: `darkroom models fetch sd15`."
)


def defaults_among(names: Sequence[str], modifications: Mapping[str, object], own: str | None) -> dict[str, Any]:
    """Return the replacements of a modifier's own defaults for a request on a machine with these checkpoints.

    They are none if `own`, the modifier's checkpoint, is here; else the only checkpoint, else the demo model with its
    size. With several others they are none, so that the graph check names them.
    """
    asked = modifications.get("ckpt_name")
    if asked is not None:
        return dict(DEMO_DEFAULTS) if asked == DEMO_CHECKPOINT else {}
    if own is None or own in names:
        return {}
    others = [name for name in names if name != DEMO_CHECKPOINT]
    if len(others) == 1:
        return {"ckpt_name": others[0]}
    return {} if others or not names else {"ckpt_name": DEMO_CHECKPOINT, **DEMO_DEFAULTS}


def suited_example(example: Mapping[str, object], names: Sequence[str]) -> dict[str, Any]:
    """Return a modifier's example for a machine with these checkpoints.

    An example that names the demo model names another where there is one. Otherwise its subject and size are those
    of the demo model.
    """
    if example.get("ckpt_name") != DEMO_CHECKPOINT:
        return dict(example)
    others = [name for name in names if name != DEMO_CHECKPOINT]
    if others:
        return {**example, "ckpt_name": others[0]}
    suited = {key: value for key, value in example.items() if key not in ("width", "height", "negative_prompt")}
    return {**suited, "prompt": DEMO_PROMPT} if "prompt" in suited else suited


def note_on(prompt: JsonObject) -> str:
    """Return the note about the model in a finished result; "" for all but the demo model."""
    is_used = any(
        isinstance(node, Mapping) and DEMO_CHECKPOINT in (node.get("inputs") or {}).values() for node in prompt.values()
    )
    return f" {NOTE}" if is_used else ""
