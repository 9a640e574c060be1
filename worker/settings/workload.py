"""Cost model that the operator chooses for requests."""

from __future__ import annotations

from enum import StrEnum


class Workload(StrEnum):
    """The cost model of requests: by their prompt, or the same for each, as in earlier wrappers."""

    COMPUTED = "computed"
    STATIC = "static"
    ONE = "1"
