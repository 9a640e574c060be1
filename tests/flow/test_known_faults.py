"""Known faults of workers of this kind, each as a test against the real processes.

First the seven faults found by running the most used wrapper of the `/generate` API, then what users of such workers
complain of where requests are concerned. Each test's docstring is the complaint.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.flow.bodies import image_request, modifier_request, workflow, workflow_request
from tests.flow.receiver import Receiver
from tests.flow.running_worker import CHECKPOINT, RunningWorker

MANY_STEPS = 5000


def long_request(**fields: Any) -> dict[str, Any]:
    request = modifier_request(**fields)
    request["input"]["modifications"]["steps"] = MANY_STEPS
    return request


def start(worker: RunningWorker, name: str, request: dict[str, Any] | None = None) -> None:
    body = request or long_request(request_id=name)
    assert httpx.post(f"{worker.url}/generate", json=body, timeout=30).status_code == 202


def cancel(worker: RunningWorker, name: str) -> httpx.Response:
    return httpx.post(f"{worker.url}/cancel/{name}", timeout=30)


def until_message(worker: RunningWorker, name: str, words: str) -> None:
    while not worker.get(f"/result/{name}").json()["message"].startswith(words):
        time.sleep(0.02)


def events_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data:"):
            yield json.loads(line[5:])


@pytest.fixture
def running(worker: RunningWorker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a job that draws for as long as the test needs it."""
    name = f"long-{request.node.name}"
    start(worker, name)
    until_message(worker, name, "Progress")
    yield name
    cancel(worker, name)


@pytest.fixture(autouse=True)
def goes_on(worker: RunningWorker) -> Iterator[None]:
    """Whatever a test does, the same worker draws afterwards and is healthy."""
    yield
    assert worker.generate(modifier_request()).status_code == 200
    assert worker.get("/health").json()["status"] == "healthy"


class TestTheSevenFaults:
    def test_1_cancelling_a_queued_job_stops_no_other(self, worker: RunningWorker, running: str) -> None:
        """Cancelling a queued job ended the only generation worker: later jobs stayed for ever, all looked healthy."""
        for name in ("queued-1", "queued-2", "queued-3"):
            start(worker, name, modifier_request(request_id=name))
        assert cancel(worker, "queued-2").json()["status"] == "cancelled"
        assert worker.get(f"/result/{running}").json()["status"] == "generating"
        cancel(worker, running)
        for name in ("queued-1", "queued-3"):
            assert worker.generate(modifier_request(request_id=name)).status_code == 200

    def test_2_a_sync_client_that_leaves_stops_nothing(self, worker: RunningWorker, running: str) -> None:
        """The same happened when the client of a queued /generate/sync left, as Vast's does after 600 s."""
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{worker.url}/generate/sync", json=modifier_request(request_id="impatient"), timeout=0.3)
        cancel(worker, running)
        back = worker.generate(modifier_request(request_id="impatient"))
        assert (back.status_code, back.json()["status"]) == (200, "completed")

    def test_3_a_cancelled_job_ends_as_cancelled(self, worker: RunningWorker, running: str) -> None:
        """A cancelled job ended as completed with 200 and "Processing complete."."""
        cancel(worker, running)
        result = worker.get(f"/result/{running}")
        assert (result.status_code, result.json()["status"], result.json()["output"]) == (499, "cancelled", [])

    def test_4_a_request_id_writes_nothing_outside_its_folder(self, worker: RunningWorker) -> None:
        """`request_id` ../../x wrote outside the output folder."""
        for name in ("../../fault-4", "/etc/fault-4", "a/../../../fault-4", "..", "fault-4" * 1000):
            result = worker.generate(modifier_request(request_id=name)).json()
            assert result["status"] == "completed"
            assert httpx.get(result["output"][0]["url"]).status_code == 200
        outside = [path for path in worker.base.parent.rglob("fault-4*") if not path.is_relative_to(worker.base)]
        inside = [path for path in worker.base.rglob("fault-4*") if not path.is_relative_to(worker.base / "state")]
        assert not outside + inside

    def test_5_an_address_inside_the_network_is_not_fetched(self, worker: RunningWorker) -> None:
        """A LoadImage URL to an inner address was fetched."""
        for address in ("http://169.254.169.254/latest/x.png", "http://10.0.0.1/x.png", "http://[::1]:80/x.png"):
            response = worker.generate(image_request(address))
            assert response.status_code == 422
            assert "10" in response.text

    def test_6_a_text_that_begins_with_an_address_is_a_text(self, worker: RunningWorker, receiver: Receiver) -> None:
        """A prompt text that began with a URL was taken for a download and the job failed with 502."""
        request = modifier_request()
        request["input"]["modifications"]["prompt"] = f"{receiver.url}/never-asked-for.png on a wall"
        assert worker.generate(request).status_code == 200

    def test_7_the_same_request_id_runs_once(self, worker: RunningWorker) -> None:
        """The same request_id twice ran twice, and the second turned the result of the first into a failure."""
        request = workflow_request("__RANDOM_INT__", request_id="once-only")
        results: list[dict[str, Any]] = []
        threads = [threading.Thread(target=lambda: results.append(worker.generate(request).json())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results.append(worker.generate(request).json())
        assert {json.dumps(result["timings"]) for result in results} == {json.dumps(results[0]["timings"])}
        assert all(result["status"] == "completed" for result in results)


class TestWhatUsersComplainOf:
    def test_a_bad_graph_is_no_server_error_and_all_of_it_is_reported_at_once(self, worker: RunningWorker) -> None:
        """Missing nodes and models show one at a time, after the start, as a 500 that clients repeat for ever."""
        prompt = workflow(n8={"class_type": "KSampeler", "inputs": {}})
        prompt["1"]["inputs"]["ckpt_name"] = "smal.safetensors"
        prompt["5"]["inputs"] |= {"steps": 0, "sampler_name": "eulr"}
        response = worker.generate({"input": {"workflow_json": prompt}})
        assert response.status_code == 422
        problems = response.json()["error"]["problems"]
        assert {problem["node_id"] for problem in problems} == {"1", "5", "8"}
        words = " ".join(problem["message"] for problem in problems)
        assert CHECKPOINT in words and "'euler'" in words and "'KSampler'" in words

    def test_waiting_and_unknown_are_distinguished(self, worker: RunningWorker, running: str) -> None:
        """Nobody can tell a job that waits from one that is unknown."""
        start(worker, "waits", modifier_request(request_id="waits"))
        assert worker.get("/result/waits").status_code == 200
        assert worker.get("/result/never-sent").status_code == 404
        listed = [job["id"] for job in worker.get("/queue-info").json()["jobs"]]
        assert listed == [running, "waits"]
        cancel(worker, "waits")

    def test_progress_goes_by_step_and_never_back_and_outlives_a_dropped_connection(
        self, worker: RunningWorker
    ) -> None:
        """Progress is only "in progress", or states that race and go backwards."""
        request = modifier_request(request_id="watched")
        request["input"]["modifications"]["steps"] = 30
        percents, last_id = [], ""
        with httpx.stream("POST", f"{worker.url}/generate/stream", json=request, timeout=30) as response:
            for line in response.iter_lines():
                if line.startswith("id:"):
                    last_id = line[3:].strip()
                if line.startswith("data:"):
                    progress = json.loads(line[5:]).get("progress") or {}
                    percents.append(progress.get("percent", 0.0))
                    if progress.get("node_class") == "KSampler" and progress["value"] > 2:
                        break
        headers = {"Last-Event-ID": last_id}
        with httpx.stream("GET", f"{worker.url}/stream/watched", headers=headers, timeout=30) as response:
            events = list(events_of(response))
        percents += [event["progress"]["percent"] for event in events if "progress" in event]
        assert percents == sorted(percents)
        assert events[-1]["result"]["status"] == "completed"

    def test_a_job_is_cancelled_within_a_step_and_only_that_job(self, worker: RunningWorker, running: str) -> None:
        """Cancel does nothing until the run is over, or cancels somebody else's job."""
        start(worker, "next", modifier_request(request_id="next"))
        assert cancel(worker, running).json()["status"] == "cancelled"
        assert worker.generate(modifier_request(request_id="next")).status_code == 200
        assert "already ended" in cancel(worker, running).json()["message"]

    def test_the_same_prompt_gives_its_images_every_time(self, worker: RunningWorker) -> None:
        """A cached or equal prompt gives empty outputs."""
        results = [worker.generate(workflow_request(seed=77)).json() for _ in range(3)]
        images = [[httpx.get(item["url"]).content for item in result["output"]] for result in results]
        assert all(len(group) == 2 for group in images)
        assert images[0] == images[1] == images[2]
        assert Image.open(io.BytesIO(images[2][0])).size == (96, 64)

    def test_nothing_to_save_is_said_before_any_work(self, worker: RunningWorker) -> None:
        """A workflow that saves nothing costs GPU time and gives an empty result."""
        prompt = workflow()
        del prompt["7"]
        assert worker.generate({"input": {"workflow_json": prompt}}).status_code == 422

    def test_a_retry_of_a_client_costs_nothing(self, worker: RunningWorker) -> None:
        """Clients repeat requests and are charged for each."""
        first = worker.generate(modifier_request(), **{"Idempotency-Key": "paid-once"}).json()
        again = worker.generate(modifier_request(), **{"Idempotency-Key": "paid-once"}).json()
        assert (first["id"], first["timings"]) == (again["id"], again["timings"])

    def test_a_seed_can_be_random_and_stays_what_was_drawn(self, worker: RunningWorker) -> None:
        """Random seeds cannot be asked for by API, or change when a request is repeated."""
        drawn = [worker.generate(workflow_request("__RANDOM_INT__", request_id=name)).json() for name in ("r1", "r2")]
        images = [worker.output_bytes(result) for result in drawn]
        assert images[0] != images[1]
        again = worker.generate(workflow_request("__RANDOM_INT__", request_id="r1")).json()
        assert worker.output_bytes(again) == images[0]

    def test_a_job_may_go_before_others(self, worker: RunningWorker, running: str) -> None:
        """The front of the queue cannot be reached by API."""
        requests = {
            name: modifier_request(request_id=name, priority=10 if name == "urgent" else 0)
            for name in ("handed-over", "ordinary", "urgent")
        }
        # An image of its own, which takes a while: else it would be there at once, and end beside the urgent one.
        requests["ordinary"]["input"]["modifications"] |= {"seed": 99, "steps": 20}
        for name, request in requests.items():
            start(worker, name, request)
            until_message(worker, name, "Preprocessing complete")
        listed = [job["id"] for job in worker.get("/queue-info").json()["jobs"]]
        assert listed == [running, "handed-over", "urgent", "ordinary"]
        cancel(worker, running)
        for name in listed[1:]:
            assert worker.generate(requests[name]).is_success
        ended = [worker.get(f"/result/{name}").json()["timings"]["completed_at_ms"] for name in ("urgent", "ordinary")]
        assert ended == sorted(ended)
