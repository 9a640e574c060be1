"""The goals of the benchmarks, and the figures that they are compared with. Pure.

A figure is a path into a benchmark's JSON. A goal is a bound above (`most`) or below (`least`); one without either is
only shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Find = Callable[[Any], float | None]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure with its unit and its limits. `part` is the benchmark that measures it."""

    part: str
    about: str
    unit: str
    find: Find
    most: float | None = None
    least: float | None = None

    def is_met(self, value: float) -> bool | None:
        """Return True for a figure within its bound, None where there is no bound."""
        if self.most is None and self.least is None:
            return None
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)

    @property
    def bound(self) -> str:
        if self.most is not None:
            return f"≤ {self.most:g}"
        return "–" if self.least is None else f"≥ {self.least:g}"


def at(*path: str | int) -> Find:
    """The number at a path of keys and places; None where there is none."""

    def find(report: Any) -> float | None:
        value = report
        for key in path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return None
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    return find


def row(wanted: Mapping[str, object], name: str) -> Find:
    """The number `name` of the first of `rows` that has these values."""

    def find(report: Any) -> float | None:
        rows = report.get("rows", ()) if isinstance(report, Mapping) else ()
        return next((float(item[name]) for item in rows if wanted.items() <= item.items() and item.get(name)), None)

    return find


def gpu_row(label: str) -> Find:
    """The value of a line of the GPU benchmark's table."""

    def find(report: Any) -> float | None:
        rows = report.get("rows", ()) if isinstance(report, Mapping) else ()
        return next((float(item["value"]) for item in rows if item["label"] == label), None)

    return find


def gain(quality: str) -> Find:
    """Return the factor by which the strategies chosen for a quality speed up a step.

    It is the product of the gain of each over those before it, measured in turns: rates of the plain path and of all
    of them together are from different moments.
    """

    def find(report: Any) -> float | None:
        try:
            names, figures = report["outcome"]["choices"][quality]["names"], report["outcome"]["figures"]
        except (KeyError, TypeError):
            return None
        measured = [item for item in figures if item["name"] in names and item["it_per_s"] and item["before_it_per_s"]]
        return float(math.prod(item["it_per_s"] / item["before_it_per_s"] for item in measured))

    return find


GOALS: Sequence[Goal] = (
    Goal("engine_start", "engine, from start to the first answer", "s", at("ours", "first_answer_seconds"), most=0.5),
    Goal("engine_start", "engine, from start to the first prompt", "s", at("ours", "first_prompt_seconds"), most=1.7),
    Goal("front_start", "worker, from start to the first answer", "s", at("ours", "first_answer_seconds"), most=0.8),
    Goal(
        "node_cost", "a node of a fan of 799, cold", "µs", row({"way": "engine", "graph": "fan"}, "cold_us"), most=150
    ),
    Goal("node_cost", "the same, cached", "µs", row({"way": "engine", "graph": "fan"}, "cached_us"), most=30),
    Goal("generate_sync", "`/generate/sync`, one client, p50", "ms", row({"clients": 1}, "p50_ms"), most=15),
    Goal(
        "generate_sync", "`/generate/sync`, eight clients", "jobs/s", row({"clients": 8}, "jobs_per_second"), least=100
    ),
    Goal("generate_sync", "memory of the front after 100 jobs", "MB", at("front_mb_after_100_jobs"), most=100),
    Goal("demo_speed", "an image of the demo model", "s", at("picture_seconds"), most=3.0),
    Goal("shared_steps", "8 requests in one batch, times one at a time", "x", at("ratio"), least=1.5),
    *(
        Goal(
            "comfyui_speed",
            f"{label}, {precision}, times ComfyUI",
            "x",
            row({"family": family, "precision": precision}, "ratio"),
            least=2,
        )
        for family, label in (("sd15", "SD1.5"), ("sdxl", "layers of SDXL"), ("flux", "layers of Flux"))
        for precision in ("float32", "bfloat16")
    ),
    Goal("tuning", "strategies of `exact`, times the plain path", "x", gain("exact"), least=1),
    Goal("tuning", "strategies of `same`, times the plain path", "x", gain("same"), least=1),
    Goal("tuning", "strategies of `draft`, times the plain path", "x", gain("draft")),
    *(
        Goal("gpu", about, unit, gpu_row(label), least=least, most=most)
        for label, about, unit, least, most in (
            ("SD1.5 512², best", "SD1.5 512x512, guided", "it/s", 130, None),
            ("SDXL 1024², best", "SDXL 1024x1024, guided", "it/s", 26, None),
            ("Flux.1-dev 1024², best bf16", "a step of Flux.1-dev, 1024x1024, bfloat16", "s", None, 0.15),
            ("Flux.1-dev 1024², float8 products", "the same, float8", "s", None, 0.106),
            ("file to the device, warm", "file to the device", "GB/s", 5, None),
            ("families like the CPU in float32", "families like the CPU, share", "", 1, None),
            ("memory modes with equal bits", "memory modes with equal bits, share", "", 1, None),
            ("a lone request, shared, times alone", "a lone request where steps are shared, times alone", "x", 1, None),
        )
    ),
)


def compare(reports: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry a goal of a part that ran; `value` and `is_met` are None where its report lacks the figure."""
    found = []
    for goal in GOALS:
        if goal.part not in reports:
            continue
        value = goal.find(reports[goal.part])
        is_met = None if value is None else goal.is_met(value)
        entry = {"part": goal.part, "about": goal.about, "unit": goal.unit, "goal": goal.bound}
        found.append({**entry, "value": value, "is_met": is_met})
    return found


def table(entries: Sequence[Mapping[str, Any]], missing: Mapping[str, str]) -> str:
    """The figures beside their goals as a Markdown table, and below it the parts that did not run."""
    lines = ["| What | Figure | Goal | Met | Benchmark |", "| --- | --- | --- | --- | --- |"]
    for entry in entries:
        value = "–" if entry["value"] is None else f"{entry['value']:.3g} {entry['unit']}"
        met = {True: "yes", False: "no", None: "–"}[entry["is_met"]]
        lines.append(f"| {entry['about']} | {value} | {entry['goal']} | {met} | `{entry['part']}` |")
    lines += ["", *(f"`{part}` did not run: {reason}." for part, reason in missing.items())] if missing else []
    return "\n".join(lines)
