"""Check of the fallback engine: that it is there, and that its Python has what ComfyUI needs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from darkroom.worker.doctor.check import Check, failed, good, skipped
from darkroom.worker.engines.fallback.target import read_target
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.environment import child_environment

IMPORT_SECONDS: Final = 60.0
NEEDED: Final = "import aiohttp, numpy, safetensors, torch; print(torch.__version__)"
"""What ComfyUI cannot start without."""

VERSION: Final = re.compile(r"^__version__\s*=\s*\"([^\"]+)\"", re.MULTILINE)


def check_fallback(engine: str) -> Check:
    """Check the ComfyUI of FALLBACK_ENGINE. Runs its Python once, for some seconds."""
    if not engine:
        return skipped("fallback", "FALLBACK_ENGINE is not set: workflows with other nodes than ours are refused")
    try:
        target = read_target(engine)
    except SettingsInvalid as error:
        return failed("fallback", error.message, "docs/engines.md#fallback")
    if target.script is None:
        return good("fallback", f"Not tried: {target.url or target.program[0]}")
    try:
        done = subprocess.run(
            [target.program[0], "-c", NEEDED],
            capture_output=True,
            text=True,
            timeout=IMPORT_SECONDS,
            env=child_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return failed("fallback", f"{target.program[0]} does not run: {error}", "Install it anew")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        advice = f"{target.program[0]} -m pip install -r {target.script.parent / 'requirements.txt'}"
        return failed("fallback", f"Its Python lacks what ComfyUI needs: {reason}", advice)
    return good("fallback", f"ComfyUI {version_of(target.script.parent)} with torch {done.stdout.strip()}")


def version_of(folder: Path) -> str:
    """Return the version of the ComfyUI in a folder; `of unknown version` where it does not say."""
    try:
        found = VERSION.search((folder / "comfyui_version.py").read_text("utf-8"))
    except OSError:
        found = None
    return "of unknown version" if found is None else found[1]
