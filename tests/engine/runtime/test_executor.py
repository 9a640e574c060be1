"""Runs of a graph: the order of nodes and messages, caching, lists, lazy inputs, expansion, async nodes, failures."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from darkroom.engine.cancel import CancelToken
from darkroom.engine.events import (
    MemoryRelieved,
    NodeBlocked,
    NodeProgress,
    NodesCached,
    NodeStarted,
    NodeWarned,
    OutputReady,
    PreviewMade,
    RunFailed,
    RunInterrupted,
)
from darkroom.engine.nodes.library.basic.logic import comfy_switch_node
from darkroom.engine.nodes.library.basic.primitives import primitive_boolean
from darkroom.engine.runtime.cache.classic import ClassicCache
from darkroom.engine.runtime.cache.lru import LruCache
from darkroom.engine.runtime.cache.none import NoCache
from tests.contract.graph.declared import node
from tests.engine.runtime.runs import Bench
from tests.engine.runtime.small_nodes import LEAVING, Calls, small_nodes

SUM: dict[str, Any] = {
    "1": node("Number", value=2),
    "2": node("Number", value=3),
    "3": node("Add", a=["1", 0], b=["2", 0]),
    "4": node("Show", a=["3", 0]),
}


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def bench(tmp_path: Path, calls: Calls) -> Bench:
    return Bench(tmp_path, small_nodes(calls))


def shown(bench: Bench, prompt: dict[str, Any], *outputs: str) -> dict[str, Any]:
    result = bench.run(prompt, *outputs)
    assert result.status == "success", bench.events[-1]
    return {node_id: ui["number"] for node_id, ui in result.outputs.items()}


def test_a_run_reports_its_events_in_comfyuis_order(bench: Bench) -> None:
    result = bench.run(SUM, "4")
    assert result.outputs == {"4": {"number": [5]}}
    assert result.meta == {"4": {"node_id": "4", "display_node": "4", "parent_node": None, "real_node_id": "4"}}
    assert bench.story() == [
        "RunStarted",
        "NodesCached",
        "NodeStarted 2",
        "NodeFinished 2",
        "NodeStarted 1",
        "NodeFinished 1",
        "NodeStarted 3",
        "NodeFinished 3",
        "NodeStarted 4",
        "OutputReady 4",
        "NodeFinished 4",
        "RunSucceeded",
    ]


def test_the_same_prompt_again_runs_nothing_and_shows_the_same(bench: Bench, calls: Calls) -> None:
    bench.run(SUM, "4")
    calls.clear()
    result = bench.run(SUM, "4")
    assert calls == []
    assert result.outputs == {"4": {"number": [5]}}
    assert bench.story() == ["RunStarted", "NodesCached", "OutputReady 4", "NodeFinished 4", "RunSucceeded"]
    assert bench.of(NodesCached)[0].node_ids == ["1", "2", "3", "4"]
    assert bench.of(OutputReady)[0].is_cached


def test_only_what_follows_a_change_runs_again(bench: Bench, calls: Calls) -> None:
    bench.run(SUM, "4")
    calls.clear()
    assert shown(bench, {**SUM, "2": node("Number", value=4)}, "4") == {"4": [6]}
    assert calls == ["2", "3", "4"]


def test_the_classic_cache_forgets_what_a_prompt_does_not_name(bench: Bench, calls: Calls) -> None:
    bench.run(SUM, "4")
    bench.run({"1": node("Number", value=2), "9": node("Show", a=["1", 0])}, "9")
    calls.clear()
    bench.run(SUM, "4")
    assert calls == ["2", "3", "4"]


def test_the_lru_cache_remembers_earlier_prompts(tmp_path: Path, calls: Calls) -> None:
    bench = Bench(tmp_path, small_nodes(calls), LruCache(10))
    other = {"1": node("Number", value=7), "9": node("Show", a=["1", 0])}
    for prompt, output in ((SUM, "4"), (other, "9")):
        bench.run(prompt, output)
    calls.clear()
    bench.run(SUM, "4")
    assert calls == []


def test_without_a_cache_everything_runs_every_time(tmp_path: Path, calls: Calls) -> None:
    bench = Bench(tmp_path, small_nodes(calls), NoCache())
    for _ in range(2):
        calls.clear()
        bench.run(SUM, "4")
        assert sorted(calls) == ["1", "2", "3", "4"]


def test_nodes_that_are_alike_share_one_result(bench: Bench, calls: Calls) -> None:
    prompt = {**SUM, "2": node("Number", value=2)}
    assert shown(bench, prompt, "4") == {"4": [4]}
    assert calls == ["2", "3", "4"]


def test_an_output_whose_file_is_gone_is_made_again(bench: Bench, calls: Calls) -> None:
    prompt = {"1": node("Number", value=2), "2": node("Save", a=["1", 0])}
    file = bench.files.output / "file_00001_.txt"
    bench.run(prompt, "2")
    assert file.read_text() == "2"
    bench.run(prompt, "2")
    assert calls == ["1", "2"]
    file.unlink()
    bench.run(prompt, "2")
    assert calls == ["1", "2", "2"] and file.exists()


def test_a_list_calls_a_node_for_each_element_and_shorter_ones_repeat(bench: Bench) -> None:
    prompt = {
        "1": node("Range", count=4),
        "2": node("Range", count=2),
        "3": node("Add", a=["1", 0], b=["2", 0]),
        "4": node("Show", a=["3", 0]),
        "5": node("Total", a=["3", 0]),
        "6": node("Show", a=["5", 0]),
    }
    assert shown(bench, prompt, "4", "6") == {"4": [0, 2, 3, 4], "6": [9]}


def test_only_the_lazy_input_that_is_needed_runs(bench: Bench, calls: Calls) -> None:
    prompt = {
        "1": node("Number", value=1),
        "2": node("Number", value=2),
        "3": node("Choose", pick=1, first=["1", 0], second=["2", 0]),
        "4": node("Show", a=["3", 0]),
    }
    assert shown(bench, prompt, "4") == {"4": [2]}
    assert calls == ["2", "3", "4"]


def test_a_branch_that_a_switch_leaves_out_may_be_anything(tmp_path: Path, calls: Calls) -> None:
    bench = Bench(tmp_path, (*small_nodes(calls), comfy_switch_node, primitive_boolean))

    def switched(unused: dict[str, Any]) -> dict[str, Any]:
        return {
            "1": node("Number", value=1),
            "2": unused,
            "3": node("PrimitiveBoolean", value=True),
            "4": node("ComfySwitchNode", switch=["3", 0], on_false=["2", 0], on_true=["1", 0]),
            "5": node("Show", a=["4", 0]),
        }

    assert shown(bench, switched(node("NoSuchClass", a=["1", 0])), "5") == {"5": [1]}
    assert calls == ["1", "5"]
    again = bench.run(switched(node("Number", value=9)), "5")  # what does not run changes no result
    assert again.outputs == {"5": {"number": [1]}}
    assert calls == ["1", "5"]


def test_a_blocked_node_does_not_run_and_nothing_is_said(bench: Bench, calls: Calls) -> None:
    prompt = {"1": node("Block"), "2": node("Show", a=["1", 0]), "3": node("Number"), "4": node("Show", a=["3", 0])}
    assert shown(bench, prompt, "2", "4") == {"4": [0]}
    assert "2" not in calls and bench.of(NodeBlocked) == []


def test_a_block_with_a_message_is_reported_once(bench: Bench) -> None:
    number = node("Number", value=1)
    prompt = {
        "0": number,
        "1": node("Block", message="not today"),
        "2": node("Add", a=["1", 0], b=["0", 0]),
        "3": node("Show", a=["2", 0]),
    }
    assert bench.run(prompt, "3").status == "success"
    (blocked,) = bench.of(NodeBlocked)
    assert (blocked.node_id, blocked.message) == ("2", "Execution Blocked: not today")


def warned(bench: Bench) -> list[tuple[str, str, str]]:
    """The last run's warnings: node, class and message."""
    return [(event.node_id, event.class_type, event.message) for event in bench.of(NodeWarned)]


def test_what_a_node_warns_of_is_told_once(bench: Bench) -> None:
    prompt = {
        "1": node("Doubt", message="no file"),
        "2": node("Add", a=["1", 0], b=["1", 0]),
        "3": node("Show", a=["2", 0]),
        "4": node("Show", a=["1", 0]),
    }
    assert bench.run(prompt, "3", "4").status == "success"
    assert warned(bench) == [("1", "Doubt", "no file")]


def test_a_result_from_the_cache_warns_again_of_what_it_was_made_without(bench: Bench) -> None:
    prompt = {"1": node("Doubt", message="no file"), "2": node("Add", a=["1", 0], b=["1", 0])}
    prompt["3"] = node("Show", a=["2", 0])
    for _ in range(2):
        bench.run(prompt, "3")
        assert warned(bench) == [("1", "Doubt", "no file")]
    bench.run({**prompt, "5": node("Show", a=["2", 0])}, "3", "5")
    assert warned(bench) == [("1", "Doubt", "no file")]
    bench.run({**prompt, "1": node("Doubt", message="none")}, "3")
    assert warned(bench) == [("1", "Doubt", "none")]


def test_a_warning_is_of_the_node_that_the_prompt_has_for_it_now(bench: Bench) -> None:
    bench.run({"1": node("Doubt", message="no file"), "2": node("Show", a=["1", 0])}, "2")
    bench.run({"7": node("Doubt", message="no file"), "2": node("Show", a=["7", 0])}, "2")
    assert warned(bench) == [("7", "Doubt", "no file")]


def test_what_a_node_inside_of_an_expansion_warns_of_is_of_the_client_s_node(bench: Bench) -> None:
    prompt = {"1": node("DoubtInside", message="no file"), "2": node("Show", a=["1", 0])}
    for _ in range(2):
        bench.run(prompt, "2")
        assert [(node_id, message) for node_id, _, message in warned(bench)] == [("1", "no file")]


def test_a_node_expands_into_a_graph(bench: Bench, calls: Calls) -> None:
    prompt = {"1": node("Sum", values="1 2 3"), "2": node("Show", a=["1", 0])}
    assert shown(bench, prompt, "2") == {"2": [6]}
    inner = [event.node for event in bench.of(NodeStarted) if event.node.node_id == "1.s0"][0]
    assert (inner.display_node_id, inner.parent_node_id, inner.real_node_id) == ("1", "1", "1")
    calls.clear()
    assert shown(bench, {**prompt, "1": node("Sum", values="1 2 4")}, "2") == {"2": [7]}
    assert calls == ["1", "1.v1", "1.s1", "2"]


def test_a_loop_by_expansion_needs_no_recursion(bench: Bench) -> None:
    assert shown(bench, {"1": node("Countdown", count=2000), "2": node("Show", a=["1", 0])}, "2") == {"2": [0]}


def test_a_cycle_made_at_run_time_blames_the_node_that_made_it(bench: Bench) -> None:
    result = bench.run({"1": node("Tangle"), "2": node("Show", a=["1", 0])}, "2")
    assert result.status == "error"
    (failed,) = bench.of(RunFailed)
    assert (failed.node_id, failed.exception_type) == ("1", "graph.DependencyCycleError")
    assert failed.exception_message == "Dependency cycle detected"


def test_async_nodes_run_at_the_same_time_and_others_go_on(bench: Bench, calls: Calls) -> None:
    prompt = {
        "a": node("Wait", milliseconds=30),
        "b": node("Wait", milliseconds=31),
        "c": node("Number", value=5),
        "ab": node("Add", a=["a", 0], b=["b", 0]),
        "abc": node("Add", a=["ab", 0], b=["c", 0]),
        "out": node("Show", a=["abc", 0]),
    }
    assert shown(bench, prompt, "out") == {"out": [66]}
    assert set(calls[:2]) == {"a starts", "b starts"}
    assert calls.index("c") < calls.index("a ends")


def test_an_async_node_that_fails_is_that_nodes_failure(bench: Bench) -> None:
    prompt = {"a": node("AsyncFail"), "b": node("Wait", milliseconds=5000), "c": node("Add", a=["a", 0], b=["b", 0])}
    result = bench.run({**prompt, "d": node("Show", a=["c", 0])}, "d")
    assert result.status == "error"
    assert (bench.of(RunFailed)[0].node_id, bench.of(RunFailed)[0].exception_type) == ("a", "ValueError")


@pytest.mark.parametrize("how", LEAVING)
@pytest.mark.parametrize(
    "node_of", [{"class_type": "Leave"}, *({"class_type": "AsyncLeave", "milliseconds": wait} for wait in (0, 1))]
)
def test_a_node_that_leaves_by_sys_exit_or_a_cancelled_task_fails_and_takes_nothing_with_it(
    bench: Bench, how: str, node_of: dict[str, Any]
) -> None:
    result = bench.run({"1": node(**node_of, how=how), "2": node("Show", a=["1", 0])}, "2")
    (failed,) = bench.of(RunFailed)
    assert (result.status, failed.node_id, failed.code) == ("error", "1", "node_failed")
    assert failed.exception_type.endswith(LEAVING[how].__name__)
    assert shown(bench, SUM, "4") == {"4": [5]}


def test_what_cannot_be_sent_as_json_fails_the_node_that_shows_it(bench: Bench) -> None:
    result = bench.run({"1": node("ShowOdd")}, "1")
    (failed,) = bench.of(RunFailed)
    assert (result.status, result.outputs, failed.node_id, failed.exception_type) == ("error", {}, "1", "TypeError")
    assert "JSON" in failed.exception_message


def test_a_failure_is_reported_as_by_comfyui(bench: Bench) -> None:
    prompt = {"1": node("Number", value=2), "2": node("Fail", a=["1", 0]), "3": node("Show", a=["2", 0])}
    result = bench.run(prompt, "3")
    assert result.status == "error" and result.outputs == {}
    (failed,) = bench.of(RunFailed)
    assert (failed.node_id, failed.class_type, failed.executed) == ("2", "Fail", ["1"])
    assert (failed.exception_type, failed.exception_message) == ("IndexError", "no such thing\n")
    assert failed.current_inputs == {"a": [2]}
    assert failed.current_outputs == ["1", "2", "3"]
    assert failed.code == "node_failed"
    assert any("small_nodes.py" in line for line in failed.traceback)


def test_after_a_failure_what_did_run_is_known(bench: Bench, calls: Calls) -> None:
    prompt = {"1": node("Number", value=2), "2": node("Fail", a=["1", 0]), "3": node("Show", a=["2", 0])}
    bench.run(prompt, "3")
    calls.clear()
    bench.run(prompt, "3")
    assert calls == ["2"]


def greedy(times: int) -> dict[str, Any]:
    return {
        "0": node("Number", value=1),
        "1": node("Add", a=["0", 0], b=1),
        "2": node("Greedy", a=["1", 0], times=times),
        "3": node("Show", a=["2", 0]),
    }


def test_a_node_out_of_memory_runs_again_with_more_room(bench: Bench, calls: Calls) -> None:
    kept: list[int] = []
    bench.when_relieved = lambda: kept.append(len(bench.results))
    assert shown(bench, greedy(times=1), "3") == {"3": [2]}
    assert calls == ["0", "1", "2", "2", "3"] and kept == [0]
    assert [event.node.node_id for event in bench.of(NodeStarted)] == ["0", "1", "2", "3"]


def test_a_node_that_stays_out_of_memory_fails_and_says_what_was_tried(bench: Bench, calls: Calls) -> None:
    bench.run(greedy(times=5), "3")
    (failed,) = bench.of(RunFailed)
    assert failed.code == "out_of_memory" and failed.exception_type == "engine.errors.OutOfMemory"
    assert failed.exception_message.startswith(
        "too much\nThe node was tried 3 times. To make room: caches, other_models."
    )
    assert [event.step for event in bench.of(MemoryRelieved)] == ["caches", "other_models"]
    assert calls == ["0", "1", "2", "2", "2"] and bench.relieved == 2
    assert bench.run(SUM, "4").status == "success"


@pytest.mark.parametrize(("times", "steps"), [(1, []), (2, ["caches"]), (3, ["caches", "other_models"])])
def test_an_async_node_out_of_memory_after_it_waited_runs_again_with_more_room(
    bench: Bench, calls: Calls, times: int, steps: list[str]
) -> None:
    assert shown(bench, {"1": node("AsyncGreedy", times=times), "2": node("Show", a=["1", 0])}, "2") == {"2": [7]}
    assert [event.step for event in bench.of(MemoryRelieved)] == steps
    assert calls.count("1") == times + 1


def test_an_async_node_that_stays_out_of_memory_fails_and_says_what_was_tried(bench: Bench, calls: Calls) -> None:
    bench.run({"1": node("AsyncGreedy"), "2": node("Show", a=["1", 0])}, "2")
    (failed,) = bench.of(RunFailed)
    assert failed.code == "out_of_memory"
    assert "too much later\nThe node was tried 4 times. To make room: caches, other_models." in failed.exception_message
    assert calls == ["1"] * 4 and bench.run(SUM, "4").status == "success"


def test_an_interrupt_stops_an_async_node_that_is_called_again(bench: Bench, calls: Calls) -> None:
    cancel = CancelToken()
    bench.when_relieved = cancel.cancel
    result = bench.run({"1": node("AsyncGreedy"), "2": node("Show", a=["1", 0])}, "2", cancel=cancel)
    assert result.status == "interrupted" and calls.count("1") <= 3


def test_an_expansion_goes_on_after_a_node_in_it_ran_out_of_memory(tmp_path: Path, calls: Calls) -> None:
    for cache in (ClassicCache(), NoCache(), LruCache(5)):
        bench = Bench(tmp_path, small_nodes(calls), cache)
        calls.clear()
        prompt = {"1": node("Sum", values="1 2 3"), "2": node("Greedy", a=["1", 0], times=1)}
        prompt |= {"3": node("Add", a=["2", 0], b=["1", 0]), "4": node("Show", a=["3", 0])}
        assert shown(bench, prompt, "4") == {"4": [12]}


def test_progress_and_previews_are_reported_as_they_come(bench: Bench) -> None:
    bench.wants_previews = True
    bench.run({"1": node("Steps", count=2), "2": node("Show", a=["1", 0])}, "2")
    assert [(event.value, event.maximum) for event in bench.of(NodeProgress)] == [(1, 2), (2, 2)]
    assert [event.image for event in bench.of(PreviewMade)] == [b"\0", b"\1"]


def test_an_interrupt_stops_a_node_at_its_next_step(bench: Bench) -> None:
    cancel = CancelToken()
    result = bench.run(
        {"1": node("Steps", count=9), "2": node("Show", a=["1", 0])},
        "2",
        cancel=cancel,
        on_event=lambda event: cancel.cancel() if isinstance(event, NodeProgress) else None,
    )
    assert result.status == "interrupted"
    assert len(bench.of(NodeProgress)) == 1
    (told,) = bench.of(RunInterrupted)
    assert (told.node_id, told.class_type, told.executed) == ("1", "Steps", [])


def test_an_interrupt_from_another_thread_wakes_a_run_that_waits(bench: Bench) -> None:
    cancel = CancelToken()

    def on_event(event: object) -> None:
        if isinstance(event, NodeStarted):
            threading.Timer(0.02, cancel.cancel).start()

    result = bench.run(
        {"1": node("Wait", milliseconds=60_000), "2": node("Show", a=["1", 0])}, "2", cancel=cancel, on_event=on_event
    )
    assert result.status == "interrupted"


def test_hidden_inputs_are_filled_in(bench: Bench) -> None:
    prompt = {"7": node("Who")}
    result = bench.run(prompt, "7", extra_data={"extra_pnginfo": {"workflow": 1}})
    assert result.outputs["7"]["who"] == ["7", ["as it was"], {"workflow": 1}, "Who"]
    assert prompt == {"7": node("Who")}


def test_values_are_cast_even_when_the_prompt_was_not_checked(bench: Bench) -> None:
    assert shown(bench, {"1": node("Number", value="4"), "2": node("Show", a=["1", 0])}, "2") == {"2": [4]}
