"""Means that runs take from their engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from darkroom.contract.graph.signature import Signatures
from darkroom.engine.events import EncodedPreview
from darkroom.engine.nodes.base import NodeEnvironment
from darkroom.engine.runtime.cache.instances import InstanceCache
from darkroom.engine.runtime.cache.providers import CacheProviders
from darkroom.engine.runtime.cache.store import ResultCache
from darkroom.engine.runtime.outputs import RunFiles
from darkroom.engine.runtime.run_graph import FindClass


class ReliefTaken(Protocol):
    """A step that was taken to make room (`engine/memory/relief.py`)."""

    @property
    def step(self) -> str: ...

    @property
    def freed_bytes(self) -> int: ...

    @property
    def changes_arithmetic(self) -> bool: ...


def no_company(is_given_up: Callable[[], bool]) -> AbstractContextManager[bool]:
    """Return the context of a run beside which no other runs."""
    return nullcontext(False)


@dataclass(frozen=True, slots=True)
class RunServices:
    """Means that a run takes from its engine.

    `device_errors` is entered around node calls and raises a device's errors as ours. `relief` takes one step after the
    other to make room, for a node that one of them said had too little memory; `relieved` ends what its steps changed.
    `begin_node` (id, class) is called before each node, `taken_by_node` after it: what it has done itself for want of
    memory. `make_preview` turns what a node reports
    (`NodeContext.report_preview`) into an encoded image and its media type, or None. `file_is_there` says whether a
    file that a kept result shows still exists. `alone` waits until no other run is inside of a node, or its argument
    returns True, and yields whether there was one. `hold_place` keeps the place of a run, by its prompt, for the one
    that continues it. `cache_providers` have results that packs keep outside of the engine.
    """

    find_class: FindClass
    environment: NodeEnvironment
    results: ResultCache
    instances: InstanceCache
    signatures: Callable[..., Signatures]
    models: Any
    open_files: Callable[[], RunFiles]
    device_errors: Callable[[], AbstractContextManager[None]]
    relief: Callable[[], Iterator[ReliefTaken]]
    relieved: Callable[[], None]
    file_is_there: Callable[[Mapping[str, Any]], bool]
    begin_node: Callable[[str, str], None] = lambda node_id, class_type: None
    taken_by_node: Callable[[], Sequence[ReliefTaken]] = tuple
    make_preview: Callable[[Any, Any], EncodedPreview | None] = lambda preview, latent_format: None
    alone: Callable[[Callable[[], bool]], AbstractContextManager[bool]] = no_company
    hold_place: Callable[[str], None] = lambda prompt_id: None
    embed_metadata: bool = True
    cache_providers: CacheProviders = field(default_factory=CacheProviders)
