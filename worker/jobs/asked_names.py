"""Names of fetched files in an engine's problems, replaced by what the request names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from darkroom.worker.errors import RequestRejected
from darkroom.worker.guard.safe_address import shown_url
from darkroom.worker.inputs.references import source_of
from darkroom.worker.jobs.fetched_inputs import FETCHED_NAME
from darkroom.worker.json.values import JsonObject, object_at

OF_REQUEST = "the file that came with the request"


def in_asked_names(rejected: RequestRejected, asked: JsonObject, sent: JsonObject) -> RequestRejected:
    """Return an error whose messages have the addresses of the `asked` prompt for the names of the `sent` one."""
    names = _names(asked, sent)
    if not names:
        return rejected
    problems = [replace(problem, message=_renamed(problem.message, names)) for problem in rejected.problems]
    return RequestRejected(problems, num_unlisted=rejected.num_unlisted)


def _names(asked: JsonObject, sent: JsonObject) -> dict[str, str]:
    """Return the references of the request by the names of the fetched files."""
    found: dict[str, str] = {}
    for node_id, node in sent.items():
        before = object_at(asked, node_id, "inputs")
        for name, value in object_at(node, "inputs").items():
            if isinstance(value, str) and FETCHED_NAME.fullmatch(value) and before.get(name) != value:
                found[value] = _shown(before.get(name))
    return found


def _shown(value: object) -> str:
    return shown_url(value) if isinstance(value, str) and source_of(value) in ("url", "s3") else OF_REQUEST


def _renamed(message: str, names: Mapping[str, str]) -> str:
    for name, asked in names.items():
        message = message.replace(name, asked)
    return message
