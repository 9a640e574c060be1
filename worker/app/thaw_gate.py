"""Gate at which a front waits for a snapshot of its process, and in each copy for the word to go on.

Before the gate the front's modules are imported and nothing else is done: no setting read, no port taken, no key drawn,
no lease held. Whatever distinguishes one worker from another is made after it, in each copy anew.
"""

from __future__ import annotations

import gc
import importlib
import random
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from darkroom.worker.app.integrations import DEFAULTS
from darkroom.worker.errors import SettingsInvalid

LOOK_SECONDS = 0.02
MAX_BYTES = 1 << 20
FROZEN_ENDING = ".frozen"
IMPORTED = ("darkroom.worker.app.serve", "darkroom.worker.app.assembly", "darkroom.worker.app.application")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def wait_at_gate(gate: Path, *, sleep: Callable[[float], None] = time.sleep) -> dict[str, str]:
    """Import the front, wait until the file `gate` exists, and return the variables that it gives to this copy.

    `gate` with `.frozen` appended is written when a snapshot may be taken. Raises SettingsInvalid.
    """
    for name in (*IMPORTED, *DEFAULTS):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    try:
        gate.with_name(gate.name + FROZEN_ENDING).write_text("")
        while not gate.is_file():
            sleep(LOOK_SECONDS)
        text = gate.read_bytes()[:MAX_BYTES].decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"--thaw-file: {gate} cannot be used: {error}") from None
    random.seed()
    return dict(parse_variables(text))


def parse_variables(text: str) -> Mapping[str, str]:
    """Return the `NAME=value` lines of a text; empty ones and those that begin with `#` are left out.

    Raises SettingsInvalid for another line, by its number alone: it may hold a secret.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, sign, value = line.partition("=")
        if not sign or not _NAME.fullmatch(name.strip()):
            raise SettingsInvalid(f"--thaw-file: line {number} is not valid; expected NAME=value")
        found[name.strip()] = value.strip()
    return found
