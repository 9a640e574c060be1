"""Fixtures of many tests: the reference data beside the checkout, and the project installed from a wheel of its own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.installed import InstalledWheel, copy_tracked_files
from tests.s3_server import S3Server, running_s3_server
from tests.skips import is_allowed, is_ci

ROOT = Path(__file__).parents[1]


def pytest_configure() -> None:
    """Nothing of a machine's own ways decides a test: neither its proxy nor how busy it is."""
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"  # tests speak to this machine alone
    settings.register_profile("darkroom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("darkroom")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the garbage collector, which would take half of the time, and freeze what there is then.

    Modules and tests stay to the end: nothing of them is garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that continuous integration would leave out unseen."""
    report = yield
    fail_where_skipped_unseen(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a file of tests that continuous integration would leave out unseen."""
    report = yield
    fail_where_skipped_unseen(report)
    return report


def fail_where_skipped_unseen(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure in continuous integration, unless it is one that `tests/skips.py` accepts."""
    if not (is_ci() and report.skipped and isinstance(report.longrepr, tuple)):
        return
    path, line, reason = report.longrepr
    if not is_allowed(reason):
        report.outcome = "failed"
        report.longrepr = (
            f"{path}:{line}: skipped in continuous integration ({reason}); tests/skips.py lists what may be"
        )


@pytest.fixture(scope="module")
def without_collector() -> Iterator[None]:
    """Read syntax trees without the garbage collector, which would walk them again and again for half of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def installed_wheel(tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """Darkroom as a wheel built from the tracked files, installed into a folder of its own without its dependencies."""
    source = tmp_path_factory.mktemp("source")
    copy_tracked_files(ROOT, source)
    wheels = tmp_path_factory.mktemp("wheels")
    site = tmp_path_factory.mktemp("site")
    # torch brings setuptools along, so nothing has to be fetched for the build; it is what pip would call.
    options = {"--build-option": "--compression=stored"}  # packing takes longer than all the rest
    build = f"import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1], {options})"
    subprocess.run([sys.executable, "-c", build, str(wheels)], check=True, cwd=source)
    (wheel,) = wheels.glob("darkroom_worker-*.whl")
    # The tests use a tenth of its modules, which Python compiles when it imports them.
    quick = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *quick, str(wheel)], check=True, cwd=wheels)
    return InstalledWheel(wheel, site)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with a bucket, for the whole session."""
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small SD1.5 checkpoint of random weights, as `python -m darkroom.engine random-checkpoint` writes it."""
    from darkroom.engine.models.random_weights import write_random_checkpoint  # most tests can do without torch

    path = tmp_path_factory.mktemp("checkpoint") / "small.safetensors"
    write_random_checkpoint(path)
    return path
