"""Capture of CUDA graphs on a device of a test's: what is undone in which order, at whatever stage it fails."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from darkroom.engine.errors import DeviceLost, Interrupted, OutOfMemory
from darkroom.engine.tuning.barred import BarredStrategies
from darkroom.engine.tuning.capture import CaptureFailed, GraphRecorder, NotNow
from darkroom.engine.tuning.capture_rules import CaptureRefused
from darkroom.engine.tuning.graphs import OF_GRAPHS, Graphs
from darkroom.engine.tuning.made_tensors import OwnTensors
from tests.engine.tuning.replaying import Replaying

CARD = "meta"


class Generator:
    """Generator of a card, whose state is a number; one that a capture began and did not end draws nothing."""

    def __init__(self, state: int = 0, *, is_capturing: bool = False) -> None:
        self.state, self.is_capturing = state, is_capturing

    def get_state(self) -> int:
        return self.state

    def set_state(self, state: int) -> None:
        self.state = state

    def clone_state(self) -> Generator:
        return Generator(self.state)

    def graphsafe_set_state(self, other: Generator) -> None:
        self.state, self.is_capturing = other.state, other.is_capturing


class Graph:
    """CUDA graph as torch's `CUDAGraph.cpp` has it: the end of a capture stops where CUDA refuses."""

    def __init__(self, card: Card) -> None:
        self.card, self.has_ended = card, False

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        card = self.card
        card.calls.append(f"begin on {card.stream}, {capture_error_mode}")
        card.pools_underway.append(pool)
        card.pool_uses += 1
        card.fail("begin")
        card.generator.is_capturing = card.is_capturing_now = True

    def capture_end(self) -> None:
        card = self.card
        card.calls.append(f"end on {card.stream}")
        card.is_capturing_now = card.fails == "stuck"
        card.fail("end")
        card.fail("stuck")
        card.pools_underway.pop()
        card.fail("middle of the end")
        card.generator.is_capturing = False
        self.has_ended = True
        card.fail("instance")

    def replay(self) -> None:
        self.card.calls.append("replay")

    def reset(self) -> None:
        self.card.calls.append("reset")
        if self.has_ended:
            self.card.pool_uses -= 1


class Card:
    """Device that a capture uses, with what torch keeps for one: streams, open pools and a generator."""

    def __init__(self, fails: str = "", lost: str = "") -> None:
        self.fails, self.lost = fails, lost
        self.stream = "default"
        self.calls: list[str] = []
        self.pools_underway: list[object] = []
        self.pool_uses = 0
        self.reserved = 1000
        self.cached = 0
        self.generator = Generator(7)
        self.is_capturing_now = False
        self.num_streams = 0
        self.num_pools = 0

    def fail(self, stage: str) -> None:
        if self.fails == stage:
            raise RuntimeError(f"CUDA error: {stage}\nmore")

    def current_stream(self) -> str:
        return self.stream

    def default_stream(self) -> str:
        return "default"

    def new_stream(self) -> str:
        self.num_streams += 1
        return f"side {self.num_streams}"

    def set_stream(self, stream: str) -> None:
        self.stream = stream

    def wait_stream(self, waiting: str, other: str) -> None:
        self.calls.append(f"{waiting} waits for {other}")

    def is_capturing(self) -> bool:
        return self.is_capturing_now

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def empty_cache(self) -> None:
        self.calls.append("empty cache")
        if self.lost == "memory" and "reset" in self.calls:
            raise RuntimeError("CUDA error: captures underway")
        self.reserved, self.cached = self.reserved - self.cached, 0

    def reserved_bytes(self) -> int:
        return self.reserved

    def new_graph(self) -> Graph:
        return Graph(self)

    def new_pool(self) -> object:
        self.num_pools += 1
        return f"pool {self.num_pools}"

    def end_allocating(self, pool: object) -> None:
        self.calls.append("end allocating")
        if pool not in self.pools_underway:
            raise RuntimeError("not recording to this pool")
        self.pools_underway.remove(pool)

    def release_pool(self, pool: object) -> None:
        self.calls.append("release pool")
        self.pool_uses -= 1

    def draw(self) -> None:
        if self.generator.is_capturing or self.lost == "generator":
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        self.generator.state += 1


def work_on(card: Card, own_error: BaseException | None = None) -> Callable[[], torch.Tensor]:
    """Return work that draws a random number and takes memory: cached on its stream, but for a capture's."""
    x = torch.ones(2, device=CARD)

    def work() -> torch.Tensor:
        if card.is_capturing_now:
            card.reserved += 30
            if own_error is not None:
                raise own_error
        else:
            card.generator.state += 1
            card.reserved, card.cached = card.reserved + 500, card.cached + 500
        return x * 2

    return work


def test_a_capture_counts_the_memory_that_it_takes_and_uses_one_stream() -> None:
    card = Card()
    recorder = GraphRecorder(card)
    for _ in range(2):
        made = recorder.record(work_on(card))
        assert made.num_bytes == 30, "without what the warm-up left in the cache"
        assert [item.shape for item in made.read] == [(2,)]
    assert card.num_streams == 1 and card.stream == "default" and card.generator.state == 7
    assert card.calls[: len(card.calls) // 2] == [
        "side 1 waits for default", "default waits for side 1", "synchronize", "empty cache",
        "begin on side 1, thread_local", "end on side 1",
    ]  # fmt: skip


def test_graphs_share_a_pool_which_is_not_used_again_once_all_are_gone() -> None:
    """Torch asserts that a pool which it knows has a graph, and knows it while a tensor of the pool lives."""
    card = Card()
    recorder = GraphRecorder(card)
    first, second = (recorder.record(work_on(card)) for _ in range(2))
    assert card.num_pools == 1
    del first
    third = recorder.record(work_on(card))
    assert card.num_pools == 1, "the second one is there"
    del second, third
    gc.collect()
    recorder.record(work_on(card))
    assert card.num_pools == 2 and card.num_streams == 1


@pytest.mark.parametrize("stage", ["begin", "end", "middle of the end", "instance"])
def test_a_capture_that_fails_leaves_torch_as_it_was(stage: str) -> None:
    card = Card(fails=stage)
    with pytest.raises(CaptureFailed, match=f"RuntimeError: CUDA error: {stage}$"):
        GraphRecorder(card).record(work_on(card))
    assert card.stream == "default"
    assert not card.pools_underway and not card.generator.is_capturing and card.generator.state == 7
    assert card.pool_uses == (1 if stage == "middle of the end" else 0), "what nobody can tell is not given back twice"


def test_what_a_failed_end_leaves_open_is_closed_in_torchs_order() -> None:
    card = Card(fails="end")
    with pytest.raises(CaptureFailed):
        GraphRecorder(card).record(work_on(card))
    end = card.calls.index("end on side 1")
    assert card.calls[end + 1 :] == ["end allocating", "release pool", "reset", "synchronize", "empty cache"]


def test_work_that_fails_within_its_capture_ends_it() -> None:
    card = Card()
    with pytest.raises(CaptureFailed, match="RuntimeError: operation not permitted"):
        GraphRecorder(card).record(work_on(card, RuntimeError("operation not permitted when stream is capturing")))
    assert "end on side 1" in card.calls and "end allocating" not in card.calls
    assert card.stream == "default" and card.pool_uses == 0 and not card.generator.is_capturing


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory("no room to cast")])
def test_a_full_device_costs_the_one_graph_that_it_has_no_memory_for(error: Exception) -> None:
    card = Card()
    graphs = Graphs(GraphRecorder(card))
    full = work_on(card, error)
    x = {"x": torch.ones(2, device=CARD)}
    assert graphs.run("large", x, lambda given: full(), 100) is None
    assert graphs.obstacle is None and card.pool_uses == 0 and not card.generator.is_capturing
    assert graphs.run("small", x, lambda given: given["x"] * 2, 100) is not None


def test_a_run_that_is_cancelled_within_a_capture_is_no_failure_of_it() -> None:
    card = Card()
    with pytest.raises(Interrupted):
        GraphRecorder(card).record(work_on(card, Interrupted()))
    assert card.stream == "default" and card.pool_uses == 0


@pytest.mark.parametrize(("fails", "lost"), [("end", "memory"), ("end", "generator"), ("stuck", "")])
def test_a_device_that_is_not_as_before_is_lost(fails: str, lost: str) -> None:
    card = Card(fails=fails, lost=lost)
    with pytest.raises(DeviceLost, match="^CUDA graph: "):
        GraphRecorder(card).record(work_on(card))
    assert card.stream == "default"


def test_no_capture_begins_before_the_work_has_passed_the_rules() -> None:
    card = Card()
    x = torch.ones(2, device=CARD)
    with pytest.raises(CaptureRefused):
        GraphRecorder(card).record(lambda: x.copy_(torch.ones(2)))
    assert card.calls == ["side 1 waits for default", "default waits for side 1"] and card.stream == "default"


def test_what_the_first_call_alone_does_is_no_obstacle() -> None:
    """Examples are the choice of a kernel by its time, and numbers that are brought to the device once."""
    x, made = torch.ones(2, device=CARD), list[torch.Tensor]()

    def work() -> torch.Tensor:
        if not made:
            made.append(torch.zeros(2, device=CARD).copy_(torch.ones(2)))
        return x + made[0]

    assert len(GraphRecorder(Card()).record(work).read) == 2


def test_nothing_is_captured_beside_another_runs_work() -> None:
    card = Card()
    card.stream = "side of a decoder"
    with pytest.raises(NotNow):
        GraphRecorder(card).record(work_on(card))


# --- what becomes of a failure ---------------------------------------------------------------------------------------


def run(graphs: Graphs, key: str = "a", **extra: Any) -> torch.Tensor | None:
    return graphs.run(key, {"x": torch.ones(2)}, lambda given: given["x"] * 2, 100, **extra)


class Failing(Replaying):
    """A recorder that fails while it has an error."""

    error: Exception | None = None

    def failing(self, error: Exception) -> Callable[[Callable[[], torch.Tensor]], Any]:
        """Return the method to record, which raises the error."""
        self.error = error
        return self.record

    def record(self, work: Callable[[], torch.Tensor]) -> Any:
        if self.error is not None:
            self.num_recorded += 1
            raise self.error
        return super().record(work)


def test_after_a_failed_capture_no_graph_is_recorded_or_replayed_again() -> None:
    recorder, barred = Failing(), BarredStrategies()
    graphs = Graphs(recorder, barred=barred)
    assert run(graphs) is not None and len(graphs) == 1
    recorder.error = CaptureFailed("RuntimeError: CUDA error")
    assert run(graphs, "b") is None and len(graphs) == 0
    recorder.error = None
    assert run(graphs) is None and run(graphs, "c") is None and recorder.num_recorded == 2
    assert set(OF_GRAPHS) <= barred.reasons.keys()
    graphs.release()
    assert graphs.obstacle == "CaptureFailed: RuntimeError: CUDA error", "until the next start"


def test_a_lost_device_is_told_to_the_run() -> None:
    recorder = Failing()
    recorder.error = DeviceLost("CUDA graph: the stream captures after the end of its capture")
    graphs = Graphs(recorder)
    with pytest.raises(DeviceLost):
        run(graphs)
    assert graphs.obstacle is not None


def test_work_that_the_rules_refuse_is_computed_as_it_is_and_other_work_is_recorded() -> None:
    recorder = Failing()
    graphs = Graphs(recorder)
    recorder.error = CaptureRefused("aten._to_copy.default", "a tensor of the host is copied to the device", "x.py:1")
    assert run(graphs) is None and run(graphs) is None and recorder.num_recorded == 1
    recorder.error = None
    assert run(graphs, "b") is not None and graphs.obstacle is None


@pytest.mark.parametrize(
    "error",
    [CaptureRefused("aten.nonzero.default", "the shape of the result depends on data", "x.py:1"), None],
    ids=str,
)
def test_what_has_no_graph_is_not_tried_again_when_memory_is_given_back_or_weights_move(error: Exception) -> None:
    """Else each request would try in vain on a machine whose models take turns on the device."""
    recorder = Failing(num_bytes=200)
    graphs, layer = Graphs(recorder), torch.nn.Linear(2, 2)
    recorder.error = error
    for place in (1, 2):
        assert run(graphs, network=layer, place=place) is None
        graphs.release()
    assert recorder.num_recorded == 1
    assert run(graphs, network=torch.nn.Linear(2, 2)) is None and recorder.num_recorded == 2


@pytest.mark.parametrize("is_full", [False, True], ids=["too much memory", "the device was full"])
def test_what_had_too_little_memory_is_tried_again_when_there_is_more(is_full: bool) -> None:
    recorder = Failing(num_bytes=140)
    recorder.error = torch.OutOfMemoryError("CUDA out of memory") if is_full else None
    graphs, inputs = Graphs(recorder), {"x": torch.ones(2)}
    tries = []
    for most_bytes in (100, 120, 160, 160):
        found = graphs.run("a", inputs, lambda given: given["x"] * 2, most_bytes)
        recorder.error = None
        tries.append((found is not None, recorder.num_recorded))
    assert tries == [(False, 1), (False, 1), (True, 2), (True, 2)]


def test_weights_in_another_place_have_a_graph_of_their_own() -> None:
    graphs, layer = Graphs(Replaying()), torch.nn.Linear(2, 2)
    for place in (1, 2, 1):
        assert run(graphs, network=layer, place=place) is not None
    assert len(graphs) == 2


def test_not_all_work_without_a_graph_is_remembered() -> None:
    recorder = Failing()
    graphs = Graphs(recorder)
    recorder.error = RuntimeError("not possible")
    for number in range(300):
        assert run(graphs, str(number)) is None
    assert len(graphs._failed) < 300 and run(graphs, "299") is None and recorder.num_recorded == 300


def test_work_that_cannot_be_recorded_now_is_recorded_later() -> None:
    recorder = Failing()
    recorder.error = NotNow("another run computes")
    graphs = Graphs(recorder)
    assert run(graphs) is None
    recorder.error = None
    assert run(graphs) is not None


def test_memory_that_a_graph_reads_lives_as_long_as_it_does() -> None:
    table = torch.ones(3)

    class Reading(Replaying):
        def record(self, work: Callable[[], torch.Tensor]) -> Any:
            return (*super().record(work), (table, layer.weight))

    layer = torch.nn.Linear(2, 2)
    graphs = Graphs(Reading())
    assert run(graphs, network=layer) is not None
    (graph,) = graphs._graphs.values()
    assert [item is table for item in graph.held] == [True], "weights are moved, and known by their addresses"


def test_networks_at_the_same_addresses_have_graphs_of_their_own() -> None:
    recorder = Replaying()
    graphs = Graphs(recorder)
    for network in (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)):
        assert run(graphs, network=network) is not None
    assert recorder.num_recorded == 2


def test_a_graph_ends_with_the_tensors_that_it_reads() -> None:
    graphs, made = Graphs(Replaying()), OwnTensors()
    assert run(graphs, "a", of_run=made) is not None and run(graphs, "b") is not None
    made.drop()
    assert list(graphs._graphs) == ["b"]


def test_graphs_that_share_too_much_memory_are_forgotten_together() -> None:
    """Their memory is free only without all of them."""
    recorder = Replaying(num_bytes=60)
    graphs = Graphs(recorder)
    assert run(graphs, "a") is not None and run(graphs, "b") is not None
    assert list(graphs._graphs) == ["b"] and recorder.num_recorded == 3


class Waiting(Replaying):
    """A recorder that notes how many graphs there are whenever it waits."""

    def __init__(self, num_bytes: int = 10) -> None:
        super().__init__(num_bytes)
        self.graphs = Graphs(self, max_graphs=2)
        self.there: list[int] = []

    def wait(self) -> None:
        self.there.append(len(self.graphs))


@pytest.mark.parametrize("forget", ["release", "tensors dropped", "others recorded", "memory", "failure"])
def test_replays_are_done_before_the_memory_of_their_graph_is_given_back(forget: str) -> None:
    """Memory in growing segments is unmapped when the stream of captures is done, which no replay is launched on."""
    recorder, made = Waiting(60 if forget == "memory" else 10), OwnTensors()
    graphs = recorder.graphs
    assert run(graphs, "a", of_run=made) is not None and not recorder.there
    if forget == "release":
        graphs.release()
    elif forget == "tensors dropped":
        made.drop()
    elif forget == "failure":
        recorder.record = Failing().failing(CaptureFailed("RuntimeError: CUDA error"))  # type: ignore[method-assign, assignment]
        assert run(graphs, "b") is None
    else:
        for key in "bc":
            assert run(graphs, key) is not None
    assert recorder.there and min(recorder.there) > 0
    num_waits = len(recorder.there)
    graphs.release()
    graphs.release()
    assert len(recorder.there) <= num_waits + 1, "where there are none nothing is waited for"


def test_the_device_is_waited_for() -> None:
    card = Card()
    GraphRecorder(card).wait()
    assert card.calls == ["synchronize"]
