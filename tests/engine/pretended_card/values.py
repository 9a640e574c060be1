"""Values that a pretended card's small tensors have all the same: those that the host gave it, and what came of them.

So noise levels that the host reads back are the right ones, and samplers take the branches that they take on a card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

MOST_VALUES = 1024
CARD = "meta"

aten = torch.ops.aten


def known(value: Any) -> Any:
    """Return the values of a tensor of the card in the host's memory, None without any; other things as they are."""
    is_of_card = isinstance(value, torch.Tensor) and value.device.type == CARD
    return getattr(value, "values_on_host", None) if is_of_card else value


def learn(tensor: Any, values: Any) -> None:
    """Give a tensor of the card values `[...]`, of its own shape and type."""
    if isinstance(tensor, torch.Tensor) and tensor.device.type == CARD and tensor.numel() <= MOST_VALUES:
        tensor.values_on_host = values  # type: ignore[attr-defined]


def follow(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Work out the values of an operation's results, where those of its arguments are known."""
    made = [item for item in tree_leaves(out) if isinstance(item, torch.Tensor)]
    if not made or any(item.numel() > MOST_VALUES for item in made):
        return
    given = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
    if any(known(item) is None for item in given):
        if func._schema.is_mutable:  # its values are not known any longer, nor those of its views
            values = known(args[0])
            if values is not None:
                values.fill_(1)
        return
    is_without = torch.Tag.nondeterministic_seeded in func.tags or "empty" in func.__name__
    if is_without or func.__name__.startswith("rand"):
        return
    own_args, own_kwargs = tree_map(known, (tuple(args), dict(kwargs)))
    if own_kwargs.get("device") is not None:
        own_kwargs["device"] = torch.device("cpu")
    tree_map(learn, out, func(*own_args, **own_kwargs))
