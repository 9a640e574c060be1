"""All checks of one worker's settings and machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from darkroom.worker.doctor.check import Check, failed, good, skipped, warning
from darkroom.worker.doctor.device import check_device, check_driver, cuda_of_torch
from darkroom.worker.doctor.fallback import check_fallback
from darkroom.worker.doctor.files import check_models, check_packs, check_state
from darkroom.worker.doctor.machine import (
    check_clock,
    check_disk,
    check_limits,
    check_memory,
    check_ports,
    is_clock_synchronised,
)
from darkroom.worker.doctor.services import check_autoscaler, check_s3, check_webhook, clock_skews
from darkroom.worker.observe.gpu_sensors import list_gpus, read_driver
from darkroom.worker.observe.memory import MachineMemory
from darkroom.worker.settings.settings import Settings

log = structlog.get_logger("doctor")


async def examine(settings: Settings, warnings: Sequence[str], *, is_within_worker: bool = False) -> list[Check]:
    """Run every check, the slow ones at the same time; `warnings` are those of the settings.

    `is_within_worker`: the port and the state directory are this process's own. A check that breaks has failed.
    """
    base, state = settings.engine_launch().base_directory, settings.folders.state_path
    is_cpu = settings.engine.is_cpu or "--cpu" in settings.engine.arguments
    floors = settings.queue_limits()

    async def clock() -> Check:
        return check_clock(await clock_skews(settings), is_synchronised=is_clock_synchronised())

    engine: dict[str, Callable[[], Check | Awaitable[Check]]] = {
        "device": lambda: check_device(is_cpu=is_cpu, read_gpus=list_gpus),
        "driver": lambda: check_driver(is_cpu=is_cpu, read_driver=read_driver, torch_cuda=cuda_of_torch()),
        "models": lambda: check_models(base / "models"),
        "packs": lambda: check_packs(base / "custom_nodes"),
    }
    if settings.engine.urls:
        engine = {name: partial(skipped, name, "The engines of ENGINE_URL are not this machine's") for name in engine}
    checks: dict[str, Callable[[], Check | Awaitable[Check]]] = {
        "settings": lambda: check_settings(warnings),
        "device": engine["device"],
        "driver": engine["driver"],
        "disk": lambda: check_disk({"base": base, "state": state}, floors.min_free_disk_bytes),
        "memory": lambda: check_memory(MachineMemory(), floors.min_free_memory_bytes),
        "models": engine["models"],
        "packs": engine["packs"],
        "fallback": lambda: check_fallback(settings.fallback.engine),
        "state": lambda: check_state(state, is_within_worker=is_within_worker),
        "s3": lambda: check_s3(settings.s3, settings.network.private_hosts),
        "webhook": lambda: check_webhook(settings.webhook),
        "autoscaler": lambda: check_autoscaler(settings),
        "clock": clock,
        "ports": lambda: check_ports(settings, is_within_worker=is_within_worker),
        "limits": lambda: check_limits(settings.connections.max_connections),
    }
    return list(await asyncio.gather(*(_run(name, check) for name, check in checks.items())))


def check_settings(warnings: Sequence[str]) -> Check:
    """Check that the settings caused no warning."""
    if warnings:
        return warning("settings", "; ".join(warnings), "docs/settings.md lists every variable")
    return good("settings", "All variables are known and parse")


async def _run(name: str, check: Callable[[], Check | Awaitable[Check]]) -> Check:
    try:
        found: Check | Awaitable[Check] = await asyncio.to_thread(check)
        return found if isinstance(found, Check) else await found
    except Exception as error:  # noqa: BLE001 - one check: the others are shown without it
        log.warning("check failed", check=name, exc_info=error)
        return failed(name, f"The check itself failed: {type(error).__name__}", "Report it with the log's trace")
