"""Identity of a network for outcomes of tuning: its class, and a fingerprint of all that its speed depends on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

FINGERPRINT_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class NetworkIdentity:
    """Class of a network, and a fingerprint of its shape: equal for networks that launch the same kernels.

    The fingerprint is of the names, shapes and stored types of all weights, the configuration, and the type that the
    network computes in. `num_weights` counts their values as stored.
    """

    name: str
    fingerprint: str
    num_weights: int = 0

    @property
    def key(self) -> str:
        """Class and fingerprint as one text."""
        return f"{self.name}:{self.fingerprint}"


class NetworkIdentities:
    """Identities of the networks that are there, each read once."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[nn.Module, dict[torch.dtype | None, NetworkIdentity]] = WeakKeyDictionary()

    def of(self, network: nn.Module, computed: torch.dtype | None = None) -> NetworkIdentity:
        """Return the identity of a network that computes in the type `computed`, by default the one of its weights."""
        known = self._known.setdefault(network, {})
        found = known.get(computed)
        if found is None:
            found = known[computed] = identity_of(network, computed)
        return found


def identity_of(network: nn.Module, computed: torch.dtype | None = None) -> NetworkIdentity:
    """Return the identity of a network. Reads no values of weights, which may be in their file."""
    weights = {
        name: (list(tensor.shape), str(tensor.dtype))
        for name, tensor in (*network.named_parameters(), *network.named_buffers())
    }
    content = {
        "class": type(network).__qualname__,
        "weights": weights,
        "config": _plain(getattr(network, "config", None)),
        "computed": str(computed),
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    num_weights = sum(math.prod(shape) for shape, _ in weights.values())
    return NetworkIdentity(type(network).__name__, digest[:FINGERPRINT_CHARACTERS], num_weights)


def _plain(value: Any) -> Any:
    """Return a configuration as JSON values; what has no lasting text, such as a function, is named only.

    A text with an address in it would be another one in every process.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(_plain(item)) for item in value)
    if isinstance(value, torch.dtype):
        return str(value)
    return getattr(value, "__qualname__", type(value).__qualname__)
