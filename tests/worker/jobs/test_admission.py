"""Steps between a request and its job on disk: ids, repetition, reasons to come later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.worker.errors import DiskLow, Draining, NotReady, QueueFull, RequestRejected, WaitTooLong
from darkroom.worker.jobs.admission import PLAIN_ID, Admission, Gate, clean_id
from darkroom.worker.jobs.queue_info import QueueInfo
from darkroom.worker.jobs.wait_estimate import RunClock
from darkroom.worker.settings.jobs import QueueLimits
from darkroom.worker.storage.job import Job, JobRequest, JobTimes
from darkroom.worker.storage.store import JobStore
from tests.worker.databases import opened

LIMITS = QueueLimits(
    max_queued=2, max_wait_seconds=10.0, min_free_disk_bytes=1000, min_free_memory_bytes=0, job_timeout_seconds=60.0
)


class Place:
    def __init__(self, store: JobStore) -> None:
        self.store, self.gate, self.free = store, Gate(), 10_000
        self.clock = RunClock()
        info = QueueInfo(self.store.jobs.values, lambda: 1, self.clock, lambda priority: 0)
        self.admission = Admission(self.store, self.gate, LIMITS, info, lambda: self.free)
        self.num_made = 0

    async def make(self, job_id: str = "one") -> Job:
        self.num_made += 1
        await asyncio.sleep(0)
        return Job(job_id, self.store.take_number(), "hash", JobRequest(), {}, JobTimes(0))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with opened(tmp_path) as store:
        place = Place(store)
        place.gate.open()
        yield place


@given(st.text())
def test_an_id_is_always_safe_as_a_folder_and_its_own_cleaning(raw: str) -> None:
    cleaned = clean_id(raw)
    assert PLAIN_ID.fullmatch(cleaned) and ".." not in cleaned
    assert clean_id(cleaned) == cleaned


def test_different_dirty_ids_stay_different() -> None:
    assert clean_id("a/b") != clean_id("a?b")


async def test_requests_with_one_id_that_arrive_together_are_one_job(place: Place) -> None:
    admitted = await asyncio.gather(*(place.admission.admit("one", "hash", place.make) for _ in range(5)))
    assert [entry.is_new for entry in admitted].count(True) == 1
    assert place.num_made == 1


async def test_of_many_that_arrive_together_as_many_get_in_as_there_is_room_for(place: Place) -> None:
    asked = (place.admission.admit(name, "hash", lambda name=name: place.make(name)) for name in "abcdefgh")  # type: ignore[misc]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers].count(QueueFull) == 8 - LIMITS.max_queued
    assert len(place.store.jobs) == LIMITS.max_queued


async def test_a_job_whose_caller_leaves_while_it_is_written_is_begun_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, insert = asyncio.Event(), place.store.insert

    def insert_as_the_caller_leaves(job: Job) -> asyncio.Task[None]:
        admitting.cancel()
        return insert(job)

    monkeypatch.setattr(place.store, "insert", insert_as_the_caller_leaves)
    admitting = asyncio.ensure_future(place.admission.admit("one", "hash", place.make, begin=lambda job: begun.set()))
    await asyncio.wait_for(begun.wait(), 60)
    assert admitting.cancelled() and list(place.store.jobs) == ["one"]


async def test_a_database_that_cannot_be_written_is_503_and_leaves_the_id_free(place: Place) -> None:
    await place.store.database.call(lambda: place.store.database.connected().exec_driver_sql("PRAGMA max_page_count=1"))

    async def make() -> Job:
        return Job("one", 1, "hash", JobRequest(), {"1": "x" * 100_000}, JobTimes(0))

    with pytest.raises(DiskLow):
        await place.admission.admit("one", "hash", make)
    assert (await place.admission.admit("one", "hash", place.make)).is_new


async def test_a_request_that_is_refused_leaves_its_id_free(place: Place) -> None:
    async def refuse() -> Job:
        raise RequestRejected([])

    with pytest.raises(RequestRejected):
        await place.admission.admit("one", "other", refuse)
    assert (await place.admission.admit("one", "hash", place.make)).is_new


async def test_a_job_that_would_expire_before_its_turn_is_refused_unless_a_broker_sent_it(place: Place) -> None:
    await place.admission.admit("a", "hash", lambda: place.make("a"))
    place.clock.add(seconds=8.0, cost=100.0)

    async def expiring(seconds: float, receipt: str = "") -> Job:
        job = await place.make("b")
        job.request = JobRequest(expires_seconds=seconds, receipt=receipt)
        return job

    with pytest.raises(WaitTooLong, match="about 8.0 s; got a limit of 5 s") as late:
        await place.admission.admit("b", "hash", lambda: expiring(5.0))
    assert late.value.retry_after_seconds == 3.0
    assert (await place.admission.admit("b", "hash", lambda: expiring(5.0, "receipt"))).is_new


async def test_each_reason_to_come_later_is_distinguished(place: Place) -> None:
    place.free = 10
    with pytest.raises(DiskLow):
        place.admission.check_room()
    place.free = 10_000
    await place.admission.admit("a", "hash", lambda: place.make("a"))
    place.clock.add(seconds=11.0, cost=100.0)
    with pytest.raises(WaitTooLong) as late:
        place.admission.check_room()
    assert late.value.fields["estimated_wait_seconds"] == 11.0
    await place.store.insert(await place.make("b"))
    with pytest.raises(QueueFull):
        place.admission.check_room()
    place.gate.close("testing")
    with pytest.raises(NotReady, match="testing"):
        place.admission.check_room()
    place.gate.drain()
    with pytest.raises(Draining):
        place.admission.check_room()
