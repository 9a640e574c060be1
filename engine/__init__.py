"""The engine: executes a graph of nodes and returns images.

`Engine`, its argument types and the error for a prompt that it refuses are imported on first access, so that
`import darkroom.engine` does not require torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from darkroom.contract.errors import PromptRejected
    from darkroom.engine.engine import Engine
    from darkroom.engine.runtime.request import RunRequest, RunResult
    from darkroom.engine.settings import EngineSettings

__all__ = ["Engine", "EngineSettings", "PromptRejected", "RunRequest", "RunResult"]

_HOMES = {
    "Engine": "darkroom.engine.engine",
    "EngineSettings": "darkroom.engine.settings",
    "PromptRejected": "darkroom.contract.errors",
    "RunRequest": "darkroom.engine.runtime.request",
    "RunResult": "darkroom.engine.runtime.request",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
