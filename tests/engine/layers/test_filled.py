"""Numbers are made on their device, without a copy of the host's."""

from __future__ import annotations

import torch

from darkroom.engine.layers.filled import filled
from tests.engine.pretended_card.log import CardLog
from tests.engine.pretended_card.rules import card_rules
from tests.engine.pretended_card.values import CARD


def test_numbers_are_filled_in_by_the_device() -> None:
    assert filled([0.5, 2.0], device=torch.device("cpu")).tolist() == [0.5, 2.0]
    assert filled([3, 1], device=torch.device("cpu"), dtype=torch.int64).tolist() == [3, 1]
    log = CardLog()
    with card_rules(log):
        made = filled([0.5, 2.0, 4.0], device=torch.device(CARD), dtype=torch.float16)
    assert (made.shape, made.dtype) == (torch.Size([3]), torch.float16)
    assert log.entries == []
