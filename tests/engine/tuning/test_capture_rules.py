"""Rules of CUDA graph capture, with torch's meta device in the place of a card."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from darkroom.engine.tuning.capture_rules import CaptureRefused, capture_rules, memory_of

CARD = "meta"
TO_DEVICE = "a tensor of the host is copied to the device"
TO_HOST = "a tensor of the device is copied to the host"
NUMBERS = "numbers of the host are copied to the device"
READ = "the host reads a value"
BY_DATA = "the shape of the result depends on data"
MIXED = "tensors of host and device are mixed"
OUTSIDE = "a number of the host from outside of the work is used"
RANDOM = "random numbers of a generator that no graph advances"

x = torch.ones(2, 3, device=CARD)
weight = torch.ones(3, 3, device=CARD)
host, number = torch.ones(2, 3), torch.tensor(2.0)
mask = x > 0
own = torch.Generator()

REFUSED: list[tuple[str, Callable[[], object], str]] = [
    ("a host tensor to the device", lambda: host.to(CARD), TO_DEVICE),
    ("without a wait", lambda: host.to(CARD, non_blocking=True), TO_DEVICE),
    ("a host number to the device", lambda: number.to(CARD), TO_DEVICE),
    ("into a device tensor", lambda: x.copy_(host), TO_DEVICE),
    ("like a device tensor", lambda: host.to(x), TO_DEVICE),
    ("an element of a device tensor", lambda: x.__setitem__((0, 0), torch.tensor(2.0)), TO_DEVICE),
    ("numbers to the device", lambda: torch.tensor([1.0], device=CARD), NUMBERS),
    ("numbers like a device tensor", lambda: x.new_tensor([1.0, 2.0]), NUMBERS),
    ("a list as an index", lambda: x[[1, 0]], NUMBERS),
    ("a device tensor to the host", lambda: x.cpu(), TO_HOST),
    ("into a host tensor", lambda: host.clone().copy_(x), TO_HOST),
    ("all numbers", lambda: x.tolist(), TO_HOST),
    ("a number", lambda: x.sum().item(), READ),
    ("a condition", lambda: bool(x.sum() > 0), READ),
    ("an integer", lambda: int(x.sum()), READ),
    ("a comparison", lambda: torch.equal(x, x), READ),
    ("a host number from outside", lambda: float(number), READ),
    ("places of what is not zero", lambda: x.nonzero(), BY_DATA),
    ("elements of a mask", lambda: x[mask], BY_DATA),
    ("elements below a mask", lambda: x.masked_select(mask), BY_DATA),
    ("what is there once", lambda: torch.ops.aten._unique2(x), BY_DATA),
    ("as many repeats as data", lambda: torch.repeat_interleave(torch.ones(3, dtype=torch.long, device=CARD)), BY_DATA),
    ("a sum of both", lambda: x + host, MIXED),
    ("a product of both", lambda: torch.nn.functional.linear(host, weight), MIXED),
    ("an index on the host", lambda: x[torch.tensor([0])], MIXED),
    ("a host number from outside in a sum", lambda: x * number, OUTSIDE),
    ("a generator of one's own", lambda: torch.empty(2, 3, device=CARD).normal_(generator=own), RANDOM),
    ("random numbers of the host", lambda: torch.randn(2), RANDOM),
    ("pinned memory", lambda: torch.empty(2, pin_memory=True), "pinned memory is allocated"),
    ("another stream", lambda: torch.ops.aten.record_stream(x, None), "memory is used by another stream"),
]  # fmt: skip

ALLOWED: list[tuple[str, Callable[[], object]]] = [
    ("arithmetic with Python's numbers", lambda: (x * 2.0 + 1).clamp(0, 1)),
    ("a layer", lambda: torch.nn.functional.layer_norm(torch.nn.functional.linear(x, weight), (3,))),
    ("attention", lambda: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])),
    ("another type", lambda: x.half().float()),
    ("a copy on the device", lambda: x.copy_(x + 1)),
    ("tensors made there", lambda: torch.arange(3, device=CARD) + torch.zeros(3, device=CARD)),
    ("a number put into an element", lambda: x.__setitem__((0, 0), 1.0)),
    ("a slice", lambda: x[:, 1:].contiguous()),
    ("an index on the device", lambda: x[torch.arange(2, device=CARD)]),
    ("the same of a choice", lambda: torch.where(mask, x, 0.0).masked_fill(mask, 1.0)),
    ("a constant made by the work", lambda: x * torch.tensor(2.0)),
    ("a constant read by the work", lambda: x * float(torch.tensor(2.0) + 1)),
    ("the host alone", lambda: torch.linspace(0, 1, 4).sum().item()),
    ("the device's own random numbers", lambda: torch.randn_like(x)),
    ("so many repeats", lambda: x.repeat_interleave(2, dim=0)),
]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("what", "work", "reason"), REFUSED, ids=[item[0] for item in REFUSED])
def test_what_a_graph_cannot_hold_is_refused(
    mode: Callable[[], torch.no_grad], what: str, work: Callable[[], object], reason: str
) -> None:
    with mode(), pytest.raises(CaptureRefused) as caught, capture_rules(watches_numbers=True):
        work()
    assert caught.value.reason == reason
    assert caught.value.where.startswith("test_capture_rules.py:"), "the line that called it"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("what", "work"), ALLOWED, ids=[item[0] for item in ALLOWED])
def test_other_work_is_allowed(mode: Callable[[], torch.no_grad], what: str, work: Callable[[], object]) -> None:
    with mode(), capture_rules(watches_numbers=True):
        work()


def test_random_numbers_of_a_generator_that_the_graph_advances_are_allowed() -> None:
    with capture_rules([own]):
        torch.empty(2, 3, device=CARD).normal_(generator=own)


def test_the_host_alone_may_do_as_it_likes_with_its_own_numbers() -> None:
    """Work whose device is the host is no work for a graph, and what it reads from outside is still found."""
    with pytest.raises(CaptureRefused, match=READ), capture_rules():
        host.sum().item()


def test_tensors_of_a_card_are_told_from_the_hosts_without_one() -> None:
    with FakeTensorMode():
        there = torch.ones(2, device="cuda")
        with capture_rules():
            there * 2 + torch.zeros(2, device="cuda")
        with pytest.raises(CaptureRefused, match=TO_DEVICE), capture_rules():
            torch.ops.aten._to_copy(torch.ones(2), device="cuda")


def test_memory_that_the_work_reads_and_has_not_made_is_known() -> None:
    with torch.inference_mode(), capture_rules() as rules:
        y = torch.nn.functional.linear(x.view(3, 2).t(), weight)
        y += x
        y.relu_().sum()
    assert [item.shape for item in rules.read] == [(2, 3), (3, 3)]
    assert {memory_of(item) for item in rules.read} == {memory_of(x), memory_of(weight)}


@pytest.mark.slow
def test_compiled_code_stays_compiled_under_the_rules_and_after_them() -> None:
    calls: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        def run(*given: torch.Tensor) -> object:
            calls.append(1)
            return module.forward(*given)

        return run

    compiled = torch.compile(lambda given: torch.relu(given) * 2, backend=backend)
    with torch.inference_mode():
        for shape in ((4,), (5, 5)):
            compiled(torch.ones(4))
            with capture_rules():
                compiled(torch.ones(shape))
            compiled(torch.ones(shape))
    assert len(calls) == 6
