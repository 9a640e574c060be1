"""Command `darkroom doctor`: every check of the machine and the settings, each with what to do."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

import structlog
from rich.console import Console
from rich.markup import escape

from darkroom.worker.doctor.check import Check, Status, failed, has_failed
from darkroom.worker.doctor.examination import examine
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.environment import load_settings

COLOURS = {Status.GOOD: "green", Status.WARNING: "yellow", Status.FAILED: "red", Status.SKIPPED: "dim"}


def examine_here() -> list[Check]:
    """Read the settings and run every check; where the settings do not parse, that is the only one."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        loaded = load_settings()
    except SettingsInvalid as error:
        return [failed("settings", error.message, "docs/settings.md lists every variable with what it takes")]
    return asyncio.run(examine(loaded.settings, loaded.warnings))


def show_checks(checks: Sequence[Check], *, is_json: bool) -> int:
    """Print the checks; return the exit code, 1 where one has failed."""
    console = Console(highlight=False, soft_wrap=True)
    if is_json:
        console.out(json.dumps([check.as_json() for check in checks], indent=2))
    else:
        for check in checks:
            colour = COLOURS[check.status]
            console.print(f"[{colour}]{check.status.value:8}[/] {check.name:11} {escape(check.detail)}")
            if check.remedy:
                console.print(f"{'':20} -> {escape(check.remedy)}")
    return 1 if has_failed(list(checks)) else 0
