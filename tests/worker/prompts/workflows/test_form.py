"""Forms of workflows: which inputs are fields, in which order, under which labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.prompts.workflows.form import MAX_FIELDS, FormField, form_of, polarities_of
from darkroom.worker.storage.stored_workflow import Place

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def object_info() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "tests" / "reference" / "object_info.json").read_text())
    return found


@pytest.fixture
def prompt() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "examples" / "workflow" / "workflow.json").read_text())
    return found


def by_target(prompt: dict[str, Any], object_info: dict[str, Any]) -> dict[str, FormField]:
    return {item.place.target: item for item in form_of(prompt, object_info).fields}


def test_prompts_sizes_steps_and_seed_come_first_and_the_rest_is_folded(
    prompt: dict[str, Any], object_info: dict[str, Any]
) -> None:
    fields = form_of(prompt, object_info).fields
    main = [item.label for item in fields if item.is_main]
    assert main == ["Prompt", "Negative prompt", "Width", "Height", "Steps", "Seed"]
    assert {item.place.target for item in fields if not item.is_main} >= {"1.ckpt_name", "5.cfg", "7.filename_prefix"}
    assert {item.role for item in fields if item.folder == "checkpoints"} == {"model"}


def test_numbers_have_the_range_of_their_node_and_choices_are_listed_once(
    prompt: dict[str, Any], object_info: dict[str, Any]
) -> None:
    prompt["8"] = {"class_type": "KSampler", "inputs": {"sampler_name": "heun"}}
    form = form_of(prompt, object_info)
    fields = {item.place.target: item for item in form.fields}
    assert fields["4.width"].schema == {"type": "integer", "minimum": 16, "maximum": 16384, "step": 8, "default": 128}
    assert fields["5.sampler_name"].choices == fields["8.sampler_name"].choices == "KSampler.sampler_name"
    assert {"euler", "heun"} <= set(form.choices["KSampler.sampler_name"])


def test_the_title_that_an_author_gave_is_the_label(prompt: dict[str, Any], object_info: dict[str, Any]) -> None:
    prompt["2"]["_meta"] = {"title": "Subject of the poster"}
    prompt["3"]["_meta"] = {"title": "CLIP Text Encode (Prompt)"}
    fields = by_target(prompt, object_info)
    assert (fields["2.text"].label, fields["3.text"].label) == ("Subject of the poster", "Negative prompt")


def test_a_text_behind_a_control_net_keeps_its_side(prompt: dict[str, Any], object_info: dict[str, Any]) -> None:
    prompt["9"] = {"class_type": "ControlNetApplyAdvanced", "inputs": {"positive": ["2", 0], "negative": ["3", 0]}}
    prompt["5"]["inputs"] |= {"positive": ["9", 0], "negative": ["9", 1]}
    assert polarities_of(prompt)["3"] == {"negative"}
    fields = by_target(prompt, object_info)
    assert (fields["2.text"].role, fields["3.text"].role) == ("prompt", "negative_prompt")


def test_files_are_fields_of_their_media(object_info: dict[str, Any]) -> None:
    prompt = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "cat.png"}, "_meta": {"title": "Your photo"}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "a"}},
    }
    field = by_target(prompt, object_info)["1.image"]
    assert (field.role, field.label, field.is_main) == ("file", "Your photo", True)
    assert field.schema["contentMediaType"] == "image/*"


def test_inputs_of_an_app_mode_are_the_main_ones_in_their_order(
    prompt: dict[str, Any], object_info: dict[str, Any]
) -> None:
    named = {"How strong": (Place("5", "cfg"),), "Words": (Place("2", "text"),)}
    fields = form_of(prompt, object_info, named).fields
    assert [item.label for item in fields if item.is_main] == ["How strong", "Words"]
    assert fields[0].role == "other" and len(fields) > 5


def test_a_seed_that_javascript_would_round_is_given_in_digits(
    prompt: dict[str, Any], object_info: dict[str, Any]
) -> None:
    prompt["5"]["inputs"]["seed"] = 2**63
    assert by_target(prompt, object_info)["5.seed"].schema["default"] == str(2**63)


def test_links_and_unknown_classes_are_no_fields_and_the_number_of_fields_is_bounded(
    object_info: dict[str, Any],
) -> None:
    loops: dict[str, Any] = {"1": {"class_type": "Nothing", "inputs": {"positive": ["1", 0], "negative": ["1", 1e400]}}}
    assert form_of(loops, object_info).fields == ()
    many = {
        str(number): {"class_type": "PrimitiveInt", "inputs": {"value": number}} for number in range(MAX_FIELDS + 5)
    }
    form = form_of(many, object_info)
    assert (len(form.fields), form.num_left_out) == (MAX_FIELDS, 5)


def test_prompts_with_the_same_text_are_one_field(prompt: dict[str, Any], object_info: dict[str, Any]) -> None:
    prompt["12"] = {"class_type": "CLIPTextEncode", "inputs": dict(prompt["2"]["inputs"])}
    prompt["13"] = {"class_type": "KSampler", "inputs": {"positive": ["12", 0], "negative": ["3", 0], "seed": 4}}
    fields = by_target(prompt, object_info)
    assert [place.target for place in fields["2.text"].also] == ["12.text"]
    assert "12.text" not in fields and "13.seed" in fields
