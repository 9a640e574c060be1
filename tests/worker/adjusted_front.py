"""The front as a process whose constants a test shortens: fields of sections that no variable sets.

    python -m tests.worker.adjusted_front '{"supervision": {"silence_seconds": 3}}'

It imports nothing of the tests, so that `python -c` can run its text where they are not installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from darkroom.worker.app.serve import serve_with
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.settings import Settings

Constants = Mapping[str, Mapping[str, Any]]
"""Values of fields, by section."""


def with_constants(settings: Settings, constants: Constants) -> Settings:
    """Return the settings with other values for fields that no variable sets."""
    sections = {name: getattr(settings, name) for name in constants}
    for name, values in constants.items():
        assert not {field for field in values if type(sections[name]).model_fields[field].validation_alias}, values
    return settings.model_copy(
        update={name: section.model_copy(update=dict(constants[name])) for name, section in sections.items()}
    )


def program(constants: Constants | None) -> list[str]:
    """Return the arguments of Python for a front: the worker's own module where no constant differs."""
    if not constants:
        return ["-m", "darkroom.worker"]
    return ["-c", Path(__file__).read_text(encoding="utf-8"), json.dumps(constants)]


if __name__ == "__main__":
    loaded = load_settings()
    sys.exit(serve_with(replace(loaded, settings=with_constants(loaded.settings, json.loads(sys.argv[1])))))
