"""Decisions in bytes alone: what leaves, how much comes, and that no plan exceeds the device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from darkroom.engine.memory.plan import (
    Limits,
    LoadRequest,
    ResidentModel,
    choose_blocks,
    eviction_order,
    plan_residency,
)

NO_LIMITS = Limits(reserve_bytes=0, minimum_inference_bytes=0)


def test_the_order_of_eviction_is_the_documented_one() -> None:
    residents = [
        ResidentModel(1, 50, 50, last_used=1, is_kept=True),
        ResidentModel(2, 50, 50, last_used=3),
        ResidentModel(3, 50, 50, last_used=2, references=2),
        ResidentModel(4, 60, 60, last_used=2),
        ResidentModel(5, 50, 50, last_used=2),
        ResidentModel(6, 20, 50, last_used=2),
    ]
    assert [item.id for item in eviction_order(residents)] == [6, 4, 5, 3, 2, 1]


def test_no_more_leaves_than_has_to() -> None:
    others = [ResidentModel(1, 50, 50, last_used=2), ResidentModel(2, 50, 50, last_used=1)]
    plan = plan_residency([LoadRequest(9, 40)], others, free_bytes=20, working_bytes=10, limits=NO_LIMITS)
    assert [(item.id, item.num_bytes) for item in plan.evict] == [(2, 30)]
    assert plan.weights == {9: 40} and plan.missing_bytes == 0
    assert plan_residency([LoadRequest(9, 40)], others, free_bytes=50, limits=NO_LIMITS).evict == ()


def test_a_margin_for_inference_and_the_reserve_stay_free() -> None:
    limits = Limits(reserve_bytes=10, minimum_inference_bytes=30)
    plan = plan_residency([LoadRequest(1, 100, block_bytes=5)], [], free_bytes=100, working_bytes=20, limits=limits)
    assert plan.weights == {1: 50} and (plan.num_buffers, plan.buffer_bytes) == (2, 5)
    larger = plan_residency([LoadRequest(1, 100, block_bytes=5)], [], free_bytes=100, working_bytes=50, limits=limits)
    assert larger.weights == {1: 30}


def test_room_is_kept_for_what_passes_through_while_a_model_loads_and_is_patched() -> None:
    model = LoadRequest(1, 100, block_bytes=5, conversion_bytes=30, patching_bytes=20)
    whole = plan_residency([model], [], free_bytes=130, working_bytes=15, limits=NO_LIMITS)
    assert (whole.weights, whole.missing_bytes) == ({1: 100}, 0)
    # In part, blocks are patched on the way, in the midst of computing.
    part = plan_residency([model], [], free_bytes=129, working_bytes=15, limits=NO_LIMITS)
    assert part.weights == {1: 129 - (15 + 20) - 2 * 5}


def test_the_margin_gives_way_before_a_model_cannot_run() -> None:
    limits = Limits(reserve_bytes=10, minimum_inference_bytes=100)
    model = LoadRequest(1, 1000, fixed_bytes=10, block_bytes=20)
    plan = plan_residency([model], [], free_bytes=60, working_bytes=30, limits=limits)
    assert (plan.weights, plan.num_buffers, plan.missing_bytes) == ({1: 10}, 1, 0)


def test_a_model_that_cannot_come_in_part_takes_all_or_lacks() -> None:
    plan = plan_residency([LoadRequest(1, 100, block_bytes=5)], [], free_bytes=80, limits=NO_LIMITS, in_part=False)
    assert plan.weights == {1: 100} and plan.missing_bytes == 20


def test_small_models_come_whole_beside_a_large_one_in_part() -> None:
    models = [LoadRequest(1, 100, block_bytes=10), LoadRequest(2, 20, block_bytes=2)]
    plan = plan_residency(models, [], free_bytes=80, limits=NO_LIMITS)
    assert plan.weights == {1: 40, 2: 20}


def test_economy_lets_less_come_than_would_fit() -> None:
    model = LoadRequest(1, 100, fixed_bytes=20, block_bytes=10)
    half = plan_residency([model], [], free_bytes=500, limits=NO_LIMITS, weights_share=0.5)
    none = plan_residency([model], [], free_bytes=500, limits=NO_LIMITS, weights_share=0.0)
    assert (half.weights, none.weights) == ({1: 60}, {1: 20})


def test_large_blocks_come_first_and_equal_ones_stay_where_they_are() -> None:
    assert choose_blocks([10, 40, 20, 20], [False, False, False, True], 65) == [False, True, False, True]


models = st.lists(
    st.builds(
        lambda *figures: figures,
        st.lists(st.integers(1, 50), min_size=1, max_size=8),
        st.integers(0, 20),
        st.floats(0, 1),
        st.booleans(),
        st.integers(0, 30),  # patched weights beside originals
    ),
    min_size=1,
    max_size=3,
)
others = st.lists(st.tuples(st.integers(1, 100), st.floats(0.1, 1), st.integers(0, 5)), max_size=4)


open_ones = st.tuples(st.integers(0, 2), st.integers(1, 60))


@given(
    models, others, st.integers(0, 400), st.integers(0, 100), st.integers(0, 50), st.integers(1, 3), st.booleans(),
    open_ones,
)  # fmt: skip
def test_no_plan_exceeds_what_there_is(
    coming: list[tuple[list[int], int, float, bool, int]],
    there: list[tuple[int, float, int]],
    free: int,
    working: int,
    minimum: int,
    max_buffers: int,
    in_part: bool,
    opened: tuple[int, int],
) -> None:
    requests = [
        LoadRequest(
            index, sum(blocks) + fixed, int((sum(blocks) + fixed) * loaded), fixed, max(blocks), casts,
            patched_copy_bytes=beside,
        )
        for index, (blocks, fixed, loaded, casts, beside) in enumerate(coming)
    ]  # fmt: skip
    num_open = min(opened[0], max_buffers)
    open_buffers = (num_open, opened[1] if num_open else 0)
    residents = [
        ResidentModel(100 + index, max(1, int(size * loaded)), size, last_used=used)
        for index, (size, loaded, used) in enumerate(there)
    ]
    limits = Limits(reserve_bytes=0, minimum_inference_bytes=minimum)
    plan = plan_residency(
        requests, residents, free_bytes=free, working_bytes=working, limits=limits, max_buffers=max_buffers,
        in_part=in_part, open_buffers=open_buffers,
    )  # fmt: skip
    there_bytes = sum(item.loaded_bytes for item in requests) + sum(item.loaded_bytes for item in residents)
    everything = free + there_bytes
    evicted = {item.id: item.num_bytes for item in plan.evict}
    staying = sum(item.loaded_bytes - evicted.get(item.id, 0) for item in residents)
    beside = sum(item.patched_copy_bytes for item in requests)
    taken = sum(plan.weights.values()) + beside + plan.num_buffers * plan.buffer_bytes + working + staying
    assert taken <= everything + plan.missing_bytes
    assert plan.num_buffers >= open_buffers[0] and plan.buffer_bytes >= open_buffers[1], "those that are open stay"
    assert all(item.fixed_bytes <= plan.weights[item.id] <= item.size_bytes for item in requests)
    order = [item.id for item in eviction_order(residents)]
    assert [item.id for item in plan.evict] == order[: len(plan.evict)]
