"""Caches of the threads that runs take."""

from __future__ import annotations

from darkroom.engine.runtime.cache.classic import ClassicCache
from darkroom.engine.runtime.run_caches import RunCaches


class CountsClears(ClassicCache):
    def __init__(self) -> None:
        super().__init__()
        self.num_clears = 0

    def clear(self) -> None:
        self.num_clears += 1
        super().clear()


def test_caches_that_a_run_uses_are_cleared_at_its_end_and_the_others_at_once() -> None:
    made: list[CountsClears] = []

    def make() -> CountsClears:
        made.append(CountsClears())
        return made[-1]

    caches = RunCaches(make, 2)
    with caches.in_use(0):
        caches.clear()
        assert [cache.num_clears for cache in made] == [0, 1]
    assert [cache.num_clears for cache in made] == [1, 1]
    with caches.in_use(0):
        pass
    assert made[0].num_clears == 1, "nobody asked for it again"


def test_each_slot_has_its_own() -> None:
    caches = RunCaches(ClassicCache, 2)
    assert caches.results(0) is not caches.results(1) and caches.instances(0) is not caches.instances(1)
