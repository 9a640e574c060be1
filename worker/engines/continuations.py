"""Continuations: prompts that nodes of a prompt queue to go on with it, as batches of a long video. Pure.

Our engine names them in the history. In a foreign one they are recognised by a field of `extra_data`, which such nodes
copy from the prompt that they run in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from darkroom.worker.engines.outcome import RunOutcome

FIRST_PROMPT: Final = "darkroom_first_prompt"
"""Field of a prompt's `extra_data` for a foreign engine: the id of the prompt that began."""

UNFINISHED: Final = "unfinished_batch"
"""List that VideoHelperSuite's nodes show in every batch but the last."""

HISTORY_ITEMS: Final = 50


def is_unfinished(outcome: RunOutcome) -> bool:
    """Return True if a node shows that it goes on in a later prompt."""
    return any(shown.get(UNFINISHED) for shown in outcome.outputs.values())


def continuations_in(
    queue: Mapping[str, Any], history: Mapping[str, Any], first_ids: Collection[str], known: Collection[str]
) -> list[str]:
    """Return the prompts of a queue and a history that continue one of `first_ids` and are not `known`."""
    found = [prompt_id for prompt_id, first in _first_ids(queue, history) if first in first_ids]
    return [prompt_id for prompt_id in dict.fromkeys(found) if prompt_id not in known]


def _first_ids(queue: Mapping[str, Any], history: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    entries = [entry.get("prompt") for entry in history.values() if isinstance(entry, Mapping)]
    for item in (*entries, *(queue.get("queue_running") or ()), *(queue.get("queue_pending") or ())):
        if isinstance(item, Sequence) and len(item) > 3 and isinstance(item[3], Mapping):  # number, id, prompt, extra
            yield str(item[1]), item[3].get(FIRST_PROMPT)


def joined(outcomes: Sequence[RunOutcome]) -> RunOutcome:
    """Return the outcome of a prompt and its continuations: what each shows, in their order.

    What a later one has from the engine's cache is what an earlier one showed, and comes once. The first that did not
    succeed is the outcome of them all.
    """
    bad = next((outcome for outcome in outcomes if outcome.error is not None or outcome.was_interrupted), None)
    if bad is not None or len(outcomes) == 1:
        return bad or outcomes[0]
    shown: dict[str, dict[str, list[Any]]] = {}
    for outcome in outcomes:
        cached = _cached(outcome)
        for node_id, lists in outcome.outputs.items():
            if node_id in shown and node_id in cached:
                continue
            ours = shown.setdefault(node_id, {})
            for name, items in lists.items():
                ours[name] = [*ours.get(name, ()), *(items if isinstance(items, list) else [items])]
    warnings = [warning for outcome in outcomes for warning in outcome.warnings]
    told = tuple(warning for number, warning in enumerate(warnings) if warning not in warnings[:number])
    return replace(outcomes[-1], outputs=shown, entry={**outcomes[-1].entry, "outputs": shown}, warnings=told)


def _cached(outcome: RunOutcome) -> set[str]:
    messages = (outcome.entry.get("status") or {}).get("messages") or ()
    return {str(node) for name, data in messages if name == "execution_cached" for node in data.get("nodes") or ()}
