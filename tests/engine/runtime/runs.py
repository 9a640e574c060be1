"""Runs of graphs of small nodes, without torch: what tests of the runtime share."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from darkroom.contract.graph.signature import Signatures, unique_keys
from darkroom.engine.cancel import CancelToken
from darkroom.engine.events import Event
from darkroom.engine.nodes.base import NodeClass
from darkroom.engine.nodes.catalogue import Catalogue
from darkroom.engine.runtime.cache.classic import ClassicCache
from darkroom.engine.runtime.cache.instances import InstanceCache
from darkroom.engine.runtime.cache.store import ResultCache
from darkroom.engine.runtime.executor import run_nodes
from darkroom.engine.runtime.outputs import FileFolders, RunFiles
from darkroom.engine.runtime.request import RunRequest, RunResult
from darkroom.engine.runtime.run_services import RunServices


class NoFiles:
    """An environment without files, samplers and schedules."""

    def sampler_names(self) -> list[str]:
        return []

    def schedule_names(self) -> list[str]:
        return []

    def model_files(self, kind: str) -> list[str]:
        return []

    def model_problem(self, kind: str, name: str) -> None:
        return None

    def input_files(self, content: str) -> list[str]:
        return []

    def input_path(self, name: str) -> Path:
        return Path(name)

    def max_pixels(self) -> int:
        return sys.maxsize

    def free_bytes(self) -> int:
        return sys.maxsize


@dataclass(frozen=True)
class Relief:
    step: str
    freed_bytes: int = 0
    changes_arithmetic: bool = False


@dataclass
class Bench:
    """An engine's run-time part: the same cache over several runs. `events` are those of the last one."""

    folder: Path
    classes: Iterable[NodeClass]
    results: ResultCache = field(default_factory=ClassicCache)
    events: list[Event] = field(default_factory=list)
    wants_previews: bool = False
    relieved: int = 0
    when_relieved: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.catalogue = Catalogue(self.classes)
        self.instances = InstanceCache()
        self.files = FileFolders(*(self.folder / name for name in ("input", "output", "temp")))
        self._unique = unique_keys(b"")
        self._ids = (str(number) for number in itertools.count())

    def run(
        self,
        prompt: dict[str, Any],
        *outputs: str,
        cancel: CancelToken | None = None,
        on_event: Callable[[Event], None] | None = None,
        extra_data: dict[str, Any] | None = None,
    ) -> RunResult:
        self.events = []
        token = cancel or CancelToken()

        def tell(event: Event) -> None:
            self.events.append(event)
            if on_event is not None:
                on_event(event)

        request = RunRequest(next(self._ids), prompt, outputs, extra_data or {}, self.wants_previews)
        with ThreadPoolExecutor(2) as pool:
            return asyncio.run(run_nodes(request, self._services(pool), token, tell))()

    def _services(self, pool: ThreadPoolExecutor) -> RunServices:
        return RunServices(
            find_class=self.catalogue.get,
            environment=NoFiles(),
            results=self.results,
            instances=self.instances,
            signatures=lambda find_node, find_rules: Signatures(find_node, find_rules, self._unique),
            models=None,
            open_files=lambda: RunFiles(self.files, pool),
            device_errors=nullcontext,
            relief=self._relief,
            relieved=lambda: None,
            file_is_there=self.files.has,
            make_preview=lambda latent, latent_format: (bytes(latent), "image/png"),
        )

    def _relief(self) -> Iterator[Relief]:
        for step in ("caches", "other_models"):
            self.relieved += 1
            self.when_relieved()
            yield Relief(step)

    def of(self, kind: type[Any]) -> list[Any]:
        """The last run's events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def story(self) -> list[str]:
        """The last run's events in short: what happened and to which node."""
        return [
            f"{type(event).__name__} {event.node.node_id}" if hasattr(event, "node") else type(event).__name__
            for event in self.events
        ]
