"""A model store over a folder of small files, and the context of a call to a node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.cancel import CancelToken
from engine.checkpoints.load import LoadTypes
from engine.memory.model_memory import ModelMemory
from engine.nodes.base import NodeContext
from engine.runtime.outputs import FileFolders, RunFiles
from engine.settings import EngineSettings
from engine.store.folders import ModelFolders
from engine.store.model_store import ModelStore


def small_store(models: Path) -> ModelStore:
    memory = ModelMemory(EngineSettings(cpu=True))
    return ModelStore(ModelFolders(models), memory.keep, LoadTypes())


def node_context(store: ModelStore, outputs: Path | None = None) -> NodeContext:
    """`outputs` is the folder that the node may save to."""
    files = None
    if outputs is not None:
        files = RunFiles(FileFolders(outputs, outputs, outputs), ThreadPoolExecutor(1))
    return NodeContext("1", "p", CancelToken(), lambda value, total: None, None, store, files)
