"""Wrappers of a sampling run: an option that is there while the run lasts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from darkroom.engine.diffusion.wrappers import OUTER_SAMPLE, WrapperExecutor, with_option_for_run

CONDITIONS: list[tuple[dict[str, Any], bool]] = [({}, True), ({"hooks": None}, True), ({"hooks": object()}, False)]


def guider_of(condition: dict[str, Any]) -> Any:
    return SimpleNamespace(
        conds={"positive": [{}], "negative": [condition]},
        model_options={"transformer_options": {"wrappers": {OUTER_SAMPLE: {}}}},
        model_patcher=SimpleNamespace(free_bytes=lambda: 7.0),
    )


@pytest.mark.parametrize(("condition", "is_there"), CONDITIONS)
def test_an_option_is_there_while_a_run_without_hooks_lasts(condition: dict[str, Any], is_there: bool) -> None:
    guider = guider_of(condition)
    options = guider.model_options

    def run() -> object:
        assert OUTER_SAMPLE in guider.model_options["transformer_options"]["wrappers"]
        return guider.model_options["transformer_options"].get("kept")

    kept = with_option_for_run("kept", lambda free_bytes: [free_bytes()])
    executor = WrapperExecutor.new_class_executor(run, guider, [kept])
    assert executor.execute() == ([7.0] if is_there else None)
    assert guider.model_options is options
    assert "kept" not in options["transformer_options"]


def test_a_run_that_fails_leaves_the_options_as_they_were() -> None:
    guider = guider_of({})
    options = guider.model_options

    def run() -> None:
        raise MemoryError

    executor = WrapperExecutor.new_class_executor(run, guider, [with_option_for_run("kept", lambda _: 1)])
    with pytest.raises(MemoryError):
        executor.execute()
    assert guider.model_options is options


def test_a_run_without_an_object_has_no_option() -> None:
    guider = guider_of({})
    executor = WrapperExecutor.new_class_executor(
        lambda: "kept" in guider.model_options["transformer_options"],
        guider,
        [with_option_for_run("kept", lambda _: None)],
    )
    assert executor.execute() is False
