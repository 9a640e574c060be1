"""The nodes that give conditioning hooks, masks and ranges, one by one or in pairs."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.nodes.library.conditioning import conditioning_properties as nodes

context: Any = None


class Hooks:
    """Hooks as the nodes need them: groups that join."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def clone_and_combine(self, other: Hooks) -> Hooks:
        return Hooks(*self.names, *other.names)


def entry(**options: Any) -> list[list[Any]]:
    return [[torch.ones(1, 2, 3), options]]


def test_nothing_given_changes_nothing() -> None:
    changed = nodes.conditioning_set_properties(context, cond_NEW=entry(), strength=0.3, set_cond_area="default")
    assert changed[0][1] == {}


def test_new_entries_get_what_is_given_and_join_those_that_were_there() -> None:
    hooks = Hooks("new")
    positive, negative = nodes.pair_conditioning_set_properties_and_combine(
        context, positive=entry(name="old"), negative=entry(), positive_NEW=entry(), negative_NEW=entry(),
        strength=0.3, set_cond_area="mask bounds", mask=torch.ones(4, 4), hooks=hooks, timesteps=(0.1, 0.6),
    )  # fmt: skip
    assert positive[0][1] == {"name": "old"}
    assert len(positive) == len(negative) == 2
    options = negative[1][1]
    assert options.pop("mask").shape == (1, 4, 4)
    assert options == {
        "hooks": hooks, "set_area_to_bounds": True, "mask_strength": 0.3, "start_percent": 0.1, "end_percent": 0.6
    }  # fmt: skip


def test_entries_of_one_group_of_hooks_share_the_joined_group() -> None:
    old = Hooks("old")
    positive, negative = nodes.pair_conditioning_set_properties(
        context, positive_NEW=entry(hooks=old), negative_NEW=entry(hooks=old), strength=1.0, set_cond_area="default",
        hooks=Hooks("new"),
    )  # fmt: skip
    joined = positive[0][1]["hooks"]
    assert joined.names == ("old", "new")
    assert negative[0][1]["hooks"] is joined
    assert old.names == ("old",)


def test_default_entries_are_marked() -> None:
    combined = nodes.conditioning_set_default_combine(context, cond=entry(), cond_DEFAULT=entry())
    assert [options for _, options in combined] == [{}, {"default": True}]
    pair = nodes.pair_conditioning_set_default_combine(
        context, positive=entry(), negative=entry(), positive_DEFAULT=entry(), negative_DEFAULT=entry()
    )
    assert [side[1][1]["default"] for side in pair] == [True, True]


def test_a_range_of_steps_comes_with_what_lies_before_and_after_it() -> None:
    ranges = nodes.conditioning_timesteps_range(context, start_percent=0.2, end_percent=0.7)
    assert ranges == ((0.2, 0.7), (0.0, 0.2), (0.7, 1.0))
