"""The engine: executes a graph of nodes and returns pictures.

`Engine`, its argument types and the error for a prompt that it refuses are imported on first access, so that
`import engine` does not require torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contract.errors import PromptRejected
    from engine.engine import Engine
    from engine.runtime.request import RunRequest, RunResult
    from engine.settings import EngineSettings

__all__ = ["Engine", "EngineSettings", "PromptRejected", "RunRequest", "RunResult"]

_HOMES = {
    "Engine": "engine.engine",
    "EngineSettings": "engine.settings",
    "PromptRejected": "contract.errors",
    "RunRequest": "engine.runtime.request",
    "RunResult": "engine.runtime.request",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
