"""Sizes of results at a real NATS server, and what the server sends for them."""

from __future__ import annotations

from pathlib import Path

import nats
import pytest

from darkroom.worker.integrations.nats.result_sizes import ResultSizes
from tests.worker.sources.servers import nats_server

NUM_RESULTS = 30
RESULT_BYTES = 200_000


@pytest.mark.parametrize("num_asked", [2, 500])
async def test_sizes_are_read_without_the_results_whether_few_or_many_are_asked_for(
    tmp_path: Path, num_asked: int
) -> None:
    async with nats_server(tmp_path / "nats") as server:
        connection = await nats.connect(server.url)
        stream = connection.jetstream()
        bucket = await stream.create_key_value(bucket="results")
        sizes = ResultSizes(stream, "results")
        asked = [f"job-{number}" for number in range(NUM_RESULTS - 1, NUM_RESULTS - 1 + num_asked)]
        assert await sizes.of(asked) == {} and await sizes.of([]) == {}
        for number in range(NUM_RESULTS):
            await bucket.put(f"job-{number}", bytes(RESULT_BYTES + number))
        before = connection.stats["in_bytes"]
        assert await sizes.of(asked) == {f"job-{NUM_RESULTS - 1}": RESULT_BYTES + NUM_RESULTS - 1}
        assert connection.stats["in_bytes"] - before < RESULT_BYTES / 10
        await connection.close()
