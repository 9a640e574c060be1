"""The same requests through two fronts, one with our engine and one before a real ComfyUI: are the results the same?

    python -m benchmark.same_results --comfyui http://127.0.0.1:8188 --base BASE --checkpoint NAME

BASE is a ComfyUI base directory for our engine; ComfyUI must have the checkpoint, too. Both fronts are started here, on
free ports and with state of their own. Printed is one line a case, and every difference; the exit code is 1 when there
is one. Ids, times, paths and links are left out of the comparison, and pixels may differ by rounding.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from PIL import Image, ImageChops

from darkroom.worker.engines.supervisor import free_port

START_SECONDS = 300.0
JOB_SECONDS = 300.0
MAX_PIXEL_DIFFERENCE = 3
LEFT_OUT = frozenset({"id", "local_path", "url", "timings", "request_id", "details"})  # details: an engine's own words
TINY_PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAA"
    "AElFTkSuQmCC"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One request. `status`: what both must answer, so that two wrong answers that agree are no success."""

    name: str
    workflow: Mapping[str, Any]
    status: int = 200
    fields: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Mapping[str, Any]


def text_to_image(checkpoint: str, prefix: str, *, side_px: int = 64, steps: int = 2, batch: int = 1) -> dict[str, Any]:
    sampling = {"seed": 7, "steps": steps, "cfg": 5.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    links = {"model": ["1", 0], "positive": ["2", 0], "negative": ["3", 0], "latent_image": ["4", 0]}
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": checkpoint}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a boat", "clip": ["1", 1]}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["1", 1]}},
        "4": {"class_type": "EmptyLatentImage", "inputs": {"width": side_px, "height": side_px, "batch_size": batch}},
        "5": {"class_type": "KSampler", "inputs": {**sampling, **links}},
        "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
        "7": {"class_type": "SaveImage", "inputs": {"images": ["6", 0], "filename_prefix": prefix}},
    }


def changed(workflow: Mapping[str, Any], **nodes: Any) -> dict[str, Any]:
    """The workflow with node `n5` replaced (None: left out)."""
    merged = {**workflow, **{name[1:]: node for name, node in nodes.items()}}
    return {node_id: node for node_id, node in merged.items() if node is not None}


def with_inputs(workflow: Mapping[str, Any], node_id: str, **inputs: Any) -> dict[str, Any]:
    node = workflow[node_id]
    kept = {name: value for name, value in {**node["inputs"], **inputs}.items() if value is not None}
    return {**workflow, node_id: {**node, "inputs": kept}}


def make_cases(checkpoint: str, run: str) -> list[Case]:
    """`run` makes file names of this comparison its own."""
    plain = text_to_image(checkpoint, f"{run}/plain")
    saves = {"class_type": "SaveImage", "inputs": {"images": ["6", 0], "filename_prefix": f"{run}/second"}}
    preview = {"class_type": "PreviewImage", "inputs": {"images": ["6", 0]}}
    load = {"class_type": "LoadImage", "inputs": {"image": TINY_PNG}}
    loaded = {
        "1": load,
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": f"{run}/loaded"}},
    }
    sizes = {"width": 8, "height": 8, "batch_size": 1, "color": 255}
    empty = {"class_type": "EmptyImage", "inputs": sizes}
    saved = {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": f"{run}/never"}}
    enormous = {"width": 16384, "height": 16384, "batch_size": 4096}
    expression = {"string": "a", "regex_pattern": "(", "replace": "b"}
    return [
        Case("success", plain),
        Case("cached", plain),
        Case("base64", with_inputs(plain, "7", filename_prefix=f"{run}/b"), fields={"return_outputs_as_base64": True}),
        Case("batch", text_to_image(checkpoint, f"{run}/batch", batch=2)),
        Case("several save nodes", changed(plain, n8=saves)),
        Case("a preview beside", changed(plain, n8=preview)),
        Case("only a preview", changed(plain, n7=None, n8=preview), 422),
        Case("an image of the request", loaded),
        Case("missing model", with_inputs(plain, "1", ckpt_name="no-such.safetensors"), 422),
        Case("missing input", with_inputs(plain, "5", steps=None), 422),
        Case("wrong type", with_inputs(plain, "5", steps="many"), 422),
        Case("too small", with_inputs(plain, "5", steps=0), 422),
        Case("too large", with_inputs(plain, "4", width=99999), 422),
        Case("no such choice", with_inputs(plain, "5", sampler_name="magic"), 422),
        Case("unknown class", changed(plain, n6={"class_type": "NoSuchNode", "inputs": {}}), 422),
        Case("link to nowhere", with_inputs(plain, "7", images=["99", 0]), 422),
        Case("link of another type", with_inputs(plain, "7", images=["5", 0]), 422),
        Case("link to no such output", with_inputs(plain, "7", images=["6", 4]), 422),
        Case("several problems", with_inputs(with_inputs(plain, "5", steps=0), "1", ckpt_name="no-such"), 422),
        Case("nothing to save", changed(plain, n7=None), 422),
        Case("no nodes", {}, 422),
        Case("a node that is none", changed(plain, n9="text"), 422),
        Case("partly good", changed(plain, n8={"class_type": "SaveImage", "inputs": {"images": ["99", 0]}}), 422),
        Case(
            "node error",
            {
                "1": {"class_type": "RegexReplace", "inputs": expression},
                "2": empty,
                "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": ["1", 0]}},
            },
            500,
        ),
        Case(
            "out of memory",
            {
                "1": {"class_type": "EmptyImage", "inputs": {**sizes, **enormous}},
                "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
                "3": saved,
            },
            500,
        ),
        Case("cancelled", text_to_image(checkpoint, f"{run}/c", side_px=256, steps=500), 499, is_cancelled=True),
    ]  # fmt: skip


class FrontUnderTest:
    """One front. Every request gets an id of its own."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=JOB_SECONDS, trust_env=False)

    def ask(self, case: Case) -> Answer:
        job_id = f"same-{uuid.uuid4()}"
        body = {"input": {"request_id": job_id, "workflow_json": case.workflow, **case.fields}}
        if not case.is_cancelled:
            return self._answer(self._http.post("/generate/sync", json=body, headers=dict(case.headers)), job_id)
        self._http.post("/generate", json=body).raise_for_status()
        self._wait(job_id, lambda result: result["message"].startswith(("Generation started", "Progress")))
        self._http.post(f"/cancel/{job_id}").raise_for_status()
        self._wait(job_id, lambda result: result["status"] == "cancelled")
        return self._answer(self._http.get(f"/result/{job_id}"), job_id)

    def close(self) -> None:
        self._http.close()

    def _answer(self, reply: httpx.Response, job_id: str) -> Answer:
        return Answer(reply.status_code, json.loads(reply.text.replace(job_id, "JOB")))

    def _wait(self, job_id: str, is_so: Callable[[Any], bool]) -> None:
        until = time.monotonic() + JOB_SECONDS
        while not is_so(self._http.get(f"/result/{job_id}").json()):
            if time.monotonic() > until:
                raise TimeoutError(f"{job_id} did not get there")
            time.sleep(0.05)


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """One line for each place where two answers differ."""
    name = path.rpartition(".")[2]
    if name == "data" and isinstance(ours, str) and isinstance(theirs, str):
        if not same_image(ours, theirs):
            yield f"{path}: other pixels"
    elif isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in dict.fromkeys([*ours, *theirs]):
            if key not in LEFT_OUT:
                yield from differences(ours.get(key), theirs.get(key), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif plain(ours) != plain(theirs):
        yield f"{path}:\n    ours   {shown(ours)}\n    theirs {shown(theirs)}"


def plain(value: Any) -> Any:
    """A text without what depends on which other nodes there are, and without how far a run was."""
    return re.sub(r"\d+(\.\d+)?%.*|; did you mean .*", "", value) if isinstance(value, str) else value


def shown(value: Any) -> str:
    return json.dumps(value)[:600]


def same_image(first: str, second: str) -> bool:
    images = [Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB") for data in (first, second)]
    if images[0].size != images[1].size:
        return False
    extrema = ImageChops.difference(*images).getextrema()
    return all(isinstance(band, tuple) and band[1] <= MAX_PIXEL_DIFFERENCE for band in extrema)


def compare(ours_url: str, theirs_url: str, checkpoint: str, only: str = "") -> dict[str, list[str]]:
    """Case name to what is wrong with it; an empty list is good."""
    found: dict[str, list[str]] = {}
    ours, theirs = FrontUnderTest(ours_url), FrontUnderTest(theirs_url)
    try:
        for case in make_cases(checkpoint, f"same-{uuid.uuid4().hex[:8]}"):
            if only in case.name:
                answers = ours.ask(case), theirs.ask(case)
                found[case.name] = list(wrong_with(case, *answers))
    finally:
        ours.close()
        theirs.close()
    return found


def wrong_with(case: Case, ours: Answer, theirs: Answer) -> Iterator[str]:
    for name, answer in (("ours", ours), ("theirs", theirs)):
        if answer.status != case.status:
            yield f"{name} answers {answer.status}, not {case.status}: {shown(answer.body)}"
    yield from differences(ours.body, theirs.body)


@contextmanager
def running_fronts(base: Path, comfyui_url: str) -> Iterator[tuple[str, str]]:
    """The address of a front with our engine, and of one before ComfyUI, once both are ready."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        processes, urls = [], []
        try:
            for name, settings in (("ours", {"BASE_DIRECTORY": str(base)}), ("theirs", {"ENGINE_URL": comfyui_url})):
                port = free_port()
                environment = {
                    **{key: value for key, value in os.environ.items() if key != "ENGINE_URL"},
                    **{"BENCHMARK": "off", "CPU": "1", "PRECISION": "fp32", "MIN_FREE_DISK_BYTES": "0"},
                    **{"WORKER_PORT": str(port), "STATE_DIRECTORY": str(state / name), **settings},
                }
                with (state / f"{name}.log").open("wb") as log:
                    command = [sys.executable, "-m", "darkroom.worker"]
                    processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
                urls.append(f"http://127.0.0.1:{port}")
            for url, process in zip(urls, processes, strict=True):
                wait_until_ready(url, process)
            yield urls[0], urls[1]
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(timeout=60)


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the front ended with {process.returncode}")
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/ready", trust_env=False).status_code == 200:
                return
        time.sleep(0.2)
    raise TimeoutError(f"{url} is not ready")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmark.same_results", description=__doc__)
    parser.add_argument("--comfyui", required=True, help="address of a ComfyUI server")
    parser.add_argument("--base", type=Path, required=True, help="a ComfyUI base directory with the same checkpoint")
    parser.add_argument("--checkpoint", required=True, help="its name below models/checkpoints")
    parser.add_argument("--only", default="", help="part of the name of the cases to try")
    given = parser.parse_args()
    with running_fronts(given.base, given.comfyui) as (ours, theirs):
        found = compare(ours, theirs, given.checkpoint, given.only)
    for name, wrong in found.items():
        print(f"{'differs' if wrong else 'same   '} {name}")
        for line in wrong:
            print(f"  {line}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
