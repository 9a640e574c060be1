"""A costly figure is remembered for a moment."""

from __future__ import annotations

from darkroom.worker.observe.ttl_cached import TTL_SECONDS, TtlCached


def test_a_figure_is_read_again_only_when_it_is_old() -> None:
    now, figures = [0.0], iter((1, 2, 3))
    recent = TtlCached(lambda: next(figures), lambda: now[0])
    assert (recent(), recent()) == (1, 1)
    now[0] = TTL_SECONDS
    assert recent() == 1
    now[0] += 0.001
    assert (recent(), recent()) == (2, 2)
