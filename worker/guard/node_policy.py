"""The operator's allow- and deny-lists of node classes and packs that a workflow may use.

A pattern is a case-sensitive shell glob (`Load*`). A node's pack is the `python_module` that the engine reports for its
class. For a custom node both the module (`custom_nodes.Impact`) and the pack's name (`Impact`) are matched. For the
engine's own nodes the module (`nodes`, `comfy_extras.nodes_canny`) and the word `built-in` are matched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

from darkroom.worker.errors import Problem
from darkroom.worker.json.values import JsonObject
from darkroom.worker.settings.jobs import NodePolicyConfig

CUSTOM_PREFIX: Final = "custom_nodes."
BUILT_IN: Final = "built-in"


class NodePolicy:
    """A stateless check of node classes against the rules.

    A deny-list takes precedence over every allow-list. If any allow-list is set, a class must be on the class
    allow-list, or its pack on the pack allow-list.
    """

    def __init__(self, config: NodePolicyConfig) -> None:
        self._config = config
        self.is_active = any((config.allowed, config.denied, config.allowed_packs, config.denied_packs))

    def find_problems(
        self, prompt: JsonObject, object_info: JsonObject, *, is_trusted: bool = False
    ) -> Iterator[Problem]:
        """Yield a problem for every node that a rule forbids.

        The allow-lists do not apply to a graph that `is_trusted`, which the operator's modifier has made.
        """
        rule_of: Callable[[str], str | None] = cache(lambda name: self._broken_rule(name, object_info, is_trusted))
        for node_id, node in prompt.items() if self.is_active else ():
            class_type = node.get("class_type") if isinstance(node, Mapping) else None
            rule = rule_of(class_type) if isinstance(class_type, str) else None
            if rule is not None:
                yield Problem(
                    f"Node class {str(class_type)[:200]!r} is not allowed here, by {rule}",
                    field="class_type",
                    node_id=node_id,
                    class_type=class_type,
                    type="node_not_allowed",
                    extra={"rule": rule, "received": class_type},
                )

    def _broken_rule(self, class_type: str, object_info: JsonObject, is_trusted: bool) -> str | None:
        """Return the setting (and pattern, if one matches) that forbids a class; None if the class is allowed."""
        config, packs = self._config, pack_names(object_info.get(class_type))
        denied = _matching(config.denied, (class_type,))
        if denied is not None:
            return f"DENIED_NODES={denied}"
        denied = _matching(config.denied_packs, packs)
        if denied is not None:
            return f"DENIED_NODE_PACKS={denied}"
        if is_trusted or not (config.allowed or config.allowed_packs):
            return None
        if _matching(config.allowed, (class_type,)) is None and _matching(config.allowed_packs, packs) is None:
            return "ALLOWED_NODES" if config.allowed else "ALLOWED_NODE_PACKS"
        return None


def pack_names(declared: object) -> tuple[str, ...]:
    """Return the names by which the pack of a node class is matched; empty for an unknown class."""
    module = declared.get("python_module") if isinstance(declared, Mapping) else None
    if not isinstance(module, str) or not module:
        return ()
    if module.startswith(CUSTOM_PREFIX):
        return module, module.removeprefix(CUSTOM_PREFIX)
    return module, BUILT_IN


def _matching(patterns: Sequence[str], names: Sequence[str]) -> str | None:
    return next((pattern for pattern in patterns for name in names if fnmatchcase(name, pattern)), None)
