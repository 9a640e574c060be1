"""Facts that the front learns of an engine before it chooses a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.prompts.modifier_defaults import checkpoints_of
from darkroom.worker.qualification.facts import read_facts
from darkroom.worker.qualification.qualifier import measured_family
from darkroom.worker.qualification.workload import CheckpointFact, FamilyFact
from tests.worker.engines.test_families import LARGE, PLAIN
from tests.worker.engines.test_family_lookup import Engine


class Client:
    """An engine client whose engine has `families`, or none."""

    has_check = False
    url = "http://engine"

    def __init__(self, has_families: bool) -> None:
        self.families = Engine(has_families).lookup
        self.calls = self

    async def object_info(self) -> dict[str, Any]:
        names = ["plain.safetensors", "elsewhere.safetensors"]
        loader = {"input": {"required": {"ckpt_name": [names, {}]}}}
        return {"CheckpointLoaderSimple": loader, "DarkroomRandomCheckpoint": {}}

    async def system_stats(self) -> dict[str, Any]:
        return {"devices": [{"name": "cpu", "type": "cpu"}], "system": {}}


async def test_families_and_scales_of_checkpoints_are_the_engines_word(tmp_path: Path) -> None:
    client: Any = Client(has_families=True)
    facts = await read_facts(client, tmp_path)
    assert facts.families == (PLAIN, LARGE) and facts.has_random_checkpoint
    expected = CheckpointFact(name="plain.safetensors", family="plain", scale="full", size_bytes=7)
    assert expected in facts.checkpoints
    assert facts.families_by_checkpoint()["plain.safetensors"] == PLAIN
    assert facts.families_by_checkpoint()["odd.safetensors"] is None


async def test_of_a_foreign_engine_only_names_and_the_sizes_of_files_here_are_known(
    tmp_path: Path,
) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "plain.safetensors").write_bytes(b"12345")
    client: Any = Client(has_families=False)
    facts = await read_facts(client, tmp_path)
    assert facts.families == () and not facts.has_random_checkpoint
    assert facts.checkpoints == (
        CheckpointFact(name="plain.safetensors", size_bytes=5),
        CheckpointFact(name="elsewhere.safetensors"),
    )


def test_the_family_to_measure_is_the_named_one_else_the_default() -> None:
    assert measured_family("", (PLAIN, LARGE)).name == "plain"
    named = measured_family("large", (PLAIN, LARGE))
    assert (named.width_px, named.num_steps, named.sampler_name, named.pixel_cost) == (1024, 25, "dpmpp_2m", 2.0)
    assert measured_family("", ()) == FamilyFact()


def test_an_unknown_family_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(SettingsInvalid, match="got 'huge', expected plain, large"):
        measured_family("huge", (PLAIN, LARGE))
    with pytest.raises(SettingsInvalid, match="names no families"):
        measured_family("large", ())


def test_names_are_found_in_both_forms_of_a_choice() -> None:
    forms: tuple[list[Any], ...] = ([["a"], {}], ["COMBO", {"options": ["a"]}])
    for told in forms:
        info = {"CheckpointLoaderSimple": {"input": {"required": {"ckpt_name": told}}}}
        assert list(checkpoints_of(info)) == ["a"]
    assert list(checkpoints_of({})) == []
