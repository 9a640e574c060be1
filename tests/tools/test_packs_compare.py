"""Values that two engines recorded are compared, and prompts for them are made up from declarations."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.comfy.loading import loaded
from tools.packs_compare import HERE, WORKFLOWS, Comparison, Outcome, Server, difference, read_values, unlike, verdict
from tools.packs_inputs import NotMakeable, Sources, shrink

RECORDER_PACK = HERE / "packs_recorder"
INFO: dict[str, Any] = {
    "Source": {"input": {"required": {"seed": ["INT", {"default": 3}]}}, "output": ["THING"]},
    "Sizes": {
        "input": {
            "required": {
                "thing": ["THING"],
                "width": ["INT", {"default": 512, "min": 16}],
                "steps": ["INT", {"default": 20}],
                "model": [["lora_a.safetensors", "sd15_small.safetensors"]],
                "unknown": ["STRING", {}],
            },
            "optional": {"other": ["ELSEWHERE"]},
        },
        "output": ["IMAGE"],
    },
}


@pytest.mark.parametrize(
    ("found", "wanted", "is_exact", "expected"),
    [
        ({"/0": np.ones(3)}, {"/0": np.ones(3) + 1e-6}, False, ""),
        ({"/0": np.ones(3)}, {"/0": np.ones(3) + 1e-6}, True, "/0 differs by 1e-06"),
        ({"/0": np.ones(3)}, {"/0": np.array([1, 1, np.nan])}, False, "/0 differs by inf"),
        ({"/0": np.ones(3)}, {"/0": np.ones((1, 3))}, False, "/0 has shape [3], not [1, 3]"),
        ({"/0": np.array([1, 2])}, {"/0": np.array([1, 3])}, False, "/0 differs by 0.32"),
        ({"/0": "a"}, {"/0": "b"}, False, "/0 is 'a', not 'b'"),
        ({"/0": 1.0}, {"/0": 1.000001}, False, ""),
        ({}, {"/0": 1}, False, "/0 is there alone"),
        ({"/0": np.zeros(0)}, {"/0": np.zeros(0)}, False, ""),
    ],
)
def test_floats_agree_within_a_part_of_their_size_and_all_else_exactly(
    found: dict[str, Any], wanted: dict[str, Any], is_exact: bool, expected: str
) -> None:
    assert difference(found, wanted, is_exact=is_exact) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (Outcome({"a": {"/0": 1}}), Outcome({"a": {"/0": 1}}), ""),
        (Outcome({"a": {"/0": 1}}), Outcome({"a": {"/0": 2}}), "differs: a: /0 is '1', not '2'"),
        (Outcome({}, "Node: x 12"), Outcome({}, "Node: x 34"), "fails alike: Node: x 34"),
        (Outcome({}, "one"), Outcome({}, "other"), "fails in both: here one; there other"),
        (Outcome({}, "one"), Outcome({"a": {}}), "fails here: one"),
        (Outcome({"a": {}}), Outcome({}, "other"), "fails there: other"),
        (Outcome({}), Outcome({}), "no output"),
        (Outcome({"b": {"/0": 1}}), Outcome({"b": {"/0": 1}}), "not recorded: a"),
    ],
)
def test_a_verdict_says_who_fails_or_what_differs(ours: Outcome, theirs: Outcome, expected: str) -> None:
    assert verdict(ours, theirs, dict.fromkeys(["a", *theirs.values], False)) == expected


def test_values_that_one_engine_does_not_repeat_are_found() -> None:
    one = Outcome({"a": {"/0": 1, "/1": np.zeros(2)}})
    other = Outcome({"a": {"/0": 2, "/1": np.zeros(2)}})
    assert unlike(one, other, {"a": False}) == {("a", "/0")}


def test_inputs_are_made_up_by_nodes_of_the_pack_and_are_small() -> None:
    prompt: dict[str, Any] = {}
    inputs = Sources(INFO, prompt, ["Source"]).inputs("Sizes")
    assert inputs == {
        "thing": ["Source-0", 0],
        "width": 64,
        "steps": 4,
        "model": "sd15_small.safetensors",
        "unknown": "a red fox",
    }
    assert prompt == {"Source-0": {"class_type": "Source", "inputs": {"seed": 3}}}
    with pytest.raises(NotMakeable, match="it takes a THING"):
        Sources(INFO, {}, []).inputs("Sizes")


def test_a_workflow_is_made_small_and_gets_files_that_are_there() -> None:
    given = {"thing": ["7", 0], "width": 1024, "steps": 30, "model": "big.safetensors", "unknown": "text"}
    (made,) = shrink({"1": {"class_type": "Sizes", "inputs": given}}, INFO).values()
    assert made["inputs"] == {
        "thing": ["7", 0],
        "width": 64,
        "steps": 4,
        "model": "sd15_small.safetensors",
        "unknown": "text",
    }


def test_each_workflow_is_in_api_format_and_links_to_nodes_that_it_has() -> None:
    files = sorted(WORKFLOWS.glob("*.json"))
    assert files
    for file in files:
        for name, prompt in json.loads(file.read_text("utf-8")).items():
            links = [value for node in prompt.values() for value in node["inputs"].values() if isinstance(value, list)]
            assert all(link[0] in prompt for link in links if len(link) == 2 and isinstance(link[1], int)), (file, name)


def test_no_prompt_is_queued_behind_one_that_does_not_end(tmp_path: Path) -> None:
    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"queue_running": [[0, "hangs"]], "queue_pending": []}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Busy) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        server = Server(f"http://127.0.0.1:{served.server_port}", tmp_path)
        found = Comparison(server, server, {}, {}).compare({}, "pack")
        served.shutdown()
    assert found.startswith("not run: http://127.0.0.1") and found.endswith("it still runs an earlier prompt")


def test_what_a_recorder_gets_is_written_anew_in_each_run(tmp_path: Path) -> None:
    pack = tmp_path / "custom_nodes"
    pack.mkdir()
    (pack / "recorder").symlink_to(RECORDER_PACK, target_is_directory=True)
    prompt = {"1": {"class_type": "DarkroomRecordValue", "inputs": {"value": "a fox", "name": "kept"}}}
    with loaded(tmp_path) as made:
        written = Path(made.engine.files.of("output"), "packs_compare", "kept.npz")
        for _ in range(2):
            assert made.run(prompt).status == "success"
            assert read_values(written) == {"/length": 1, "/0": "a fox"}
            written.unlink()
