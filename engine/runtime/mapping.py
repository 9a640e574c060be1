"""One node, many values: how lists of inputs become calls, and what the calls gave becomes lists of outputs.

Between nodes every output is a list. A node is called for each element of its longest input, shorter ones repeating
their last element, unless it takes lists whole. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from darkroom.contract.graph.spec import NodeRules, ValueDict, Values
from darkroom.contract.graph.streamed import Streamed
from darkroom.engine.nodes.base import ExecutionBlocker, Returned


def calls_of(inputs: Mapping[str, Sequence[object]], input_is_list: bool) -> list[dict[str, object]]:
    """Return the arguments of each call."""
    if input_is_list:
        return [dict(inputs)]
    longest = max(map(len, inputs.values()), default=0)
    if longest == 1:
        return [{name: values[0] for name, values in inputs.items()}]
    if longest == 0:
        return [{}]
    return [
        {name: values[index if index < len(values) else -1] for name, values in inputs.items()}
        for index in range(longest)
    ]


def blocker_in(arguments: Values, input_is_list: bool) -> ExecutionBlocker | None:
    """Return the blocker that keeps a call from being made, or None."""
    for value in arguments.values():
        if type(value) is ExecutionBlocker:
            return value
        if input_is_list:
            for item in value:
                if type(item) is ExecutionBlocker:
                    return item
    return None


def with_whole_results(arguments: ValueDict, rules: NodeRules) -> ValueDict:
    """Return the arguments of a call with results in pieces put together for inputs that do not take pieces."""
    if not any(map(_is_streamed, arguments.values())):
        return arguments
    return {name: value if name in rules.streamed else _whole(value) for name, value in arguments.items()}


def _is_streamed(value: object) -> bool:
    return isinstance(value, Streamed) or (type(value) is list and any(isinstance(item, Streamed) for item in value))


def _whole(value: Any) -> Any:
    if type(value) is list:
        return [_whole(item) for item in value]
    return value.whole() if isinstance(value, Streamed) else value


def merge_outputs(results: Sequence[Any], rules: NodeRules) -> list[list[Any]]:
    """Merge the lists of outputs of all calls. A blocker instead of a result blocks every output."""
    rows = [
        (result,) * len(rules.output_types) if isinstance(result, ExecutionBlocker) else result for result in results
    ]
    if len(rows) == 1 and True not in rules.lists_out:
        return [[value] for value in rows[0]]
    merged: list[list[Any]] = []
    for index in range(len(rows[0])):
        column = [row[index] for row in rows]
        if index < len(rules.lists_out) and rules.lists_out[index]:
            flat: list[Any] = []
            for value in column:
                if isinstance(value, ExecutionBlocker):
                    flat.append(value)
                else:
                    flat.extend(value)
            column = flat
        merged.append(column)
    return merged


def merge_ui(returns: Sequence[Returned]) -> ValueDict | None:
    """Concatenate what all calls show; None when nothing is shown. Raises TypeError for what is no JSON."""
    shown = [item.ui for item in returns if item.ui is not None]
    if not shown:
        return None
    merged = dict(shown[0]) if len(shown) == 1 else _one_after_the_other(shown)
    try:
        json.dumps(merged)  # or it would only fail on its way to a client, and with it the whole history
    except (TypeError, ValueError) as error:
        raise TypeError(f"what the node shows cannot be sent as JSON: {error}") from error
    return merged or None


def _one_after_the_other(shown: Sequence[Mapping[str, Sequence[object]]]) -> dict[str, object]:
    return {kind: [item for ui in shown for item in ui[kind]] for kind in shown[0]}
