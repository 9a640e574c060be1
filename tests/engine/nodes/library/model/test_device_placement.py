"""Nodes that choose a model's device: they pass it on, and name a device that is not there."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.log_context import NodeWarning, logged_as
from darkroom.engine.nodes.library.model import device_placement

context: Any = None
environment: Any = None
NODES: list[tuple[str, Callable[..., Any]]] = [
    ("model", device_placement.select_model_device),
    ("clip", device_placement.select_clip_device),
    ("vae", device_placement.select_vae_device),
]


def model_on(device: str) -> Any:
    found = torch.device(device)
    return SimpleNamespace(load_device=found, patcher=SimpleNamespace(load_device=found))


def warnings_of(name: str, place: Callable[..., Any], used: str, device: str) -> list[NodeWarning]:
    found: list[NodeWarning] = []
    model = model_on(used)
    with logged_as("p", "1", "SelectModelDevice", found):
        assert place(context, **{name: model}, device=device) is model
    return found


@pytest.mark.parametrize(("name", "place"), NODES)
@pytest.mark.parametrize(
    ("used", "device"), [("cpu", "default"), ("cpu", "cpu"), ("cuda", "gpu:0"), ("cuda", "default")]
)
def test_the_own_device_changes_nothing(name: str, place: Callable[..., Any], used: str, device: str) -> None:
    assert warnings_of(name, place, used, device) == []


@pytest.mark.parametrize(("name", "place"), NODES)
@pytest.mark.parametrize(("used", "device"), [("cpu", "gpu:0"), ("cuda", "gpu:3"), ("cuda", "cpu")])
def test_another_device_is_named(name: str, place: Callable[..., Any], used: str, device: str) -> None:
    (warning,) = warnings_of(name, place, used, device)
    assert warning.type == "device_absent" and warning.message.startswith(f"device: {device} is not")


@pytest.mark.parametrize(("device", "is_one"), [("gpu:12", True), ("cpu", True), ("gpu", False), ("cuda:0", False)])
def test_what_is_no_device_is_refused(device: str, is_one: bool) -> None:
    assert device_placement.select_vae_device.check is not None
    assert (device_placement.select_vae_device.check(environment, device=device) is None) == is_one


def test_splitting_guidance_passes_the_model_on() -> None:
    model = model_on("cpu")
    assert device_placement.multigpu_work_units(context, model=model, max_gpus=2) is model
