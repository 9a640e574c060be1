"""A model store over a folder of small files, and the context of a call to a node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from darkroom.engine.cancel import CancelToken
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.store import ModelStore
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.runtime.outputs import FileFolders, RunFiles
from darkroom.engine.settings import EngineSettings


def small_store(models: Path) -> ModelStore:
    memory = ModelMemory(EngineSettings(cpu=True))
    return ModelStore(ModelFolders(models), memory.keep, LoadTypes())


def node_context(store: ModelStore, outputs: Path | None = None) -> NodeContext:
    """`outputs` is the folder that the node may save to."""
    files = None
    if outputs is not None:
        files = RunFiles(FileFolders(outputs, outputs, outputs), ThreadPoolExecutor(1))
    return NodeContext("1", "p", CancelToken(), lambda value, total: None, None, store, files)
