"""Names of environment variables: the settings, those without effect, and warnings for names that resemble settings."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from darkroom.contract.nearest import KnownNames
from darkroom.worker.settings.removed import REMOVED_NAMES
from darkroom.worker.settings.section import variables_of
from darkroom.worker.settings.settings import Settings

RUNPOD_PREFIX: Final = "RUNPOD_"
VAST_PORT_PREFIX: Final = "VAST_TCP_PORT_"

IGNORED_NAMES: Final = frozenset(
    {
        "API_CACHE",
        "REDIS_HOST",
        "REDIS_PORT",
        "REDIS_DB",
        "REDIS_PASSWORD",
        "WEBSOCKET_INITIAL_TIMEOUT",
        "WEBSOCKET_MESSAGE_TIMEOUT",
        "WEBSOCKET_MAX_NO_MESSAGE_RETRIES",
        "WEBSOCKET_MAX_RECONNECTS",
        "GENERATION_WORKERS",
        "BACKEND_FAILURE_THRESHOLD",
    }
)
"""Names that older deployments set and that have no effect: jobs are in SQLite, the engine's history is accurate."""

OTHERS_NAMES: Final = frozenset({"SSL_CERT_FILE", "MODEL_HEALTH_ENDPOINT", "NO_COLOR"})
"""Names that others read or set, Vast for example, and that are neither settings nor misspelled ones of ours."""

CLIENT_NAMES: Final = frozenset({"DARKROOM_API_KEY"})
"""Names that the commands read which send requests to a worker."""

OUR_PREFIXES: Final = (
    "ADMIN_API_",
    "API_KEY",
    "BENCHMARK_",
    "DARKROOM_",
    "ENGINE_",
    "INPUT_",
    "MASTER_TOKEN",
    "METRICS_",
    "OUTPUT_",
    "S3_",
    "TRUST_LOOPBACK",
    "WARMUP_",
    "WEBHOOK_",
    "WORKER_",
)
"""Prefixes of names that are most likely meant for us."""

SERVICE_NAME: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)$")
"""Pattern of Kubernetes' variables for each service of a namespace, one called `engine` or `worker` too."""


def secret_names() -> tuple[str, ...]:
    """Return the variables that hold a secret or several."""
    return tuple(variable.name for variable in variables_of(Settings) if variable.is_secret)


def known_names() -> frozenset[str]:
    """Return every variable that a setting is read from, and the `_FILE` form of every secret."""
    names = {name for variable in variables_of(Settings) for name in (*variable.names, variable.part_of) if name}
    return frozenset(names | {f"{name}_FILE" for name in secret_names()})


def private_names(environment: Collection[str]) -> frozenset[str]:
    """Return the names in upper case that no child gets: every setting of the front, and RunPod's in `environment`.

    RunPod's variables hold addresses with keys.
    """
    of_runpod = {name.upper() for name in environment if name.upper().startswith(RUNPOD_PREFIX)}
    ours = known_names() | IGNORED_NAMES | REMOVED_NAMES.keys() | CLIENT_NAMES
    return frozenset(ours | {f"{name}_FILE" for name in ours} | of_runpod) - OTHERS_NAMES


def find_name_problems(names: Collection[str]) -> list[str]:
    """Return warnings for names that are accepted without effect, and for unknown ones that resemble ours."""
    ours = known_names() | IGNORED_NAMES
    known = ours | OTHERS_NAMES | CLIENT_NAMES | REMOVED_NAMES.keys()
    warnings = [f"{name} is set and has no effect here" for name in sorted(names) if name in IGNORED_NAMES]
    warnings += [
        f"{name} is no longer a setting: {REMOVED_NAMES[name]}" for name in sorted(REMOVED_NAMES.keys() & names)
    ]
    meant = KnownNames(sorted(ours))
    for name in sorted(names):
        if name in known or name.startswith((VAST_PORT_PREFIX, RUNPOD_PREFIX)):
            continue
        close = meant.nearest(name, cutoff=0.87)
        if close is not None:
            warnings.append(f"{name} is not a setting; did you mean {close}?")
        elif name.startswith(OUR_PREFIXES) and not SERVICE_NAME.search(name):
            warnings.append(f"{name} is not a setting and has no effect here")
    return warnings
