"""Strategies that failed: barred, counted and named."""

from __future__ import annotations

import logging

import pytest

from darkroom.engine.tuning.barred import BarredStrategies, error_in_words


def test_the_first_error_stays_and_every_failure_counts(caplog: pytest.LogCaptureFixture) -> None:
    barred = BarredStrategies()
    assert "fused_qkv" not in barred and barred.reason("fused_qkv") is None
    with caplog.at_level(logging.WARNING):
        barred.bar(("cuda_graph", "step_graph"), "RuntimeError: not captured")
        barred.bar(("cuda_graph",), "RuntimeError: again")
        barred.bar((), "nothing was in force")
    assert "cuda_graph" in barred and barred.reason("cuda_graph") == "RuntimeError: not captured"
    assert barred.failures == {"cuda_graph": 2, "step_graph": 1}
    assert barred.reasons == dict.fromkeys(("cuda_graph", "step_graph"), "RuntimeError: not captured")
    assert [record.getMessage() for record in caplog.records] == [
        "strategies barred until the next start: names=cuda_graph,step_graph reason=RuntimeError: not captured",
        "strategies barred until the next start: names=cuda_graph reason=RuntimeError: again",
    ]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("no kernel\nstack"), "RuntimeError: no kernel"),
        (KeyError(), "KeyError"),
        (ValueError(""), "ValueError"),
    ],
)
def test_an_error_is_one_line(error: Exception, words: str) -> None:
    assert error_in_words(error) == words
