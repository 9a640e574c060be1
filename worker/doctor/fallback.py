"""Check of the fallback engine: that it is there or answers, and that its Python has what ComfyUI needs."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Final

import httpx

from darkroom.worker.doctor.check import Check, failed, good, skipped, warning
from darkroom.worker.engines.fallback.target import FallbackTarget, read_target
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.guard.plain_responses import plain_body, plain_client
from darkroom.worker.json.values import object_at
from darkroom.worker.settings.environment import child_environment

IMPORT_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 5.0
NEEDED: Final = "import aiohttp, numpy, safetensors, torch; print(torch.__version__)"
"""Packages that ComfyUI cannot start without."""

VERSION: Final = re.compile(r"^__version__\s*=\s*\"([^\"]+)\"", re.MULTILINE)
UNKNOWN_VERSION: Final = "of unknown version"


async def check_fallback(engine: str) -> Check:
    """Check the ComfyUI of FALLBACK_ENGINE: its answer, or its Python, which is run once for some seconds."""
    if not engine:
        return skipped("fallback", "FALLBACK_ENGINE is not set: workflows with other nodes than ours are refused")
    try:
        target = await asyncio.to_thread(read_target, engine)
    except SettingsInvalid as error:
        return failed("fallback", error.message, "docs/engines.md#fallback shows how to name it")
    if not target.is_started_here:
        return await _check_answer(target.url)
    if target.script is None:
        return good("fallback", f"{target.program[0]} is there; it is started by the first job that needs it")
    return await asyncio.to_thread(_check_python, target, target.script)


async def _check_answer(url: str) -> Check:
    try:
        async with (
            plain_client(timeout=ANSWER_SECONDS, trust_env=False) as http,
            http.stream("GET", f"{url}/system_stats") as reply,
        ):
            stats = httpx.Response(200, content=await plain_body(reply)).json()
        version = object_at(stats, "system").get("comfyui_version", UNKNOWN_VERSION)
    except (httpx.HTTPError, ValueError) as error:
        return warning("fallback", f"{url} does not answer as ComfyUI: {error or type(error).__name__}", "Start it")
    return good("fallback", f"ComfyUI {version} answers at {url}")


def _check_python(target: FallbackTarget, script: Path) -> Check:
    program = target.program[0]
    try:
        done = subprocess.run(
            [program, "-c", NEEDED], capture_output=True, text=True, timeout=IMPORT_SECONDS, env=child_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return failed("fallback", f"{program} does not run: {error}", "Install ComfyUI anew")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        remedy = f"{program} -m pip install -r {script.parent / 'requirements.txt'}"
        return failed("fallback", f"Its Python lacks what ComfyUI needs: {reason}", remedy)
    return good("fallback", f"ComfyUI {_version_of(script.parent)} with torch {done.stdout.strip()}")


def _version_of(folder: Path) -> str:
    try:
        found = VERSION.search((folder / "comfyui_version.py").read_text("utf-8"))
    except OSError:
        found = None
    return UNKNOWN_VERSION if found is None else found[1]
