"""Checks of disk, memory, clock, ports and limits."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest

from darkroom.worker.doctor.check import Status
from darkroom.worker.doctor.machine import check_clock, check_disk, check_limits, check_memory, check_ports
from darkroom.worker.observe.memory import MachineMemory
from tests.host.test_port_holder import answering
from tests.worker.running_front import settings_for


def test_a_disk_below_the_floor_says_how_to_free_it(tmp_path: Path) -> None:
    check = check_disk({"state": tmp_path / "not" / "made"}, 1 << 60)
    assert check.status is Status.FAILED and "MIN_FREE_DISK_BYTES" in check.remedy
    assert check_disk({"state": tmp_path}, 0).status is not Status.FAILED


def test_memory_below_the_floor_is_a_failure() -> None:
    assert check_memory(MachineMemory(), 1 << 60).status is Status.FAILED
    assert check_memory(MachineMemory(), 0).status is Status.GOOD


def test_a_clock_that_differs_from_a_server_s_is_a_failure() -> None:
    assert check_clock({"s3": 0.4, "hook": -400.0}, is_synchronised=True).detail == (
        "The clock differs: -400 s beside hook"
    )
    assert check_clock({"s3": 0.4}, is_synchronised=False).status is Status.GOOD
    assert check_clock({}, is_synchronised=False).status is Status.WARNING
    assert check_clock({}, is_synchronised=None).status is Status.GOOD


def test_a_port_that_another_program_holds_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = settings_for(tmp_path, "", worker_port=taken.getsockname()[1])
        check = check_ports(settings, is_within_worker=False)
        assert check.status is Status.FAILED and "in use" in check.detail and "WORKER_PORT" in check.remedy
        assert f"(process {os.getpid()})" in check.detail
        assert check_ports(settings, is_within_worker=True).status is Status.GOOD
    assert check_ports(settings, is_within_worker=False).status is Status.GOOD


def test_a_port_that_a_worker_holds_is_good_whatever_its_directory_is(tmp_path: Path) -> None:
    with answering(b'{"status": "alive"}') as port:
        check = check_ports(settings_for(tmp_path, "", worker_port=port), is_within_worker=False)
    assert check.status is Status.GOOD and "a worker of Darkroom" in check.detail


def test_few_open_files_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    check = check_limits(1024)
    assert check.status is Status.WARNING and "nofile" in check.remedy
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert check_limits(1024).status is Status.GOOD
