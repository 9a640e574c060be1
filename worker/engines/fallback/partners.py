"""Partner nodes: classes that send a prompt's data to a paid service with the caller's key. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from darkroom.contract.wire import PARTNER_KEYS
from darkroom.worker.errors import Problem
from darkroom.worker.json.values import JsonObject, object_at

KEY_TYPES = frozenset(name.upper() for name in PARTNER_KEYS)
"""Types of the hidden inputs by which a class declares that it takes a key."""


def partner_nodes(prompt: JsonObject, object_info: JsonObject) -> dict[str, str]:
    """Return the class of each node that takes a key for a partner's service, by its id."""
    classes = {node_id: str(node.get("class_type")) for node_id, node in prompt.items() if isinstance(node, Mapping)}
    takes_key = {name for name in set(classes.values()) if _takes_key(object_at(object_info, name))}
    return {node_id: name for node_id, name in classes.items() if name in takes_key}


def find_partner_problems(
    prompt: JsonObject, object_info: JsonObject, given: Collection[str], *, may_send: bool
) -> list[Problem]:
    """Return the problems of partner nodes: no traffic may leave the fallback, or the request has no key.

    `given` are the names of the request's keys.
    """
    nodes = partner_nodes(prompt, object_info)
    if not may_send:
        reason = "sends data to a partner's service, and this worker lets nothing out"
        return [
            Problem(f"{name}: {reason}", None, node_id, name, "no_outgoing_traffic") for node_id, name in nodes.items()
        ]
    if not nodes or given:
        return []
    names = ", ".join(sorted(set(nodes.values())))
    message = f"api_key_comfy_org: missing; expected the key of comfy.org that pays for {names}"
    return [Problem(message[:500], "input.extra_data.api_key_comfy_org", type="missing")]


def _takes_key(declared: JsonObject) -> bool:
    for spec in object_at(declared, "input", "hidden").values():
        kind = spec[0] if isinstance(spec, list | tuple) and spec else spec
        if isinstance(kind, str) and kind.upper() in KEY_TYPES:
            return True
    return False
