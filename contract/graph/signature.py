"""Signature of a node's result, as a key: a hash over its class, its own inputs and its parents' keys.

Each node is hashed once, whatever the shape of the graph, without recursion. Two nodes with one key give one result.
A node whose result cannot be known from the prompt (a fingerprint that is not a number, an input that is no plain data,
a parent that does not exist, a cycle) has a key that nothing else has, and so have all nodes after it.
"""

from __future__ import annotations

import hashlib
import itertools
import marshal
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from darkroom.contract.graph.prompt import Node
from darkroom.contract.graph.spec import NodeRules, Values

Key = bytes

_PLAIN = frozenset({int, str, bool, type(None)})
DIGEST_BYTES = 16
_MARSHAL_FORMAT = 2  # the last one without back references, so that equal values give equal bytes


class Unhashable(Exception):
    """A value that is no plain data: nothing can be said about what depends on it."""


# Values that are read or put together, and computed with by later nodes alone.
SOURCE_TYPES = frozenset({
    "MODEL", "CLIP", "VAE", "CONTROL_NET", "CLIP_VISION", "STYLE_MODEL", "UPSCALE_MODEL", "GLIGEN", "AUDIO_ENCODER",
    "SAMPLER", "SIGMAS", "NOISE", "INT", "FLOAT", "STRING", "BOOLEAN",
})  # fmt: skip


class Signatures:
    """The keys of one run's nodes. `unique` yields keys that no other node has ever had.

    Nodes that compute have other keys for each `quality`; empty is the default one.
    """

    def __init__(
        self,
        find_node: Callable[[str], Node | None],
        find_rules: Callable[[str], NodeRules],
        unique: Iterator[bytes] | None = None,
        quality: str = "",
    ) -> None:
        self._quality = quality
        self._find_node = find_node
        self._find_rules = find_rules
        self._unique = unique if unique is not None else unique_keys(b"")
        self._keys: dict[str, Key] = {}

    def __getitem__(self, node_id: str) -> Key:
        return self._keys[node_id]

    def get(self, node_id: str) -> Key | None:
        return self._keys.get(node_id)

    def add(self, node_ids: Iterable[str], fingerprints: Values) -> None:
        """Make the keys of these nodes and of all they need. A fingerprint is what the inputs of a node do not show."""
        keys = self._keys
        opened: set[str] = set()
        for root in node_ids:
            if root in keys:
                continue
            stack = [root]
            while stack:
                node_id = stack[-1]
                if node_id in keys:
                    stack.pop()
                    continue
                node = self._find_node(node_id)
                if node is None:
                    keys[node_id] = next(self._unique)
                    stack.pop()
                    continue
                waiting = [link.source for link in node.links if link.source not in keys]
                if waiting and node_id not in opened:
                    opened.add(node_id)
                    stack.extend(waiting)
                    continue
                for source in waiting:  # still without a key after its turn: a cycle
                    keys[source] = next(self._unique)
                keys[node_id] = self._key(node, fingerprints.get(node_id))
                stack.pop()

    def _key(self, node: Node, fingerprint: object) -> Key:
        try:
            data = self._content(node, fingerprint)
        except Unhashable:
            return next(self._unique)
        return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()

    def _content(self, node: Node, fingerprint: object) -> bytes:
        keys = self._keys
        rules = self._find_rules(node.class_type)
        parts: list[Any] = [node.class_type, node.id if rules.keyed_by_id else None, canonical(fingerprint)]
        if self._quality and not all(isinstance(kind, str) and kind in SOURCE_TYPES for kind in rules.output_types):
            parts.append(("quality", self._quality))
        inputs = node.inputs
        sources = {link.input_name: (keys[link.source], link.slot) for link in node.links}
        for name in sorted(inputs):
            parts.append(name)
            source = sources.get(name)
            if source is not None:
                parts.append(source)
            else:
                value = inputs[name]
                parts.append(value if type(value) in _PLAIN else (canonical(value),))
        return marshal.dumps(parts, _MARSHAL_FORMAT)


def is_unique(key: Key) -> bool:
    """Return True for a key that no hash gives: the result is of one node in one run alone."""
    return len(key) != DIGEST_BYTES


def unique_keys(prefix: bytes) -> Iterator[Key]:
    """Yield keys that no hash gives and that never repeat under one prefix, which has not two bytes."""
    return (b"unique" + prefix + number.to_bytes(8, "big") for number in itertools.count())


def canonical(value: object) -> object:
    """Convert a value to nested tuples of plain data, equal for equal values.

    Raises Unhashable for NaN, which equals nothing, and for whatever is no plain data.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        if value != value:
            raise Unhashable
        return value
    if isinstance(value, Mapping):
        items = sorted(((str(key), canonical(item)) for key, item in value.items()), key=lambda pair: pair[0])
        return ("mapping", *items)
    if isinstance(value, (list, tuple)):
        return ("list", *(canonical(item) for item in value))
    if isinstance(value, (bytes, str, bool, int, float)):
        return canonical(float(value)) if isinstance(value, float) else value
    raise Unhashable
