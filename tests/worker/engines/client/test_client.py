"""The client of ComfyUI's API against a server that falls silent, lies, dies and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.files import multipart
from darkroom.worker.engines.client.lost import EngineLost
from darkroom.worker.engines.graph_check import find_problems
from darkroom.worker.engines.http import EngineHttp
from darkroom.worker.engines.outcome import problems_of_rejection
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.errors import DeliveryFailed, EngineUnreachable, JobTimedOut, NodeFailed, OutOfMemory
from tests.fakes import FakeEngine, draw, fail, wait


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(tmp_path) as engine:
        yield engine


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[EngineClient]:
    client = EngineClient(engine.url)
    await client.start()
    yield client
    await client.close()


def ignore(_kind: str, _data: object) -> None:
    pass


class Beginning:
    """Listens to a run; `heard` is set once the engine has said that it runs."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def __call__(self, kind: str, _data: object) -> None:
        if kind == "execution_start":
            self.heard.set()


async def test_a_run_ends_with_its_outputs_and_a_file_can_be_had(client: EngineClient, tmp_path: Path) -> None:
    outcome = await client.runner.run(draw("ab", 3), "p-1", ignore, timeout_seconds=60)
    (image,) = outcome.outputs["1"]["images"]
    await client.files.view(image["filename"], image["subfolder"], image["type"], tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "ababab"


async def test_a_silent_socket_does_not_lose_the_end(engine: FakeEngine) -> None:
    client = EngineClient(engine.url)  # never started: no socket at all
    assert (await client.runner.run(draw(), "p-1", ignore, timeout_seconds=60)).outputs
    await client.close()


async def test_a_message_that_makes_no_sense_does_not_end_the_listening(client: EngineClient) -> None:
    def choke(_kind: str, data: object) -> None:
        raise TypeError(f"not a number: {data}")

    heard: list[str] = []
    await client.runner.run(draw(), "p-1", choke, timeout_seconds=60)
    await client.runner.run(draw(), "p-2", lambda kind, _: heard.append(kind), timeout_seconds=60)
    assert "execution_start" in heard


async def test_a_large_file_may_take_longer_than_one_answer(tmp_path: Path) -> None:
    async def answer_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
        for _ in range(6):
            await asyncio.sleep(0.5)
            writer.write(b"x")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer_slowly, "127.0.0.1", 0) as server:
        http = EngineHttp(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_seconds=2.0)
        async with http.stream("/view") as (status, pieces):
            assert (status, b"".join([piece async for piece in pieces])) == (200, b"xxxxxx")
        await http.close()


async def test_an_output_that_cannot_be_written_is_no_fault_of_the_engine(client: EngineClient, tmp_path: Path) -> None:
    with pytest.raises(DeliveryFailed):
        await client.files.view("a.png", "", "output", tmp_path / "missing" / "a.png")


async def test_failures_are_distinguished(client: EngineClient) -> None:
    failed = await client.runner.run(fail(), "p-1", ignore, timeout_seconds=60)
    assert isinstance(failed.error, NodeFailed)
    memory = await client.runner.run(
        {"9": {"class_type": "OutOfMemory", "inputs": {}}}, "p-2", ignore, timeout_seconds=60
    )
    assert isinstance(memory.error, OutOfMemory)


async def test_a_run_over_its_time_is_interrupted(client: EngineClient, engine: FakeEngine) -> None:
    with pytest.raises(JobTimedOut):
        await client.runner.run(wait(), "p-1", ignore, timeout_seconds=0.1)
    assert (await client.runner.run(draw(), "p-2", ignore, timeout_seconds=60)).outputs


async def test_a_cancelled_run_leaves_the_engine_free(client: EngineClient) -> None:
    beginning = Beginning()
    running = asyncio.create_task(client.runner.run(wait(), "p-1", beginning, timeout_seconds=60))
    await beginning.heard.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await client.runner.run(draw(), "p-2", ignore, timeout_seconds=60)).outputs


async def test_a_run_cancelled_while_its_prompt_is_on_the_way_leaves_the_engine_free(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.seconds_to_take = 0.2
    running = asyncio.create_task(client.runner.run(wait(), "sent", ignore, timeout_seconds=60))
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    engine.seconds_to_take = 0.0
    outcome = await client.runner.run(draw(), "next", ignore, timeout_seconds=60)
    assert outcome.error is None and not outcome.was_interrupted


async def test_a_prompt_that_was_sent_once_more_meanwhile_is_not_taken_back(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.seconds_to_take = 0.2
    first = asyncio.create_task(client.runner.run(wait(), "p-1", ignore, timeout_seconds=60))
    await asyncio.sleep(0.05)
    recalling = asyncio.create_task(client.runner.recall_waiting())
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    again = asyncio.create_task(client.runner.run(draw(), "p-1", ignore, timeout_seconds=60))
    await asyncio.wait_for(recalling, 60)
    assert (await again).outputs


async def test_a_lost_engine_ends_its_runs_at_once_and_says_whether_they_had_begun(
    client: EngineClient, engine: FakeEngine
) -> None:
    beginning = Beginning()
    first = asyncio.create_task(client.runner.run(wait(), "p-1", beginning, timeout_seconds=60))
    await beginning.heard.wait()
    second = asyncio.create_task(client.runner.run(wait(), "p-2", ignore, timeout_seconds=60))
    while not engine.num_pending:  # noqa: ASYNC110 - it runs in this loop
        await asyncio.sleep(0.001)
    client.mark_lost()
    ends = await asyncio.gather(first, second, return_exceptions=True)
    assert [isinstance(end, EngineLost) and end.was_running for end in ends] == [True, False]
    assert all(isinstance(end, EngineLost) for end in ends)


async def test_a_prompt_that_ended_its_engine_before_it_was_acknowledged_counts_as_begun(engine: FakeEngine) -> None:
    engine.loses_answers = 1  # as when the process ends under the prompt
    client = EngineClient(engine.url, is_supervised=True)
    running = asyncio.create_task(client.runner.run(wait(), "p-1", ignore, timeout_seconds=60))
    while engine.loses_answers:  # noqa: ASYNC110 - it runs in this loop
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.1)
    assert not running.done()  # whether its process has ended is not known yet
    client.mark_lost()
    with pytest.raises(EngineLost) as lost:
        await running
    assert lost.value.was_running
    await client.close()


async def test_an_engine_that_is_not_there_is_unreachable() -> None:
    client = EngineClient("http://127.0.0.1:9")
    with pytest.raises(EngineUnreachable):
        await client.calls.system_stats()


async def test_the_pool_gives_two_places_an_engine_in_the_order_of_admission(client: EngineClient) -> None:
    pool, order = EnginePool([client]), []

    async def use(number: int) -> None:
        async with pool.engine((0, number)):
            order.append(number)
            await asyncio.sleep(0.01)

    async with pool.engine((0, 0)), pool.engine((0, 1)):
        waiting = [asyncio.create_task(use(number)) for number in (4, 2, 3)]
        await asyncio.sleep(0.01)
        assert order == [] and pool.num_waiting == 3
        waiting[2].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == [2, 4]
    assert pool.prompts_by_url == {client.url: 0}


def test_a_prompt_without_an_output_node_has_nothing_to_save() -> None:
    info = {"A": {"input": {}, "output": ["INT"], "output_node": False}}
    (problem,) = find_problems({"1": {"class_type": "A", "inputs": {}}}, info).listed
    assert problem.message.startswith("Nothing to save")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (["9", 0], "bad_linked_input"),
        (["1", 5], "bad_linked_input"),
        (["1", 0], "return_type_mismatch"),
        ("x", "invalid_input_type"),
        (0, "value_smaller_than_min"),
        (99, "value_bigger_than_max"),
        (5, None),
    ],
)
def test_links_types_and_ranges_are_checked(value: object, kind: str | None) -> None:
    info = {
        "A": {"input": {}, "output": ["IMAGE"]},
        "B": {"input": {"required": {"n": ["INT", {"min": 1, "max": 9}]}}, "output": [], "output_node": True},
    }
    prompt = {"1": {"class_type": "A", "inputs": {}}, "2": {"class_type": "B", "inputs": {"n": value}}}
    assert [problem.type for problem in find_problems(prompt, info).listed] == ([] if kind is None else [kind])


def test_a_choice_that_is_still_being_fetched_is_no_problem() -> None:
    info = {"L": {"input": {"required": {"image": [["a.png"], {}]}}, "output": [], "output_node": True}}
    prompt = {"1": {"class_type": "L", "inputs": {"image": "b.png"}}}
    assert find_problems(prompt, info, {"b.png"}).listed == ()
    assert find_problems(prompt, info).listed[0].allowed == ["a.png"]


def test_a_rejection_lists_the_nodes_and_not_the_summary() -> None:
    error = {"type": "value_not_in_list", "message": "Value not in list", "details": "a: 'b'", "extra_info": {}}
    body = {
        "error": {"type": "prompt_outputs_failed_validation", "message": "Prompt outputs failed validation"},
        "node_errors": {"5": {"class_type": "KSampler", "errors": [error, error]}},
    }
    assert [problem.node_id for problem in problems_of_rejection(body)] == ["5", "5"]


def test_a_file_name_cannot_break_out_of_its_header() -> None:
    body, _ = multipart({}, "image", 'a"\r\nX: y', b"data")
    assert b'filename="a___X: y"' in body
