"""Random sequences of loads, runs, LoRA changes and budgets on a simulated device: what must hold after each step."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from darkroom.engine.memory.relief import MemorySavings
from darkroom.engine.memory.residency import Residency
from darkroom.engine.memory.state import VramState
from tests.engine.memory.simulated import Card, network, patch

X = torch.linspace(-1, 1, 32).reshape(2, 16)
NUM_MODELS = 3
NUM_LAYERS = 8
SIZE = sum(weight.nbytes for weight in network(0, NUM_LAYERS).state_dict().values())
WORKING_BYTES = 64

STATES = (VramState.NO_VRAM, VramState.LOW_VRAM, VramState.NORMAL_VRAM)

runs = st.tuples(
    st.just("run"),
    st.integers(0, NUM_MODELS - 1),
    st.sampled_from([None, (1, 0.5), (1, 0.75), (2, 0.5)]),  # a LoRA: its seed and its strength
    st.sampled_from([None, 1, 2]),  # a hook's seed
    st.lists(st.integers(0, NUM_MODELS - 1), max_size=2),  # models that run together with it
)
others = st.one_of(
    st.tuples(st.just("unload")),
    st.tuples(st.just("end run")),
    st.tuples(st.just("keep"), st.integers(0, NUM_MODELS - 1)),
    st.tuples(st.just("memory_savings"), st.sampled_from([0.0, 0.3, 1.0])),
    st.tuples(st.just("reload"), st.integers(0, NUM_MODELS - 1)),
)
sequences = st.lists(st.one_of(runs, others), min_size=1, max_size=12)


class Reference:
    """The same networks without a pool: patched anew for every run."""

    def __init__(self) -> None:
        self._known: dict[Any, torch.Tensor] = {}

    def result(self, index: int, lora: tuple[int, float] | None, hook: int | None) -> torch.Tensor:
        key = (index, lora, hook)
        if key not in self._known:
            card = Card(100 * SIZE, VramState.HIGH_VRAM)
            handle = card.add("reference", network(index, NUM_LAYERS))
            self._known[key] = compute(handle, index, lora, hook, ())
        return self._known[key]


def compute(
    handle: Residency, index: int, lora: tuple[int, float] | None, hook: int | None, together: tuple[Residency, ...]
) -> torch.Tensor:
    module = network(index, NUM_LAYERS)
    patches = {} if lora is None else patch(module, *lora)
    with handle.in_use(
        working_bytes=WORKING_BYTES, patches=patches, patches_id=(index, lora), together_with=together
    ) as used:
        if hook is not None:
            handle.patch_hooks(patch(module, hook, 0.25), ("hook", hook))
        for other in together:
            other.module(X)
        result: torch.Tensor = used(X)
        return result


REFERENCE = Reference()


@settings(max_examples=40, deadline=None)
@given(sequences, st.floats(0.05, 2.0), st.sampled_from(STATES), st.integers(0, 3), st.booleans())
@example([("run", 0, None, 1, [])], 0.0625, VramState.NO_VRAM, 3, False)  # a hook's patch has the room of two buffers
def test_whatever_happens_results_are_the_same_bits_and_the_budget_holds(
    sequence: list[tuple[Any, ...]], share: float, state: VramState, streams: int, pins: bool
) -> None:
    numel = max(weight.numel() for weight in network(0, NUM_LAYERS).parameters())
    least = (numel * 4 + 512) + numel * (3 * 4 + 2 * 4) + WORKING_BYTES + 512  # a buffer, a patch, an evaluation
    card = Card(int(share * SIZE) + least, state, streams=streams, pinned_bytes=SIZE if pins else 0)
    handles = [card.add(f"model {index}", network(index, NUM_LAYERS)) for index in range(NUM_MODELS)]
    for step in sequence:
        match step:
            case ("run", index, lora, hook, together):
                beside = tuple(handles[other] for other in dict.fromkeys(together) if other != index)
                result = compute(handles[index], index, lora, hook, beside)
                assert torch.equal(result, REFERENCE.result(index, lora, hook))
            case ("unload",):
                card.pool.unload_all()
                assert card.device.charged_bytes == 0
            case ("end run",):
                card.pool.after_run()
            case ("keep", index):
                handles[index].keep()
            case ("memory_savings", weights_share):
                card.pool.memory_savings = MemorySavings(weights_share=weights_share)
            case ("reload", index):
                handles[index] = card.add(f"model {index}", network(index, NUM_LAYERS))
        card.pool.check_integrity()
        assert card.device.charged_bytes == card.pool.report().loaded_bytes, "memory that nobody accounts for"
        assert card.device.most_charged_bytes <= card.device.budget_bytes
    assert card.device.num_refused == 0, "a plan did not fit"
    assert card.pinned.pinned_bytes <= card.pinned.limit_bytes
    for index, handle in enumerate(handles):
        with handle.in_use(working_bytes=WORKING_BYTES) as module:
            originals = network(index, NUM_LAYERS).state_dict()
            assert all(torch.equal(weight, originals[name]) for name, weight in module.state_dict().items())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, NUM_MODELS - 1), min_size=2, max_size=8), st.floats(1.0, 2.9))
def test_what_leaves_is_always_what_was_used_longest_ago(order: list[int], share: float) -> None:
    card = Card(int(share * SIZE) + 2048)
    handles = [card.add(f"model {index}", network(index, NUM_LAYERS)) for index in range(NUM_MODELS)]
    used: list[int] = []
    for index in order:
        before = [handle.loaded_bytes for handle in handles]
        with handles[index].in_use():
            assert handles[index].loaded_bytes == SIZE
        used = [other for other in used if other != index] + [index]
        shrunk = [other for other in used if handles[other].loaded_bytes < before[other]]
        untouched = [other for other in used if other not in shrunk and before[other]]
        assert all(used.index(a) < used.index(b) for a in shrunk for b in untouched if b != index)
