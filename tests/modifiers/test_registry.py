"""The modifiers as a request meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from darkroom.modifiers.model_files import NetworkFields
from darkroom.modifiers.modifier import RANDOM_INT, ModificationsRejected, Modifier
from darkroom.modifiers.registry import MODIFIERS, ModifierRegistry, UnknownModifier, build_registry

WORKFLOWS = Path(__file__).parents[2] / "modifiers" / "workflows"


@pytest.fixture(scope="module")
def registry() -> ModifierRegistry:
    return build_registry()


def problems_of(registry: ModifierRegistry, name: str, modifications: dict[str, Any]) -> dict[str, Any]:
    with pytest.raises(ModificationsRejected) as caught:
        registry.build(name, modifications)
    return {problem["field"]: problem for problem in caught.value.problems}


def test_text_to_image_has_the_defaults_that_clients_rely_on(registry: ModifierRegistry) -> None:
    prompt = registry.build("Text2Image", {"prompt": "a lighthouse"})
    assert prompt["3"]["inputs"] == {
        "seed": RANDOM_INT,
        "steps": 20,
        "cfg": 8.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
        "model": ["4", 0],
        "positive": ["6", 0],
        "negative": ["7", 0],
        "latent_image": ["5", 0],
    }
    assert prompt["4"]["inputs"]["ckpt_name"] == "v1-5-pruned-emaonly-fp16.safetensors"
    assert prompt["5"]["inputs"] == {"width": 512, "height": 512, "batch_size": 1}
    assert (prompt["6"]["inputs"]["text"], prompt["7"]["inputs"]["text"]) == ("a lighthouse", "")


def test_image_to_image_has_its_own_defaults(registry: ModifierRegistry) -> None:
    prompt = registry.build("Image2Image", {"prompt": "x", "input_image": "https://example.com/cat.png"})
    sampler = prompt["3"]["inputs"]
    assert (sampler["steps"], sampler["sampler_name"], sampler["scheduler"], sampler["denoise"]) == (
        20,
        "dpmpp_2m",
        "normal",
        0.87,
    )
    assert prompt["10"]["inputs"]["image"] == "https://example.com/cat.png"


def test_raw_workflow_needs_nothing(registry: ModifierRegistry) -> None:
    raw = registry.build("RawWorkflow", {})
    assert raw == registry.build("Text2Image", {"prompt": ""})


def test_every_value_lands_in_its_node(registry: ModifierRegistry) -> None:
    prompt = registry.build(
        "Text2Image",
        {
            "prompt": "p",
            "negative_prompt": "n",
            "seed": 2**64 - 1,
            "steps": 7,
            "cfg_scale": 3.5,
            "sampler_name": "heun",
            "scheduler": "karras",
            "denoise": 0.5,
            "ckpt_name": "other.safetensors",
            "width": 768,
            "height": 640,
        },
    )
    sampler = prompt["3"]["inputs"]
    assert (sampler["seed"], sampler["steps"], sampler["cfg"], sampler["denoise"]) == (2**64 - 1, 7, 3.5, 0.5)
    assert (sampler["sampler_name"], sampler["scheduler"]) == ("heun", "karras")
    assert (prompt["4"]["inputs"]["ckpt_name"], prompt["5"]["inputs"]["width"]) == ("other.safetensors", 768)
    assert (prompt["5"]["inputs"]["height"], prompt["7"]["inputs"]["text"]) == (640, "n")


def test_the_machines_defaults_apply_only_where_the_request_is_silent(registry: ModifierRegistry) -> None:
    defaults = {"ckpt_name": "installed.safetensors", "not_a_field": 1}
    silent = registry.build("Text2Image", {"prompt": ""}, defaults)
    spoken = registry.build("Text2Image", {"prompt": "", "ckpt_name": "mine.safetensors"}, defaults)
    assert silent["4"]["inputs"]["ckpt_name"] == "installed.safetensors"
    assert spoken["4"]["inputs"]["ckpt_name"] == "mine.safetensors"


def test_a_build_leaves_the_template_alone(registry: ModifierRegistry) -> None:
    registry.build("Text2Image", {"prompt": "first", "steps": 3})["8"]["inputs"].clear()
    again = registry.build("Text2Image", {"prompt": "second"})
    assert again["8"]["inputs"] and again["3"]["inputs"]["steps"] == 20


def test_reports_every_problem_at_once_with_what_is_allowed(registry: ModifierRegistry) -> None:
    problems = problems_of(
        registry, "Text2Image", {"width": 8, "height": 99_999, "steps": 0, "seed": -1, "denoise": 1.5, "cfg_scale": "x"}
    )
    assert list(problems) == ["prompt", "seed", "steps", "cfg_scale", "denoise", "width", "height"]
    assert problems["width"]["allowed"] == {"type": "integer", "minimum": 16, "maximum": 16384}
    assert problems["prompt"]["message"] == "is required"
    assert all(problem["message"] for problem in problems.values())


@pytest.mark.parametrize("value", [True, "abc", 1.5, [], {}, float("nan")])
def test_a_wrong_type_names_the_field(registry: ModifierRegistry, value: Any) -> None:
    for field in ("steps", "seed", "width"):
        assert list(problems_of(registry, "RawWorkflow", {field: value})) == [field]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True])
def test_a_guidance_that_is_no_number_is_refused(registry: ModifierRegistry, value: Any) -> None:
    assert list(problems_of(registry, "RawWorkflow", {"cfg_scale": value})) == ["cfg_scale"]


@pytest.mark.parametrize(
    ("wrong", "right"), [("negativ_prompt", "negative_prompt"), ("cfg", "cfg_scale"), ("Steps", "steps")]
)
def test_a_near_miss_names_the_right_field(registry: ModifierRegistry, wrong: str, right: str) -> None:
    problem = problems_of(registry, "Text2Image", {"prompt": "", wrong: 1})[wrong]
    assert f"`{right}`" in problem["message"] and right in problem["allowed"]


def test_null_and_numbers_as_text_are_taken_as_meant(registry: ModifierRegistry) -> None:
    prompt = registry.build("Text2Image", {"prompt": "", "seed": None, "steps": "25", "width": 512.0})
    assert (prompt["3"]["inputs"]["seed"], prompt["3"]["inputs"]["steps"]) == (RANDOM_INT, 25)


def test_a_seed_may_be_asked_to_be_random(registry: ModifierRegistry) -> None:
    assert registry.build("Text2Image", {"prompt": "", "seed": RANDOM_INT})["3"]["inputs"]["seed"] == RANDOM_INT


def test_an_unknown_modifier_lists_the_known_ones(registry: ModifierRegistry) -> None:
    with pytest.raises(UnknownModifier) as caught:
        registry.build("text2image", {})
    assert caught.value.known == registry.names()
    assert set(caught.value.known) >= {"Text2Image", "Image2Image", "RawWorkflow"}
    assert "did you mean Text2Image" in str(caught.value)


def test_descriptions_carry_a_schema_for_every_field(registry: ModifierRegistry) -> None:
    described = {entry["name"]: entry for entry in registry.describe()}
    assert set(described) == set(registry.names())
    schema = described["Text2Image"]["schema"]
    assert schema["properties"]["steps"]["maximum"] == 10_000 and schema["required"] == ["prompt"]


def test_every_field_fills_an_input_that_the_workflow_has(registry: ModifierRegistry) -> None:
    for modifier in MODIFIERS:
        workflow = json.loads((WORKFLOWS / modifier.workflow_file).read_text())
        for places in modifier.places().values():
            assert all(place.input_name in workflow[place.node_id]["inputs"] for place in places)


def test_every_field_of_the_first_modifiers_fills_something(registry: ModifierRegistry) -> None:
    for name in ("Text2Image", "Image2Image", "RawWorkflow"):
        places = registry.get(name).places()  # those of files and networks change whole nodes
        others = NetworkFields.model_fields.keys() | Modifier.model_fields.keys()
        assert all(places[field] for field in places.keys() - others)


def test_what_a_choice_makes_useless_is_left_out(registry: ModifierRegistry) -> None:
    by_interpolation = registry.build("Upscale", {"input_image": "a.png"})
    assert set(by_interpolation) == {"9", "10", "21"}
    latent = registry.build("Upscale", {"input_image": "a.png", "method": "latent"})
    assert "3" in latent and "22" not in latent
    small = {"input_image": "a.png", "prompt": ""}
    assert "11" not in registry.build("Inpaint", small)
    assert "11" in registry.build("Inpaint", {**small, "mask_image": "m.png"})


def test_loras_stand_one_behind_the_other_between_checkpoint_and_the_rest(registry: ModifierRegistry) -> None:
    loras = ["a.safetensors", {"name": "b.safetensors", "strength": 0.5, "strength_clip": 0}]
    prompt = registry.build("LoraText2Image", {"prompt": "", "loras": loras})
    assert prompt["100"]["inputs"] == {
        **{"model": ["4", 0], "clip": ["4", 1], "lora_name": "a.safetensors"},
        **{"strength_model": 1.0, "strength_clip": 1.0},
    }
    second = prompt["101"]["inputs"]
    assert (second["model"], second["strength_model"], second["strength_clip"]) == (["100", 0], 0.5, 0.0)
    assert prompt["3"]["inputs"]["model"] == ["101", 0]
    assert prompt["6"]["inputs"]["clip"] == prompt["7"]["inputs"]["clip"] == ["101", 1]
    assert prompt["8"]["inputs"]["vae"] == ["4", 2]


@pytest.mark.parametrize("loras", [[], None, [{"name": ""}], [{}], 5, [["a"]], ["a"] * 17])
def test_loras_that_are_none_name_their_place(registry: ModifierRegistry, loras: Any) -> None:
    (field,) = problems_of(registry, "LoraText2Image", {"prompt": "", "loras": loras})
    assert field.startswith("loras")


def test_a_hires_fix_samples_twice_with_one_seed(registry: ModifierRegistry) -> None:
    prompt = registry.build("HiresFix", {"prompt": "", "seed": 5, "steps": 4, "hires_steps": 6, "cfg_scale": 3})
    first, second = prompt["3"]["inputs"], prompt["24"]["inputs"]
    assert (first["seed"], second["seed"], second["cfg"]) == (5, 5, 3)
    assert (first["steps"], second["steps"], second["latent_image"]) == (4, 6, ["20", 0])


def test_schemas_and_examples_know_the_engines_files(registry: ModifierRegistry) -> None:
    files = {"ckpt_name": ["only.safetensors"], "control_net_name": [], "lora_name": ["l.safetensors"]}
    described = {entry["name"]: entry for entry in registry.describe(lambda _, name: files.get(name))}
    assert described["Text2Image"]["schema"]["properties"]["ckpt_name"]["enum"] == ["only.safetensors"]
    assert described["Text2Image"]["example"]["ckpt_name"] == "only.safetensors"
    assert described["ControlNet"]["example"] is None
    assert described["LoraText2Image"]["example"]["loras"] == [{"name": "l.safetensors", "strength": 0.8}]


def test_a_problem_of_the_graph_finds_its_way_back_to_the_field(registry: ModifierRegistry) -> None:
    assert registry.get("Text2Image").field_at("4", "ckpt_name") == "ckpt_name"
    assert registry.get("Text2Image").field_at("3", "model") is None


LARGE = {"width": 1024, "height": 768, "steps": 25, "cfg": 6.0, "sampler_name": "dpmpp_2m", "scheduler": "karras"}
IMAGE = {"input_image": "a.png", "prompt": ""}


@pytest.mark.parametrize(
    ("name", "modifications", "sampler"),
    [
        ("Text2Image", {"prompt": ""}, "3"),
        ("RawWorkflow", {}, "3"),
        ("LoraText2Image", {"prompt": "", "loras": "a.safetensors"}, "3"),
        ("ControlNet", {"prompt": "", "control_image": "a.png", "control_net_name": "c"}, "3"),
        ("HiresFix", {"prompt": ""}, "3"),
        ("HiresFix", {"prompt": ""}, "24"),
        ("Image2Image", IMAGE, "3"),
        ("Inpaint", IMAGE, "3"),
        ("Upscale", {**IMAGE, "method": "latent"}, "3"),
    ],
)
def test_what_is_left_out_is_the_default_of_the_checkpoints_family(
    name: str, modifications: dict[str, Any], sampler: str
) -> None:
    registry = build_registry()
    prompt = registry.build(name, modifications, family=LARGE)
    sampling = ("steps", "cfg", "sampler_name", "scheduler")
    assert {key: prompt[sampler]["inputs"][key] for key in sampling} == {key: LARGE[key] for key in sampling}
    sizes = [node["inputs"] for node in prompt.values() if node["class_type"] == "EmptyLatentImage"]
    assert all((size["width"], size["height"]) == (1024, 768) for size in sizes)
    own = registry.build(name, modifications)  # without a family: what stands in the workflow file
    assert own[sampler]["inputs"]["cfg"] == 8.0 and own[sampler]["inputs"]["steps"] == 20


def test_what_the_request_says_wins_over_the_familys_default() -> None:
    asked = {"prompt": "", "width": 640, "steps": 3, "sampler_name": "heun"}
    prompt = build_registry().build("Text2Image", asked, {"height": 320}, LARGE)
    inputs = prompt["3"]["inputs"] | prompt["5"]["inputs"]
    assert (inputs["width"], inputs["height"]) == (640, 320)
    assert (inputs["steps"], inputs["sampler_name"], inputs["cfg"]) == (3, "heun", 6.0)


def test_schemas_show_the_defaults_that_count_and_how_they_are_found() -> None:
    registry = build_registry()
    plain = {entry["name"]: entry for entry in registry.describe()}
    large = {entry["name"]: entry for entry in registry.describe(families={"Text2Image": LARGE})}
    for described, width in ((plain, 512), (large, 1024)):
        field = described["Text2Image"]["schema"]["properties"]["width"]
        assert field["default"] == width and field["type"] == "integer"
        assert "family of models" in field["description"]
    assert large["HiresFix"]["schema"]["properties"]["width"]["default"] == 512
    assert plain["Image2Image"]["schema"]["properties"]["sampler_name"]["default"] == "dpmpp_2m"


def test_the_checkpoint_of_a_request_is_its_own_else_the_workflows() -> None:
    registry = build_registry()
    assert registry.checkpoint_of("Text2Image", {"ckpt_name": "mine"}) == "mine"
    kept = registry.checkpoint_of("Text2Image", {"ckpt_name": None})
    assert kept == registry.build("Text2Image", {"prompt": ""})["4"]["inputs"]["ckpt_name"]
    assert registry.checkpoint_of("Text2Image", {"ckpt_name": 5}) is None
