"""Expanded nodes that still belong to a living node: the bookkeeping that results and instances share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Groups(Generic[K, V]):
    """Dictionaries by owner. A group's owner is a node of another group; None owns the first group."""

    def __init__(self) -> None:
        self._values: dict[str | None, dict[K, V]] = {None: {}}
        self._members: dict[str | None, dict[str, str]] = {None: {}}  # group: node id to class name

    def __getitem__(self, group: str | None) -> dict[K, V]:
        return self._values[group]

    def get(self, group: str | None) -> dict[K, V] | None:
        return self._values.get(group)

    def set_members(self, group: str | None, keys: set[K], classes: Mapping[str, str]) -> None:
        """Let a group have these nodes: values of others go, and so do groups whose owner is gone or another class."""
        values = self._values.get(group, {})
        self._values[group] = {key: values[key] for key in values if key in keys}
        before = self._members.get(group, {})
        self._members[group] = dict(classes)
        for node_id, class_type in before.items():
            if classes.get(node_id) != class_type:
                self._drop(node_id)

    def empty(self) -> None:
        """Forget the values of every group; the groups stay."""
        for values in self._values.values():
            values.clear()

    def clear(self) -> None:
        self._values = {None: {}}
        self._members = {None: {}}

    def __len__(self) -> int:
        return sum(len(values) for values in self._values.values())

    def check_integrity(self) -> None:
        """Raise AssertionError unless every group but the first is owned by a node of another group."""
        owned = {node_id for members in self._members.values() for node_id in members}
        assert self._values.keys() == self._members.keys(), "groups and members disagree"
        assert all(owner is None or owner in owned for owner in self._values), "a group outlived its owner"

    def _drop(self, owner: str) -> None:
        stack = [owner]
        while stack:
            group = stack.pop()
            self._values.pop(group, None)
            stack.extend(self._members.pop(group, ()))
