"""Model files of no layout that the engine knows, read from their headers by a child process. Blocking."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence

from darkroom.start import command_of
from darkroom.worker.models.files import ModelFile

COMMAND = (*command_of("darkroom.engine"), "model-faults")
MOST_SECONDS = 600.0  # a disk on the network with thousands of files


class LayoutsUnread(Exception):
    """The layouts of files cannot be read; the message gives the reason."""


def find_unknown_layouts(models: Sequence[ModelFile]) -> Mapping[str, str]:
    """Return the problems of the layout of model files, by name; whole files of a known one are left out.

    Raises LayoutsUnread.
    """
    if not models:
        return {}
    asked = json.dumps([[model.name.partition("/")[0], str(model.path.absolute())] for model in models])
    try:
        done = subprocess.run(  # noqa: S603 - our own command; names of files go through its input
            COMMAND, env={}, input=asked, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
        )
        faults = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise LayoutsUnread(f"the engine did not read them in {MOST_SECONDS:g} s") from None
    except (OSError, ValueError):
        raise LayoutsUnread("the engine is not installed here, or cannot start") from None
    return {model.name: str(fault) for model, fault in zip(models, faults, strict=True) if fault is not None}
