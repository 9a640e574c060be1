"""The pretended card: a device of 80 GiB with CUDA's choices of types, whose tensors are torch's meta tensors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from darkroom.engine.memory.device import Device, DeviceReport, Mark, Stream
from darkroom.engine.memory.device_facts import DeviceFacts
from tests.engine.pretended_card.log import CardLog
from tests.engine.pretended_card.rules import card_rules
from tests.engine.pretended_card.values import CARD, known, learn

GIB = 1 << 30


class PretendedCard(Device):
    """Card whose rules hold on each thread that computes. `log` has what it was asked."""

    has_own_memory = True

    def __init__(self, total_bytes: int = 80 * GIB) -> None:
        super().__init__(CARD)
        self.log = CardLog()
        self._total_bytes = total_bytes
        self._on_thread = threading.local()

    def facts(self) -> DeviceFacts:
        total = self._total_bytes
        return DeviceFacts(
            "cuda", CARD, "a pretended card", total, total, computes_float16=True, computes_bfloat16=True,
            keeps_float8=True,
        )  # fmt: skip

    def report(self) -> DeviceReport:
        total = self._total_bytes
        return DeviceReport("a pretended card", "cuda", 0, total, total, 0, 0)

    def total_bytes(self) -> int:
        return self._total_bytes

    def free_bytes(self) -> int:
        return self._total_bytes

    def new_stream(self) -> object:
        return object()

    def copy(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        self.log.num_transfers += 1
        values = known(source)
        if values is not None:
            learn(target, values.to(target.dtype, copy=True))

    def mark(self, stream: Stream) -> Mark:
        return object()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Hold this thread to the rules of a card until the context ends."""
        is_outermost = not getattr(self._on_thread, "is_computing", False)
        self._on_thread.is_computing = True
        try:
            with card_rules(self.log) if is_outermost else nullcontext():
                yield
        finally:
            self._on_thread.is_computing = not is_outermost
