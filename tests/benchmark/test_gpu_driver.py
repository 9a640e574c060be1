"""The driver of the GPU benchmark: time, processes that die, files that are whole, and the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmark import gpu
from benchmark.gpu_files import append_line, read_object, write_whole
from benchmark.gpu_process import LOG_HEAD_BYTES, LOG_TAIL_BYTES, BoundedLog, RunningPart, reason_of
from benchmark.gpu_schedule import PARTS, Part, budget, chosen, may_begin, told_seconds
from benchmark.gpu_table import rows_of, table

ROOT = Path(__file__).resolve().parents[2]
TIMED = Part("speed", "", 20.0, 5.0)
UNTIMED = Part("right", "", 20.0, 5.0, is_timed=False)

# What a part's process does, in few words; the result's file is its first argument.
DONE = """
import json, sys
json.dump({"figures": {"x": 1}, "failures": {}, "is_complete": True, "device": "a card", "is_toy": False},
          open(sys.argv[1], "w"))
"""
NOTED = DONE.replace("True, ", "False, ", 1)
HANGS = (
    NOTED
    + """
import subprocess, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(sys.argv[1] + ".child", "w").write(str(child.pid))
time.sleep(60)
"""
)
CRASHES = NOTED + "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
TALKS = DONE + f"for n in range({(LOG_HEAD_BYTES + LOG_TAIL_BYTES) // 50}): print(n, 'x' * 90)\n"
DOES_NOTHING = "pass"


def call_of(
    tmp_path: Path, parts: dict[str, str], *, minutes: float = 1.0, want: float = 20.0, least: float = 0.2
) -> Any:
    """A call whose parts run these programs."""
    results, out = tmp_path / "results", tmp_path / "out"
    results.mkdir()
    out.mkdir()
    log = BoundedLog(out / "log.txt")

    def start(name: str, limit: float) -> RunningPart:
        return RunningPart(
            name, [sys.executable, "-c", parts[name], str(results / f"{name}.json")], tmp_path, limit, log
        )

    return gpu.Call(out, [Part(name, "", want, least) for name in parts], minutes, start, results)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_part_gets_what_it_wants_or_what_is_left_and_is_skipped_below_its_least() -> None:
    assert budget(TIMED, 100.0) == 20.0
    assert budget(TIMED, 14.0) == 10.0
    assert budget(TIMED, 8.0) is None
    assert told_seconds(20.0) == 18.0 and told_seconds(100.0) == 96.0


def test_parts_that_are_timed_run_alone_and_others_four_at_a_time() -> None:
    assert may_begin(TIMED, []) and may_begin(UNTIMED, [])
    assert not may_begin(TIMED, [UNTIMED]) and not may_begin(UNTIMED, [TIMED])
    assert may_begin(UNTIMED, [UNTIMED] * 3) and not may_begin(UNTIMED, [UNTIMED] * 4)


def test_the_parts_have_names_of_their_own_and_modules() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names) == 14
    assert all((ROOT / "benchmark" / "gpu_parts" / f"{name}.py").is_file() for name in names)
    assert all(part.least_seconds <= part.want_seconds for part in PARTS)
    assert names[:3] == ["machine", "sd15", "capture"]


def test_parts_are_chosen_by_name_in_their_own_order() -> None:
    assert [part.name for part in chosen(["flux", "sd15"], is_toy=False)] == ["sd15", "flux"]
    with pytest.raises(ValueError, match="unknown part; got 'sd16'"):
        chosen(["sd16"], is_toy=False)


# --- processes -------------------------------------------------------------------------------------------------------


def test_a_part_that_hangs_or_crashes_costs_itself_and_keeps_what_it_noted(tmp_path: Path) -> None:
    call = call_of(tmp_path, {"hangs": HANGS, "crashes": CRASHES, "silent": DOES_NOTHING, "done": DONE}, want=1.0)
    call.run()
    entries = call.entries
    assert entries["hangs"]["reason"].startswith("killed after") and entries["hangs"]["figures"] == {"x": 1}
    assert entries["crashes"]["reason"] == "ended by SIGSEGV" and entries["crashes"]["figures"] == {"x": 1}
    assert entries["silent"]["reason"] == "it ended without a report"
    assert entries["done"]["status"] == "done"
    child = int((tmp_path / "results" / "hangs.json.child").read_text())
    assert not is_running(child), "its group was killed"
    report = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert report["is_finished"] and set(report["not_done"]) == {"hangs", "crashes", "silent"}
    lines = [json.loads(line) for line in (tmp_path / "out" / "gpu.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["hangs", "crashes", "silent", "done"]
    assert "`crashes`: ended by SIGSEGV" in (tmp_path / "out" / "table.md").read_text()


def test_parts_for_which_no_time_is_left_are_named(tmp_path: Path) -> None:
    call = call_of(tmp_path, {"done": DONE}, minutes=0.05, least=5.0)
    call.run()
    assert call.entries["done"]["reason"] == "skipped: 0 s were left, it needs 5"


def test_of_much_output_the_log_has_the_beginning_and_the_end(tmp_path: Path) -> None:
    call = call_of(tmp_path, {"talks": TALKS})
    call.run()
    text = (tmp_path / "out" / "log.txt").read_text()
    assert len(text) < LOG_HEAD_BYTES + LOG_TAIL_BYTES + 1000 and "bytes left out" in text
    assert text.startswith("talks: 0 x") and f"talks: {(LOG_HEAD_BYTES + LOG_TAIL_BYTES) // 50 - 1} x" in text


def test_asked_to_end_the_driver_ends_its_children_and_leaves_whole_files(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmark" / "gpu.py"),
        "--toy",
        "--out",
        str(tmp_path),
        "--only",
        "sd15,wan",
    ]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline().startswith("sd15 ...")
    time.sleep(0.3)
    driver.send_signal(signal.SIGTERM)
    shown, _ = driver.communicate(timeout=30)
    assert driver.returncode == 143
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert report["not_done"] == {"sd15": "stopped: StoppedError", "wan": "stopped: StoppedError"}
    assert not report["is_finished"]
    assert "stopped" in shown and sorted(path.name for path in tmp_path.iterdir()) == [
        "gpu.json", "gpu.jsonl", "log.txt", "table.md"
    ]  # fmt: skip


def test_the_driver_imports_no_torch() -> None:
    code = "import sys; import benchmark.gpu; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_an_unknown_part_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--out", str(tmp_path), "--only", "nothing"])
    assert "unknown part; got 'nothing'" in capsys.readouterr().err


def test_reasons_name_the_signal_or_the_exit_code() -> None:
    assert reason_of(-9, was_killed=False, limit_seconds=1) == "ended by SIGKILL"
    assert reason_of(3, was_killed=False, limit_seconds=1) == "exit code 3"
    assert reason_of(0, was_killed=False, limit_seconds=1) is None
    assert reason_of(-9, was_killed=True, limit_seconds=12) == "killed after 12 s"


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_are_replaced_whole_and_broken_ones_count_as_none(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.json", '{"x": 1}')
    write_whole(tmp_path / "a.json", '{"x": 2}')
    assert read_object(tmp_path / "a.json") == {"x": 2} and [path.name for path in tmp_path.iterdir()] == ["a.json"]
    (tmp_path / "b.json").write_text('{"x": ')
    assert read_object(tmp_path / "b.json") == {} == read_object(tmp_path / "c.json")
    append_line(tmp_path / "l", {"a": 1})
    append_line(tmp_path / "l", {"a": 2})
    assert (tmp_path / "l").read_text() == '{"a": 1}\n{"a": 2}\n'


# --- table -----------------------------------------------------------------------------------------------------------

FOUND = {
    "machine": {"figures": {"matrix": {"bfloat16_tflops": 400.0}}},
    "sd15": {"figures": {"batch_1": {"plain": {"it_per_s": 40.0}, "cuda_graph": {"it_per_s": 120.0}}}},
    "flux": {"figures": {"bfloat16": {"plain": {"it_per_s": 5.0}, "all": {"it_per_s": 10.0}}}},
    "peer_comfyui": {"figures": {"sd15_512": {"plain": {"it_per_s": 60.0}}, "flux_1024": {"plain": {"it_per_s": 8.0}}}},
}


def test_figures_stand_beside_goal_floor_and_peers() -> None:
    rows = {row["label"]: row for row in rows_of(FOUND, is_toy=False)}
    best = rows["SD1.5 512², best"]
    assert best["value"] == 120.0 and best["is_met"] is False and best["by_goal"] == pytest.approx(120 / 130)
    assert best["by_peers"] == {"ComfyUI": 2.0}
    assert best["of_floor_measured"] == pytest.approx(120 * 1.607 / 400)
    assert best["of_floor_790"] == pytest.approx(120 * 1.607 / 790)
    flux = rows["Flux.1-dev 1024², best bf16"]
    assert flux["value"] == pytest.approx(0.1) and flux["by_goal"] == pytest.approx(1.5)
    assert flux["by_peers"] == {"ComfyUI": pytest.approx(1.25)}
    assert flux["is_met"] is False, "the goal's time is reached, but not 1.5 times ComfyUI"


def test_a_toys_figures_are_compared_with_nothing() -> None:
    rows = rows_of(FOUND, is_toy=True)
    assert rows and all(row["of_floor_790"] is None and row["goal"] == "–" for row in rows)


def test_the_table_names_what_failed() -> None:
    failures = {f"case {number}": "it   broke\nin two" for number in range(9)}
    entry = {"reason": None, "status": "done", "seconds": 2.0, "failures": failures}
    rows = rows_of(FOUND, is_toy=False)
    head = {"is_toy": False, "device": "a card", "total_seconds": 10, "minutes": 1}
    text = table({**head, "rows": rows, "parts": {"sd15": entry}})
    assert "| SD1.5 512², best | 120 it/s | ≥ 130 | no | 0.92 x |" in text and "2.00 x ComfyUI (60)" in text
    assert "case 0: it broke in two" in text and "and 3 more" in text


@pytest.mark.parametrize("wrong", [{"is_finite": False}, {"error": 0.06}, {"error": "nan"}])
def test_a_way_that_draws_something_else_is_never_the_best(wrong: dict[str, Any]) -> None:
    ways = {"plain": {"it_per_s": 40.0, "is_finite": True}, "all": {"it_per_s": 400.0, "error": 0.001, **wrong}}
    rows = {row["label"]: row for row in rows_of({"sd15": {"figures": {"batch_1": ways}}}, is_toy=False)}
    assert rows["SD1.5 512², best"]["value"] == 40.0


def test_float8_products_may_be_as_far_off_as_a_draft() -> None:
    parts = {
        "flux": {"figures": {"float8": {"a": {"it_per_s": 4.0, "error": 0.1}, "b": {"it_per_s": 9.0, "error": 0.9}}}}
    }
    rows = {row["label"]: row for row in rows_of(parts, is_toy=False)}
    assert rows["Flux.1-dev 1024², float8 products"]["value"] == 0.25


def test_a_part_that_has_lost_the_card_gives_the_table_no_figures(tmp_path: Path) -> None:
    toy = DONE.replace('"is_toy": False', '"is_toy": True').replace('"x": 1', '"batch_1": {"plain": {"it_per_s": 9.0}}')
    call = call_of(tmp_path, {"machine": DONE, "sd15": toy})
    call.run()
    report = call.report()
    assert not report["is_toy"] and report["rows"] == [] and report["device"] == "a card"
    assert "`sd15`: done, 0 s; it saw no GPU, and is left out of the table" in table(report)


def test_the_table_of_a_toy_says_so() -> None:
    head = {"is_toy": True, "device": "cpu", "total_seconds": 10, "minutes": 1}
    assert table({**head, "rows": [], "parts": {}}).startswith("cpu: toy sizes, the figures mean nothing; 10 s of 60")
