"""The rules of the pretended card, one operation of torch at a time: what a card refuses, copies or waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.engine.pretended_card.card import PretendedCard
from tests.engine.pretended_card.log import Kind
from tests.engine.pretended_card.rules import CardGenerator, MixedDevices
from tests.engine.pretended_card.values import CARD

x = torch.ones(2, 3, device=CARD)
weight = torch.ones(3, 3, device=CARD)
mask = torch.ones(2, 3, device=CARD, dtype=torch.bool)
numbers = torch.ones(2, device=CARD, dtype=torch.long)
host, number = torch.ones(2, 3), torch.tensor(2.0)

MIXED: list[tuple[str, Callable[[], object]]] = [
    ("a sum", lambda: x + host),
    ("a sum in place", lambda: x.clone().add_(host)),
    ("a layer", lambda: torch.nn.functional.linear(host, weight)),
    ("a product", lambda: x @ torch.ones(3, 3)),
    ("a concatenation", lambda: torch.cat([x, host])),
    ("a stack", lambda: torch.stack([x[0, 0], number])),
    ("an embedding by indices of the host", lambda: torch.nn.functional.embedding(torch.tensor([0]), weight)),
    ("a choice", lambda: torch.where(mask, x, host)),
    ("values put in place", lambda: x.clone().index_put_((numbers,), torch.ones(3))),
    ("a host tensor indexed from the card", lambda: host[numbers]),
    ("a host number in what is not pointwise", lambda: torch.dot(x[0], number.expand(3))),
    ("a norm with a host weight", lambda: torch.nn.functional.layer_norm(x, (3,), torch.ones(3))),
    ("attention with a host mask", lambda: scaled_dot_product_attention(x[None], x[None], x[None], torch.ones(2, 2))),
]  # fmt: skip
LOGGED: list[tuple[str, Callable[[], object], Kind]] = [
    ("a host tensor to the card", lambda: host.to(CARD), Kind.UPLOAD),
    ("of another type", lambda: host.to(CARD, torch.float16), Kind.UPLOAD),
    ("like one of the card", lambda: host.to(x), Kind.UPLOAD),
    ("into one of the card", lambda: x.clone().copy_(host), Kind.UPLOAD),
    ("into a part of one", lambda: x.clone().__setitem__(0, torch.ones(3)), Kind.UPLOAD),
    ("Python's numbers", lambda: torch.tensor([1.0, 2.0], device=CARD), Kind.UPLOAD),
    ("Python's numbers like a tensor of the card", lambda: x.new_tensor([1.0]), Kind.UPLOAD),
    ("an index of the host", lambda: x[torch.tensor([0, 1])], Kind.UPLOAD),
    ("a list as an index", lambda: x[[0, 1]], Kind.UPLOAD),
    ("to the host", lambda: x.cpu(), Kind.DOWNLOAD),
    ("into a host tensor", lambda: host.clone().copy_(x), Kind.DOWNLOAD),
    ("all numbers", lambda: x.tolist(), Kind.DOWNLOAD),
    ("one number", lambda: x.sum().item(), Kind.READ),
    ("one as Python's", lambda: float(x[0, 0]), Kind.READ),
    ("a condition", lambda: bool((x > 0).all()), Kind.READ),
    ("a comparison", lambda: torch.equal(x, x), Kind.READ),
    ("a search", lambda: x.nonzero(), Kind.SEARCH),
    ("places", lambda: torch.where(mask), Kind.SEARCH),
    ("elements by a mask", lambda: x[mask], Kind.SEARCH),
    ("elements put by a mask", lambda: x.clone().__setitem__(mask, x.reshape(-1)), Kind.SEARCH),
    ("what is there once", lambda: torch.unique(x), Kind.SEARCH),
    ("repeats by numbers", lambda: torch.repeat_interleave(x, numbers, dim=0), Kind.SEARCH),
]
SILENT: list[tuple[str, Callable[[], object]]] = [
    ("a host number in arithmetic", lambda: x * number),
    ("Python's numbers in arithmetic", lambda: (x * 2).clamp(0, 1)),
    ("a tensor like one of the host", lambda: torch.zeros_like(host, device=CARD)),
    ("a number put in place", lambda: x.clone().__setitem__((0, 0), 1.0)),
    ("a number put by a mask", lambda: x.clone().__setitem__(mask, 1.0)),
    ("another type", lambda: x.half().to(torch.float32)),
    ("an index of the card", lambda: x[numbers]),
    ("repeats to a size that is known", lambda: torch.repeat_interleave(x, numbers, dim=0, output_size=2)),
    ("a generator of the card", lambda: torch.randn(2, device=CARD, generator=CardGenerator(CARD))),
    ("the host alone", lambda: (host[host > 0].tolist(), host.sum().item(), host.nonzero())),
]


@pytest.fixture(params=[torch.no_grad, torch.inference_mode])
def card(request: pytest.FixtureRequest) -> Iterator[PretendedCard]:
    """A card in each of the modes in which networks compute: torch shows operations to modes in other parts."""
    card = PretendedCard()
    with request.param(), card.computing():
        yield card


@pytest.mark.parametrize("work", [work for _, work in MIXED], ids=[what for what, _ in MIXED])
def test_tensors_of_two_devices_are_refused_with_the_line(card: PretendedCard, work: Callable[[], object]) -> None:
    with pytest.raises(MixedDevices, match=r"test_rules\.py:\d+ "):
        work()
    assert [entry.kind for entry in card.log.entries] == [Kind.MIXED] and card.log.faults


@pytest.mark.parametrize(("work", "kind"), [item[1:] for item in LOGGED], ids=[item[0] for item in LOGGED])
def test_copies_and_waits_are_logged_with_the_line(card: PretendedCard, work: Callable[[], object], kind: Kind) -> None:
    work()
    assert [entry.kind for entry in card.log.waits] == [kind] and not card.log.faults
    assert "test_rules.py:" in card.log.waits[0].line


@pytest.mark.parametrize("work", [work for _, work in SILENT], ids=[what for what, _ in SILENT])
def test_what_needs_no_wait_is_not_logged(card: PretendedCard, work: Callable[[], object]) -> None:
    work()
    assert not card.log.entries


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randn(2, device=CARD, generator=CardGenerator()),
        lambda: x.clone().normal_(generator=CardGenerator()),
        lambda: torch.randn(2, generator=CardGenerator(CARD)),
    ],
    ids=["for the card", "in place", "for the host"],
)
def test_a_generator_of_another_device_is_refused(card: PretendedCard, draw: Callable[[], object]) -> None:
    with pytest.raises(MixedDevices, match=r"a generator of another device .*test_rules\.py:"):
        draw()
    assert card.log.faults


def test_values_that_leave_the_card_have_their_type_and_form(card: PretendedCard) -> None:
    kept = x.t().half().cpu()
    assert (kept.device.type, kept.dtype, kept.shape, kept.stride()) == ("cpu", torch.float16, (3, 2), (1, 3))
    assert x.to(torch.int32)[0, 0].item() == 1 and not bool(mask[0, 0])


def test_values_that_the_host_gave_come_back(card: PretendedCard) -> None:
    levels = torch.tensor([2.0, 1.0, 0.0]).to(CARD)
    after = levels[1:] * 3 + torch.ones(2, device=CARD)
    assert after.tolist() == [4.0, 1.0] and bool(levels[2] == 0) and levels.nonzero().shape == (2, 1)
    after[0] = 7.0
    assert after.sum().item() == 8.0


def test_values_that_were_overwritten_with_unknown_ones_are_forgotten(card: PretendedCard) -> None:
    levels = torch.tensor([2.0, 3.0]).to(CARD)
    part = levels[:1]
    part.copy_(weight[0, :1])
    assert levels.tolist() == [1.0, 3.0]


def test_the_rules_end_with_the_computing(card: PretendedCard) -> None:
    with card.computing():
        x.cpu()
    x.cpu()
    assert len(card.log.waits) == 2
