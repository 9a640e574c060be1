"""Tensors that strategies make of a network's weights, kept from one run to the next while the weights are the same.

A graph that reads them is kept as long. They are dropped when weights change or move, when memory is needed, and when
they are too large to be kept.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

MOST_KEPT = 4  # networks with their strategies
KEPT_SHARE = 0.25  # of the memory that would be free without any of them

Made = tuple[torch.Tensor | None, ...]


class OwnTensors:
    """Identity of tensors that strategies have made; graphs that read them are part of its life."""

    def __init__(self) -> None:
        self._forget: dict[int, Callable[[object], None]] = {}

    def when_dropped(self, owner: object, forget: Callable[[object], None]) -> None:
        """Call `forget` with this identity once the tensors are dropped, once for each owner."""
        self._forget[id(owner)] = forget

    def drop(self) -> None:
        """Let those forget the tensors who depend on them."""
        while self._forget:
            self._forget.popitem()[1](self)


@dataclass(frozen=True, slots=True)
class _Made:
    tensors: Made
    fingerprint: torch.Tensor


class MadeTensors:
    """Tensors that the strategies in force have made of one network's weights."""

    def __init__(self) -> None:
        self.identity = OwnTensors()
        self._made: dict[str, _Made] = {}
        self._is_whole = True

    @property
    def num_bytes(self) -> int:
        return sum(item.nbytes for made in self._made.values() for item in made.tensors if item is not None)

    @property
    def can_be_kept(self) -> bool:
        """False where a strategy computes with tensors that are not here, which end with its use."""
        return self._is_whole and bool(self._made)

    def of(self, name: str, sources: Sequence[torch.Tensor], make: Callable[[], Sequence[torch.Tensor | None]]) -> Made:
        """Return the tensors of a strategy, made of the weights `sources` by `make` unless they are there.

        A node may have written into the weights, of which the patches say nothing: so their norms are compared, which
        the calling thread waits for.
        """
        found, fingerprint = self._made.get(name), fingerprint_of(sources)
        if found is not None and torch.equal(found.fingerprint, fingerprint):
            return found.tensors
        if found is not None:
            self.drop()
        made = self._made[name] = _Made(tuple(make()), fingerprint)
        return made.tensors

    def identity_with(self, name: str) -> OwnTensors:
        """Return the identity of the tensors, those of the strategy `name` included."""
        self._is_whole = self._is_whole and name in self._made
        return self.identity

    def drop(self) -> None:
        """Forget the tensors, and let graphs that read them be forgotten."""
        self._made.clear()
        self.identity.drop()
        self.identity = OwnTensors()


class KeptTensors:
    """Owner of the tensors that strategies have made, between the runs that use them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, Hashable], tuple[weakref.ref[nn.Module], Hashable, MadeTensors]]
        self._kept = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        return sum(made.num_bytes for _, _, made in self._kept.values())

    def take(self, network: nn.Module, names: Hashable, state: Hashable) -> MadeTensors:
        """Return the tensors of strategies for a network with weights in this state, empty where there are none.

        `state` has the addresses of all weights and their patches. What was made of the network in another state is
        dropped.
        """
        for key, (known, was, made) in list(self._kept.items()):
            if known() is None or (known() is network and was != state):
                del self._kept[key]
                made.drop()
        _, _, found = self._kept.pop((id(network), names), (None, None, MadeTensors()))
        return found

    def keep(self, made: MadeTensors, network: nn.Module, names: Hashable, state: Hashable, free_bytes: float) -> None:
        """Keep tensors that no run uses any more, if they can be and are small beside the free memory."""
        room = (free_bytes + self.num_bytes + made.num_bytes) * KEPT_SHARE
        if not made.can_be_kept or made.num_bytes > room:
            made.drop()
            return
        while self._kept and (len(self._kept) >= MOST_KEPT or self.num_bytes + made.num_bytes > room):
            self._kept.popitem(last=False)[1][2].drop()
        self._kept[id(network), names] = (weakref.ref(network), state, made)

    def release(self) -> None:
        """Drop all that is kept."""
        while self._kept:
            self._kept.popitem()[1][2].drop()


def fingerprint_of(sources: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return numbers `[n]`, float32, that change with the values of the weights."""
    plain = [item.detach() for item in sources if item.is_floating_point() and item.itemsize > 1]
    rest = [item.detach().view(torch.uint8) for item in sources if not (item.is_floating_point() and item.itemsize > 1)]
    norms: Any = torch._foreach_norm(plain, 2, dtype=torch.float32) if plain else ()
    return torch.stack([*norms, *(item.sum(dtype=torch.int64).float() for item in rest)])
