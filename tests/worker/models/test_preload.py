"""PRELOAD_MODELS by family and by the last week's use."""

from __future__ import annotations

import pytest

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.eviction import FileUse
from darkroom.worker.models.preload import WEEK_SECONDS, preload_names
from darkroom.worker.settings.environment import load_settings

NOW = 1e9
ENTRIES = [
    ModelEntry("base", "base", "checkpoints", "base.safetensors", (), families=("sdxl",)),
    ModelEntry("fine", "fine", "loras", "fine.safetensors", (), families=("sdxl",)),
    ModelEntry("gone", "gone", "vae", "gone.safetensors", (), families=("sdxl",)),
    ModelEntry("old", "old", "checkpoints", "old.safetensors", (), families=("sd15",)),
]
THERE = {"checkpoints/base.safetensors", "loras/fine.safetensors", "checkpoints/old.safetensors"}
USES = [
    FileUse("checkpoints/old.safetensors", 1, NOW - WEEK_SECONDS - 1, 100),
    FileUse("checkpoints/base.safetensors", 1, NOW - 10, 3),
    FileUse("vae/often.safetensors", 1, NOW - 20, 9),
    FileUse("loras/fine.safetensors", 1, NOW - 5, 50),
    FileUse("checkpoints/once.safetensors", 1, NOW - 1, 1),
]


def chosen(*names: str) -> list[str]:
    return preload_names(names, ENTRIES, THERE, USES, NOW)


def test_a_family_is_its_files_on_disk_that_can_be_read_before_a_job() -> None:
    assert chosen("family:sdxl") == ["checkpoints/base.safetensors"]
    assert chosen("family:flux") == ["family:flux"], "reported as a model that is not there"


def test_recent_files_are_those_that_jobs_of_the_week_named_most() -> None:
    assert chosen("recent:2") == ["vae/often.safetensors", "checkpoints/base.safetensors"]
    assert chosen("recent:9") == [
        "vae/often.safetensors",
        "checkpoints/base.safetensors",
        "checkpoints/once.safetensors",
    ]


def test_other_names_stay_and_each_file_comes_once() -> None:
    assert chosen("own.safetensors", "family:sdxl", "recent:2") == [
        "own.safetensors",
        "checkpoints/base.safetensors",
        "vae/often.safetensors",
    ]


@pytest.mark.parametrize("text", ["recent:0", "recent:many", "family:"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(SettingsInvalid, match="PRELOAD_MODELS.*expected a model, family:NAME or recent:NUMBER"):
        load_settings(env_file=None, PRELOAD_MODELS=text)
