"""`--cache-ram`: what goes when memory is short, with an injected reading of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.runtime.cache.ram_pressure import RamPressureCache, choose_evictions
from darkroom.engine.runtime.cache.result_size import size_bytes
from darkroom.engine.runtime.cache.store import NodeResult
from tests.contract.graph.declared import node
from tests.engine.runtime.runs import Bench
from tests.engine.runtime.small_nodes import Calls, small_nodes

MIB = 2**20


@dataclass
class Machine:
    """Memory that the cache's own results use up. `moment` is the clock."""

    total_bytes: int = 1000 * MIB
    moment: float = 0.0
    looks: int = 0
    cache: RamPressureCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = RamPressureCache(100 * MIB, self.free_bytes, lambda: self.moment)

    def free_bytes(self) -> int:
        self.looks += 1
        return self.total_bytes - sum(kept.size_bytes for kept in self.cache._kept.values())

    def run(self, **sizes_mib: int) -> list[str]:
        """A run of nodes that leave so much each; the names of those that were kept from before."""
        keys = {name: name.encode() for name in sizes_mib}
        self.cache.begin(keys, {})
        known = [name for name, key in keys.items() if self.cache.get(None, key) is not None]
        for name in sizes_mib.keys() - set(known):
            self.cache.put(None, keys[name], result(sizes_mib[name] * MIB))
        for key in keys.values():
            self.cache.consumed(None, key)
        self.cache.check_integrity()
        return known

    def kept(self) -> set[str]:
        return {key.decode() for key in self.cache._kept}


def result(num_bytes: int) -> NodeResult:
    return NodeResult([[Sized(num_bytes)]], None)


@dataclass
class Sized:
    num_bytes: int

    def get_ram_usage(self) -> int:
        return self.num_bytes


def test_everything_is_kept_while_memory_is_plenty() -> None:
    machine = Machine()
    for index in range(8):
        machine.run(**{f"n{index}": 100})
    assert len(machine.kept()) == 8 and machine.run(n0=100) == ["n0"]


def test_the_oldest_goes_first_among_equals() -> None:
    machine = Machine()
    for index in range(10):
        machine.run(**{f"n{index}": 100})
    machine.run(small=1)
    assert machine.kept() == {"small", *(f"n{index}" for index in range(2, 10))}


def test_size_weighs_as_much_as_age() -> None:
    machine = Machine()
    machine.run(old=100)
    machine.run(large=750)
    machine.run(new=60)
    machine.run(small=1)
    assert machine.kept() == {"old", "new", "small"}


def test_more_than_the_headroom_is_freed_so_that_the_next_look_is_content() -> None:
    machine = Machine()
    for index in range(91):
        machine.run(**{f"n{index}": 10})
    machine.run(small=1)
    assert machine.free_bytes() >= 109 * MIB


def test_what_the_running_prompt_still_needs_stays() -> None:
    machine = Machine(total_bytes=0)
    machine.cache.begin({"a": b"a", "b": b"b"}, {})
    machine.cache.put(None, b"a", result(10 * MIB))
    machine.moment += 1
    machine.cache.put(None, b"b", result(10 * MIB))
    assert machine.kept() == {"a", "b"}
    machine.cache.consumed(None, b"a")
    machine.moment += 1
    machine.cache.put(None, b"b", result(10 * MIB))
    assert machine.kept() == {"b"}


def test_memory_is_looked_at_now_and_then_not_for_every_node() -> None:
    machine = Machine()
    machine.run(**{f"n{index}": 0 for index in range(1000)})
    assert machine.looks == 1
    machine.run(**{f"large{index}": 70 for index in range(3)})
    assert machine.looks == 1 + 1 + 3


def test_evictions_are_chosen_by_age_times_size() -> None:
    kept = [(b"new and large", 100, 0), (b"old and small", 10, 3), (b"old", 60, 3)]
    assert choose_evictions(kept, 1) == [b"old"]
    assert choose_evictions(kept, 61) == [b"old", b"new and large"]
    assert choose_evictions(kept, 0) == []


def test_a_results_size_is_that_of_its_storages_and_of_what_values_report() -> None:
    image = torch.zeros(4, 4)
    outputs: list[list[Any]] = [[{"samples": image, "again": image[1:]}], [Sized(5), b"abc", "text", None, 7]]
    assert size_bytes(outputs) == 4 * 4 * 4 + 5 + 3


def test_a_value_that_cannot_tell_its_size_counts_as_nothing() -> None:
    class Broken:
        def get_ram_usage(self) -> int:
            raise RuntimeError("no")

    assert size_bytes([Broken()]) == 0


@pytest.mark.parametrize(("free_mib", "calls_of_second_run"), [(1000, []), (0, ["1", "2"])])
def test_a_run_finds_what_memory_allowed_to_keep(tmp_path: Path, free_mib: int, calls_of_second_run: list[str]) -> None:
    calls = Calls()
    bench = Bench(tmp_path, small_nodes(calls), RamPressureCache(100 * MIB, lambda: free_mib * MIB))
    prompt = {"1": node("Number", value=2), "2": node("Show", a=["1", 0])}
    bench.run(prompt, "2")
    calls.clear()
    bench.run({"7": node("Number", value=8), "8": node("Show", a=["7", 0])}, "8")
    calls.clear()
    assert bench.run(prompt, "2").outputs == {"2": {"number": [2]}}
    assert calls == calls_of_second_run
