"""Request and result of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One execution of a prompt that was checked.

    `prompt` is in API format, best as `CheckedPrompt.prompt` gives it; `outputs` are the output nodes to run;
    `extra_data` holds `client_id`, `extra_pnginfo` and whatever else a node may ask for.

    A run that `continues` another one, by its prompt id, gets the node instances of that one; `part` counts the runs
    before it. The results of `passing` nodes and of those after them are not kept after the run.
    """

    prompt_id: str
    prompt: Mapping[str, Any]
    outputs: tuple[str, ...]
    extra_data: Mapping[str, Any] = field(default_factory=dict)
    wants_previews: bool = False
    continues: str | None = None
    part: int = 0
    passing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RunResult:
    """`outputs` is what nodes show, by node id, as the history has it (cached nodes included).

    `meta` tells for the same nodes `node_id`, `display_node`, `parent_node` and `real_node_id`.
    """

    status: Literal["success", "error", "interrupted"]
    outputs: Mapping[str, Mapping[str, Any]]
    meta: Mapping[str, Mapping[str, Any]]
