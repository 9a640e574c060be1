"""Variables of OpenMP that an engine sets for itself, where the operator has not."""

from __future__ import annotations

import os

import pytest

from engine.__main__ import set_up_openmp
from engine.memory.openmp import defaults_for, openmp_defaults


@pytest.mark.parametrize(
    ("quota", "threads"), [(None, None), (8.0, None), (4.0, "4"), (3.9, "3"), (1.5, "1"), (0.2, "1")]
)
def test_no_more_threads_than_the_quota_gives(quota: float | None, threads: str | None) -> None:
    assert defaults_for(8, quota).get("OMP_NUM_THREADS") == threads


def test_threads_spin_shortly() -> None:
    assert int(openmp_defaults()["GOMP_SPINCOUNT"]) < 300_000


def test_what_the_operator_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    set_up_openmp()
    assert (os.environ["GOMP_SPINCOUNT"], os.environ["OMP_NUM_THREADS"]) == ("7", "16")
