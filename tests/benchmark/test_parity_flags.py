"""The sets of flags, what is read of the cases' outcome, and two cases that need no model under a flag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark.parity_flags import CASES, SETS, add_to_results, chosen, read_lines, run_set
from darkroom.engine.server.flags import read_flags


def test_every_flag_of_model_memory_is_in_a_set() -> None:
    told = {flag for flags in SETS.values() for flag in flags if flag.startswith("--")}
    assert told >= {
        "--cpu", "--novram", "--lowvram", "--normalvram", "--highvram", "--gpu-only", "--disable-smart-memory",
        "--reserve-vram", "--async-offload", "--disable-async-offload", "--disable-pinned-memory",
    }  # fmt: skip
    for flags in SETS.values():
        read_flags(list(flags))


def test_what_passed_and_what_was_wrong_is_read_from_the_lines() -> None:
    lines = [
        "ok   base (1.2 s): 9_0.latent rel=3.00e-07",
        "FAIL lora (0.5 s): no expected outputs",
        "1 passed, 1 failed",
    ]
    assert read_lines(lines) == ({"base": 1.2, "lora": 0.5}, {"lora": "no expected outputs"})


def outcome(passed: list[str], failed: dict[str, str], num_loads: int) -> dict[str, Any]:
    memory = {"state": "NO_VRAM", "loads": num_loads, "relief_steps": {"caches": 1}}
    return {"flags": "--novram", "passed": passed, "failed": failed, "seconds": 5, "memory": memory}


def test_cases_can_be_run_a_few_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    add_to_results("novram", outcome(["a", "b"], {"c": "wrong", "d": "wrong"}, 2), 9, path)
    add_to_results("cpu", outcome(["a"], {}, 1), 9, path)
    add_to_results("novram", outcome(["c"], {"b": "worse"}, 3), 9, path)
    sets = json.loads(path.read_text("utf-8"))["sets"]
    assert list(sets) == ["cpu", "novram"] and sets["cpu"]["num_not_run"] == 8
    novram = sets["novram"]
    assert (novram["passed"], novram["num_passed"], novram["num_not_run"]) == ("a c", 2, 5)
    assert novram["failed"] == {"b": "worse", "d": "wrong"} and novram["seconds"] == 10
    assert novram["memory"] == {"state": "NO_VRAM", "loads": 5, "relief_steps": {"caches": 2}}


@pytest.mark.slow
def test_cases_run_against_an_engine_under_flags(tmp_path: Path) -> None:
    names = chosen(CASES, ["image_b*"], ["image_blend_*"])
    assert names == ["image_basic", "image_blur_sharpen"]
    found = run_set(SETS["novram"], tmp_path, names)
    assert (found["passed"], found["failed"], found["memory"]["state"]) == (names, {}, "NO_VRAM")
