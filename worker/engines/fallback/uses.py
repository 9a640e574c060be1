"""FallbackUses: how often the fallback was chosen, by reason and node class: the list of what our engine lacks most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from darkroom.worker.engines.fallback.choice import EngineChoice

MAX_CLASSES = 500
"""Node classes that are counted by name: packs of the fallback may have thousands."""

OTHERS = "other"


class FallbackUses(Collector):
    """Counts of choices, as the metric `darkroom_fallback_jobs`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, choice: EngineChoice) -> None:
        """Count a job for each class that its choice is about, once without any."""
        for class_type in choice.class_types or ("",):
            key = choice.kind.value, class_type
            is_new = key not in self._counts and len(self._counts) >= MAX_CLASSES
            self._counts[(choice.kind.value, OTHERS) if is_new else key] += 1

    def collect(self) -> Iterable[Metric]:
        words = "Jobs given to the fallback engine, by the reason and the node class that it is about"
        family = CounterMetricFamily("darkroom_fallback_jobs", words, labels=["reason", "class_type"])
        for (reason, class_type), count in sorted(self._counts.items()):
            family.add_metric([reason, class_type], count)
        return [family]
