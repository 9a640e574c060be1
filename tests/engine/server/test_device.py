"""The server's report of its device, and the measurement of it that the start-up benchmark asks for."""

from __future__ import annotations

from tests.engine.server.conftest import Server


async def test_says_which_device_it_is_and_what_drives_it(server: Server) -> None:
    answer = await (await server.client.get("/api/v1/device")).json()
    assert (answer["kind"], answer["cuda"], answer["uuid"]) == ("cpu", None, None)
    assert "core" in answer["processor"]
    assert answer["torch"] and answer["unet_dtype"] == "float32"


async def test_measures_the_device_when_asked(server: Server) -> None:
    response = await server.client.post("/api/v1/probe")
    answer = await response.json()
    assert response.status == 200 and answer["fault"] is None
    assert answer["matrix_tflops"] > 0 and answer["memory_gb_per_second"] > 0
    assert answer["disk"] is None  # there are no model files
