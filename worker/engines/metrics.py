"""Metrics of the engines for `/metrics`: what the front knows of each, and what each reports itself.

The label `engine` is the engine's place in the list, which stays the same over restarts; `darkroom_engine_address_info`
has its address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from darkroom.host.processor import process_seconds
from darkroom.worker.engines.loss import LossReason
from darkroom.worker.engines.watch import EngineReport, EngineState

UP = (EngineState.UP, EngineState.DRAINING, EngineState.STOPPING)
OF_ENGINES = re.compile(r"darkroom_(engine_info$|memory_|model_|run|nodes|sampling_)")
"""Names of what engines report themselves. Custom nodes run in an engine: it adds nothing under other names."""

OF_THE_FRONT = frozenset({"darkroom_memory_available_bytes", "darkroom_memory_total_bytes"})
FALLBACK = "fallback"
"""Label of the fallback engine, while it is started."""

MAX_TEXT_LENGTH = 500_000


class EngineMetrics(Collector):
    """Metrics of every engine, the fallback among them. Those that an engine reports itself are set by `show`."""

    def __init__(
        self, reports: Callable[[], Sequence[EngineReport]], fallback: Callable[[], EngineReport | None] = lambda: None
    ) -> None:
        self._reports = reports
        self._fallback = fallback
        self._reported: dict[int, list[Metric]] = {}

    def describe(self) -> Iterable[Metric]:
        return ()  # no engine has reported yet at registration

    def show(self, texts: Mapping[int, str]) -> None:
        """Replace the metrics that engines have reported, in Prometheus' text format, by their index.

        A text that is too long or does not parse is left out.
        """
        self._reported = {index: parsed for index, text in texts.items() if (parsed := _parse(text))}

    def collect(self) -> Iterable[Metric]:
        yield from self._known_here()
        yield from self._reported_by_engines()

    def _known_here(self) -> Iterable[Metric]:
        up = _gauge("darkroom_engine_up", "1 when the engine takes prompts")
        state = _gauge("darkroom_engine_state", "1 at the engine's state", "state")
        address = _gauge("darkroom_engine_address_info", "1; address of the engine", "address")
        prompts = _gauge("darkroom_engine_prompts", "Prompts that the engine has")
        age = _gauge("darkroom_engine_heartbeat_age_seconds", "Time since the engine's last sign of life")
        quiet = _gauge("darkroom_engine_seconds_without_progress", "Time since the running prompt's last progress")
        size = _gauge("darkroom_engine_memory_bytes", "Anonymous and shared memory of the engine's process")
        spent = CounterMetricFamily(
            "darkroom_engine_cpu_seconds", "Processor time of the engine's process", labels=["engine"]
        )
        restarts = CounterMetricFamily(
            "darkroom_engine_restarts", "Engines replaced, by reason", labels=["engine", "reason"]
        )
        fallback = self._fallback()
        named = [(str(index), engine) for index, engine in enumerate(self._reports())]
        for name, engine in [*named, *([] if fallback is None else [(FALLBACK, fallback)])]:
            up.add_metric([name], 1 if engine.state in UP else 0)
            address.add_metric([name, engine.url], 1)
            prompts.add_metric([name], engine.num_prompts)
            for each in EngineState:
                state.add_metric([name, each.value], engine.state is each)
            for family, value in (
                (age, engine.heartbeat_age_seconds),
                (quiet, engine.quiet_seconds or 0),
                (size, engine.memory_bytes),
                (spent, None if engine.pid is None else process_seconds(engine.pid)),
            ):
                if value is not None:
                    family.add_metric([name], value)
            for reason in LossReason:
                restarts.add_metric([name, reason.value], engine.restarts.get(reason, 0))
        return [up, state, address, prompts, age, quiet, size, spent, restarts]

    def _reported_by_engines(self) -> Iterable[Metric]:
        merged: dict[str, Metric] = {}
        for index, families in self._reported.items():
            for family in families:
                into = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    into.add_sample(sample.name, {**sample.labels, "engine": str(index)}, sample.value)
        return merged.values()


def _parse(text: str) -> list[Metric]:
    if len(text) > MAX_TEXT_LENGTH:
        return []
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, IndexError):  # the parser's own for a label without a name
        return []
    return [family for family in families if OF_ENGINES.match(family.name) and family.name not in OF_THE_FRONT]


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, labels=["engine", *labels])
