"""The owner of a job, by the id that somebody asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.jobs.admission import PLAIN_ID, clean_id
from darkroom.worker.jobs.ownership import OWN_ID, find_job, id_in_path, id_to_use, own_id
from darkroom.worker.settings.api_keys import ALL_SCOPES, CUSTOMER_SCOPES
from darkroom.worker.storage.job import Job, JobRequest, JobTimes
from darkroom.worker.storage.store import JobStore
from tests.worker.databases import opened

SHOP, STUDIO, NOBODY = (Identity(name, "", CUSTOMER_SCOPES) for name in ("shop", "studio", ""))
OPERATOR, MACHINE = Identity("ops", "", ALL_SCOPES), Identity("", "", ALL_SCOPES)


async def add(store: JobStore, job_id: str, owner: str, asked_id: str = "") -> Job:
    job = Job(job_id, store.take_number(), "hash", JobRequest(), {}, JobTimes(1), owner=owner, asked_id=asked_id)
    await store.insert(job)
    return job


async def test_each_finds_ones_own_and_an_operator_finds_all(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        of_shop = await add(store, await id_to_use(store, "one", "shop"), "shop")
        of_studio = await add(store, await id_to_use(store, "one", "studio"), "studio", "one")
        assert (of_shop.id, of_studio.id, of_studio.public_id) == ("one", own_id("one", "studio"), "one")
        for caller, found in ((SHOP, of_shop), (STUDIO, of_studio), (NOBODY, None), (OPERATOR, of_shop)):
            assert await find_job(store, "one", caller) is found
        for caller, found in ((SHOP, None), (STUDIO, of_studio), (NOBODY, None), (MACHINE, of_studio)):
            assert await find_job(store, of_studio.id, caller) is found
        assert await id_to_use(store, "one", "shop") == "one"
        assert await id_to_use(store, "one", "studio") == of_studio.id
        assert await id_to_use(store, "two", "studio") == "two"


async def test_a_job_under_its_own_id_is_found_when_the_others_is_gone(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        of_studio = await add(store, own_id("one", "studio"), "studio", "one")
        assert await id_to_use(store, "one", "studio") == of_studio.id
        assert await find_job(store, "one", STUDIO) is of_studio
        assert await find_job(store, "one", SHOP) is None


@pytest.mark.parametrize("asked", ["one", "a" * 128, "mine.png", "x-y_z"])
def test_nobody_can_ask_for_anothers_own_id(asked: str) -> None:
    own = own_id(asked, "shop")
    assert OWN_ID.fullmatch(own) and id_in_path(own) == own
    assert not PLAIN_ID.fullmatch(own) and clean_id(own) != own
    assert len({own, own_id(asked, "studio"), own_id(asked, "")}) == 3


@pytest.mark.parametrize("raw", ["../etc", "a/b", "a..b~" + "0" * 20, "~" + "0" * 20, "a~0", "a/..~" + "0" * 20])
def test_no_path_leads_out_of_the_jobs(raw: str) -> None:
    assert "/" not in id_in_path(raw) and ".." not in id_in_path(raw)
