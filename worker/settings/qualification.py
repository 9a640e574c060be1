"""Settings of the start-up benchmark and of the warm-up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from darkroom.contract.quality import read_choice
from darkroom.worker.settings.section import LOWER, CommaList, PositiveSeconds, Seconds, Section, env

SidePixels = Annotated[int, Field(ge=64, le=16384, multiple_of=8)]


def _check_tuning(value: object) -> object:
    if isinstance(value, str):
        read_choice(value)
        return value.strip().lower() or "auto"
    return value


class BenchmarkConfig(Section):
    """Benchmark to run: `workflow`, else text-to-image at this size.

    `family` is a family of models by its name, empty for the engine's default one. A size that is None is the
    family's. A limit that is None does not apply.
    """

    whole: ClassVar[str] = "BENCHMARK_TEST"
    """Size to measure, `NAME=NUMBER` by commas: `BENCHMARK_TEST=width=768,height=768,steps=20`. Each has a variable of
    its own, too, which wins."""

    mode: Annotated[Literal["auto", "off"], LOWER, env("BENCHMARK")] = "auto"
    """`auto` or `off`: the start-up benchmark."""

    family: Annotated[str, env("BENCHMARK_FAMILY")] = ""
    """Family of models to measure, by its name in [models](models.md). Empty: the engine's default one."""

    width_px: Annotated[SidePixels | None, env("BENCHMARK_TEST_WIDTH", key="width")] = None
    """Width in pixels. Empty: the family's default, 512 for the default family."""

    height_px: Annotated[SidePixels | None, env("BENCHMARK_TEST_HEIGHT", key="height")] = None
    """Height in pixels. Empty: the family's default, 512 for the default family."""

    num_steps: Annotated[int | None, Field(ge=1, le=10000), env("BENCHMARK_TEST_STEPS", key="steps")] = None
    """Sampling steps. Empty: the family's default, 20 for the default family."""

    workflow: Annotated[Path | None, env("BENCHMARK_WORKFLOW", "BENCHMARK_JSON_PATH")] = None
    """A workflow file of your own to measure instead, or a request with a modifier. Empty: `benchmark.json` in the
    folder `misc` of, or beside, the base directory, if there is one. A checkpoint of the family, or random weights on a
    CPU or without one, is measured where there is neither."""

    max_seconds: Annotated[PositiveSeconds | None, env("BENCHMARK_MAX_SECONDS")] = None
    """More seconds an image are `slow`."""

    history: Annotated[Path | None, env("BENCHMARK_HISTORY")] = None
    """A file that the workers of a fleet share: results are added to it, and other workers are compared with its
    median."""

    on_fail: Annotated[Literal["error", "serve", "exit"], LOWER, env("BENCHMARK_ON_FAIL")] = "error"
    """On a bad verdict: `error` stays closed and tries again, `serve` serves anyway, `exit` ends with code 3."""

    tuning: Annotated[str, BeforeValidator(_check_tuning), env("TUNING")] = "auto"
    """Strategies that the engine may use to be faster, each only where it is measured to be and draws the same image:
    `auto`, `off`, or a comma list of names from [performance](performance.md)."""

    ttl_seconds: Annotated[Seconds, env("BENCHMARK_TTL")] = 86400.0
    """Seconds for which a good result is valid at later starts."""


def _check_preload(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name == "family:" or (name.startswith("recent:") and not re.fullmatch(r"recent:[1-9][0-9]{0,3}", name)):
            raise ValueError(f"{name}: expected a model, family:NAME or recent:NUMBER")
    return names


class WarmUpConfig(Section):
    """Warm-up before the worker counts as ready. `models` are names, each with or without its folder before it."""

    models: Annotated[Annotated[CommaList[str], AfterValidator(_check_preload)], env("PRELOAD_MODELS")] = ()
    """Comma list of models to read before ready and keep: `vae/x.safetensors`; without a folder, checkpoints.
    `family:NAME` is every file of the manifest of that family that is on disk, `recent:3` the three downloaded files
    that jobs of the last week named most often."""

    workflows: Annotated[CommaList[Path], env("WARMUP_WORKFLOWS")] = ()
    """Comma list of workflow files to run once before ready."""

    on_fail: Annotated[Literal["error", "serve"], LOWER, env("WARMUP_ON_FAIL")] = "serve"
    """Outcome of a failure of either: `serve` names it and serves, `error` stays closed and tries again."""
