"""The sets of flags, what is read of the cases' outcome, and two cases that need no model under a flag."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.parity_flags import SETS, add_to_results, chosen, read_lines, run_set
from engine.server.flags import read_flags

PARITY = Path(__file__).parents[3] / "shared" / "parity"


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


def test_a_set_replaces_its_own_outcome_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    for name, number in (("novram", 1), ("cpu", 2), ("novram", 3)):
        add_to_results(name, {"num_passed": number}, path)
    sets = json.loads(path.read_text("utf-8"))["sets"]
    assert list(sets.items()) == [("cpu", {"num_passed": 2}), ("novram", {"num_passed": 3})]


@pytest.mark.slow
@pytest.mark.skipif(not PARITY.is_dir(), reason=f"no parity cases at {PARITY}")
def test_cases_run_against_an_engine_under_flags(tmp_path: Path) -> None:
    names = chosen(PARITY / "cases", ["image_b*"], ["image_blend_*"])
    assert names == ["image_basic", "image_blur_sharpen"]
    outcome = run_set(SETS["novram"], PARITY, tmp_path, names)
    assert (outcome["num_passed"], outcome["failed"], outcome["memory"]["state"]) == (2, {}, "NO_VRAM")
