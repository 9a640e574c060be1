"""Name -> modifier. `build_registry()` lists the modifiers there are and reads their workflow files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from modifiers.image_to_image import Image2Image
from modifiers.modifier import Modifier
from modifiers.raw_workflow import RawWorkflow
from modifiers.text_to_image import Text2Image

MODIFIERS: tuple[type[Modifier], ...] = (Text2Image, Image2Image, RawWorkflow)


class UnknownModifier(Exception):
    """No modifier has this name; `known` are the names that exist."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        self.name = name
        self.known = known
        super().__init__(f"unknown modifier {name!r}; known: {', '.join(known)}")


class ModifierRegistry:
    """The modifiers and their workflows, by the name that requests use."""

    def __init__(self, modifiers: Mapping[str, tuple[type[Modifier], Mapping[str, Any]]]) -> None:
        self._modifiers = dict(modifiers)

    def names(self) -> tuple[str, ...]:
        return tuple(self._modifiers)

    def get(self, name: str) -> type[Modifier]:
        """The class behind a name. Raises UnknownModifier."""
        return self._lookup(name)[0]

    def describe(self) -> list[dict[str, Any]]:
        """For each modifier its name, what it does, and the JSON schema of its modifications."""
        return [
            {
                "name": name,
                "description": (modifier.__doc__ or "").strip().split("\n\n")[0],
                "schema": modifier.model_json_schema(),
            }
            for name, (modifier, _) in self._modifiers.items()
        ]

    def build(
        self, name: str, modifications: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The prompt of a request, `__RANDOM_INT__` still in it where no seed was given.

        `defaults` replace a modifier's own (the checkpoint of this machine, for one); keys it lacks are skipped.
        Raises UnknownModifier, or ModificationsRejected with every problem.
        """
        modifier, workflow = self._lookup(name)
        return modifier.parse(modifications, defaults).fill(workflow)

    def _lookup(self, name: str) -> tuple[type[Modifier], Mapping[str, Any]]:
        if name not in self._modifiers:
            raise UnknownModifier(name, self.names())
        return self._modifiers[name]


def build_registry() -> ModifierRegistry:
    """The registry of all modifiers of this package, their workflow files read."""
    folder = files("modifiers") / "workflows"
    return ModifierRegistry(
        {
            modifier.__name__: (modifier, json.loads((folder / modifier.workflow_file).read_text(encoding="utf-8")))
            for modifier in MODIFIERS
        }
    )
