"""State of a network that strategies change, to restore it whatever one leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

HOOKS = ("_forward_pre_hooks", "_forward_hooks")
UNSET = object()


@dataclass(frozen=True, slots=True)
class _OfModule:
    forward: object  # UNSET: its class's
    hooks: tuple[frozenset[int], ...]  # their keys, of each kind


PLAIN = _OfModule(UNSET, tuple(frozenset() for _ in HOOKS))


class NetworkState:
    """Functions, hooks and attributes of a network and its denoiser at one time.

    Weights are none of it: strategies do not write to them, and memory moves them meanwhile.
    """

    def __init__(self, denoiser: Any, network: nn.Module) -> None:
        self._denoiser, self._network = denoiser, network
        self._attributes: Mapping[str, object] = dict(vars(denoiser))
        self._modules = {module: found for module in network.modules() if (found := _read(module)) is not PLAIN}

    @property
    def forwards(self) -> Mapping[nn.Module, object]:
        """Functions that modules have in place of their class's."""
        return {module: found.forward for module, found in self._modules.items() if found.forward is not UNSET}

    def changes_since(self, before: NetworkState) -> NetworkChanges:
        """Return the difference of this state to an earlier one of the same network."""
        changed = [module for module in {**self._modules, **before._modules} if self._of(module) != before._of(module)]
        attributes = {
            name: (before._attributes.get(name, UNSET), self._attributes.get(name, UNSET))
            for name in {**self._attributes, **before._attributes}
            if self._attributes.get(name, UNSET) is not before._attributes.get(name, UNSET)
        }
        return NetworkChanges(
            self._denoiser, attributes, {module: (before._of(module), self._of(module)) for module in changed}
        )

    def _of(self, module: nn.Module) -> _OfModule:
        return self._modules.get(module, PLAIN)


@dataclass(frozen=True, slots=True)
class NetworkChanges:
    """Changes of a network's functions, hooks and attributes, each with what was there before and after."""

    denoiser: Any
    attributes: Mapping[str, tuple[object, object]]
    modules: Mapping[nn.Module, tuple[_OfModule, _OfModule]]

    @property
    def forwards(self) -> Mapping[nn.Module, object]:
        """Functions that were given to modules which had their class's before."""
        return {
            module: after.forward
            for module, (before, after) in self.modules.items()
            if after.forward is not UNSET and before.forward is UNSET
        }

    @property
    def new_attributes(self) -> tuple[str, ...]:
        """Names of attributes that the denoiser did not have before, such as functions in place of its class's."""
        return tuple(name for name, (before, _) in self.attributes.items() if before is UNSET)

    def revert(self) -> None:
        """Take back what is still there of these changes; what others have changed since stays."""
        for name, (before, after) in self.attributes.items():
            if vars(self.denoiser).get(name, UNSET) is after:
                _set(vars(self.denoiser), name, before)
        for module, (was, became) in self.modules.items():
            if module.__dict__.get("forward", UNSET) is became.forward:
                _set(module.__dict__, "forward", was.forward)
            for kind, old, new in zip(HOOKS, was.hooks, became.hooks, strict=True):
                for key in new - old:
                    module.__dict__[kind].pop(key, None)


def _read(module: nn.Module) -> _OfModule:
    own = module.__dict__
    forward = own.get("forward", UNSET)
    if forward is UNSET and not any(own[kind] for kind in HOOKS):
        return PLAIN
    return _OfModule(forward, tuple(frozenset(own[kind]) for kind in HOOKS))


def _set(attributes: dict[str, Any], name: str, value: object) -> None:
    if value is UNSET:
        attributes.pop(name, None)
    else:
        attributes[name] = value
