"""Outcomes of tuning by kind of machine, in one file of the state directory, which a fleet can share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from darkroom.contract.missing_file import unreadable_file
from darkroom.worker.qualification.state_file import VERSION, StateFile

FILE_NAME = "tuning.json"
MAX_MACHINES = 256
MAX_IMPORT_BYTES = 16 * 1024 * 1024
FIELDS = ("machine", "network", "fingerprint", "vae", "workload", "figures", "choices", "seconds", "version")


class NoOutcomes(ValueError):
    """Error for a file that holds no outcomes of tuning."""


class TuningStore:
    """Outcomes in JSON form, by machine and the class and shape of the network that was measured."""

    def __init__(self, directory: Path) -> None:
        self._file = StateFile(directory / FILE_NAME, MAX_MACHINES)

    @property
    def has_outcomes(self) -> bool:
        return bool(self._file.read())

    def find(self, machine: str) -> list[dict[str, Any]]:
        """Return the outcomes of a kind of machine."""
        found = self._file.read().get(machine)
        return [item for item in found.values() if isinstance(item, dict)] if isinstance(found, dict) else []

    def store(self, machine: str, outcome: Mapping[str, Any]) -> None:
        """Store an outcome atomically, in place of the machine's earlier one for that network. Raises OSError.

        Those of an older form, which do not say what shape their network had, are dropped.
        """
        found = self._file.read().get(machine)
        known = {key: item for key, item in found.items() if is_complete(item)} if isinstance(found, dict) else {}
        self._file.put(machine, {**known, f"{outcome['network']}:{outcome['fingerprint']}": dict(outcome)})

    def export(self) -> dict[str, Any]:
        """Return everything that is stored, for other workers of the fleet."""
        return {"version": VERSION, "results": self._file.read()}

    def add(self, exported: Mapping[str, Any]) -> list[str]:
        """Add exported outcomes, in place of those for the same machines; return their machines.

        Raises NoOutcomes, and OSError.
        """
        results = exported.get("results")
        if exported.get("version") != VERSION or not isinstance(results, dict):
            raise NoOutcomes(f"no exported tuning of version {VERSION}; got version {exported.get('version')!r}")
        for machine, outcomes in results.items():
            for network, outcome in outcomes.items() if isinstance(outcomes, dict) else [("", None)]:
                missing = FIELDS if not isinstance(outcome, dict) else [name for name in FIELDS if name not in outcome]
                if missing:
                    raise NoOutcomes(f"results.{machine}.{network}: not complete; {missing[0]!r} is missing")
        self._file.write({**self._file.read(), **results})
        return list(results)


def is_complete(outcome: object) -> bool:
    """Return True for an outcome that has every field of this version's form."""
    return isinstance(outcome, dict) and all(name in outcome for name in FIELDS)


def read_exported(path: Path) -> dict[str, Any]:
    """Read an exported file. Raises NoOutcomes for one that cannot be read."""
    try:
        if path.stat().st_size > MAX_IMPORT_BYTES:
            raise NoOutcomes(f"{path}: too large; expected at most {MAX_IMPORT_BYTES} bytes")
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NoOutcomes(f"{path}: {unreadable_file(path, error)}") from None
    except ValueError as error:
        raise NoOutcomes(f"{path}: not readable as JSON; {error}") from None
    if not isinstance(body, dict):
        raise NoOutcomes(f"{path}: no JSON object")
    return body
