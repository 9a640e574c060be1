"""Work on a caller's document grows as its size does: eight times the document, about eight times the work.

Processor seconds of this thread are compared, generously: work by the square of the size would be 64 times as much.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from darkroom.contract.graph.cost import price_of
from darkroom.contract.graph.explain import explain_prompt
from darkroom.contract.graph.facts import FACTS_KEY
from darkroom.contract.graph.object_info import rules_in
from darkroom.contract.graph.prompt_graph import PromptGraph, model_files_in
from darkroom.contract.graph.work import PromptWork
from darkroom.worker.engines.choices import with_hints
from darkroom.worker.engines.graph_check import find_problems
from darkroom.worker.engines.long_names import find_long_names
from darkroom.worker.engines.save_names import find_name_problems
from darkroom.worker.errors import RequestRejected, shortened
from darkroom.worker.guard.url_secrets import has_url_secrets, without_url_secrets
from darkroom.worker.inputs.references import find_references, replace_references
from darkroom.worker.models.manifest import built_in_manifest
from darkroom.worker.observe.prompt_texts import texts_of
from darkroom.worker.prompts.graph_size import find_size_problem
from darkroom.worker.prompts.model_needs import find_needs
from darkroom.worker.prompts.prompt_parts import split_prompt
from darkroom.worker.prompts.random_values import resolve
from darkroom.worker.prompts.workflow_plan import find_missing_nodes
from darkroom.worker.prompts.workflows.app_mode import read_app_mode
from darkroom.worker.prompts.workflows.node_uses import model_hints, uses_in_prompt, uses_on_page
from darkroom.worker.prompts.workflows.overrides import override
from darkroom.worker.prompts.workflows.page_texts import choose_alternatives, without_comments
from darkroom.worker.prompts.workflows.to_prompt import to_prompt
from darkroom.worker.settings.jobs import PromptLimits
from tests.security.costly_pages import PAGES, node, page, sub_graph, with_names

Json = dict[str, Any]

TIMES = 8
MOST_TIMES = 26.0
PAUSE_SECONDS = 0.06  # of a collector or of another thread
TEXT = ["STRING", {"multiline": True, "dynamicPrompts": True}]
NUMBER = ["INT", {"default": 1}]
OBJECT_INFO: Json = {
    "Text": {"input": {"required": {"text": TEXT}}, "output": ["CONDITIONING"], "output_name": ["c"]},
    "Seed": {"input": {"required": {"seed": NUMBER, "steps": NUMBER}}, "output": ["INT"], "output_name": ["i"]},
    "Pass": {"input": {"required": {"image": ["IMAGE"]}}, "output": ["IMAGE"], "output_name": ["i"]},
    "Make": {"input": {"required": {"width": NUMBER, "height": NUMBER}}, "output": ["IMAGE"], "output_name": ["i"]},
    "Sample": {
        "input": {"required": {"latent_image": ["LATENT"], "steps": NUMBER, "sigmas": ["SIGMAS"]}},
        "output": ["LATENT"],
        "output_name": ["l"],
    },
    "Save": {
        "input": {"required": {"images": ["IMAGE"], "filename_prefix": ["STRING", {}]}},
        "output": [],
        "output_name": [],
        "output_node": True,
    },
    "Load": {"input": {"required": {"image": [["a.png"], {"image_upload": True}]}}, "output": ["IMAGE"]},
    "Lora": {"input": {"required": {"lora_name": [["a.safetensors"], {}]}}, "output": ["MODEL"]},
    "Start": {"input": {"required": {}}, "output": ["*"], FACTS_KEY: {"loop": "start"}},
    "End": {"input": {"required": {"latent_image": ["*"]}}, "output": ["*"], FACTS_KEY: {"loop": "end"}},
    "Switch": {
        "input": {"required": {"on": ["BOOLEAN"], "a": ["*", {"lazy": True}], "b": ["*", {"lazy": True}]}},
        "output": ["*"],
        FACTS_KEY: {"chosen_by": "on", "alternatives": {"true": "a", "false": "b"}},
    },
}


def seconds_of(work: Callable[[], object], times: int) -> float:
    """Processor seconds of this thread for some work, the least of a few; what is refused has been examined.

    The collector is off meanwhile. No collection comes before: in a run of all tests it alone takes seconds.
    """
    measured = []
    for _ in range(times):
        gc.disable()
        try:
            began = time.thread_time()
            with contextlib.suppress(RequestRejected):
                work()
            measured.append(time.thread_time() - began)
        finally:
            gc.enable()
    return min(measured)


def grows_with(make: Callable[[int], Any], num: int, work: Callable[[Any], object]) -> bool:
    small, large = make(num), make(TIMES * num)
    allowed = MOST_TIMES * seconds_of(lambda: work(small), 2) + PAUSE_SECONDS
    return seconds_of(lambda: work(large), 1) <= allowed or seconds_of(lambda: work(large), 2) <= allowed


def work_on_page(document: Json) -> None:
    for work in (
        lambda: to_prompt(document, OBJECT_INFO, lambda count: count - 1),
        lambda: read_app_mode(document, OBJECT_INFO),
        lambda: uses_on_page(document, OBJECT_INFO),
        lambda: find_size_problem(document, PromptLimits()),
        lambda: model_hints(document),
    ):
        with contextlib.suppress(RequestRejected):
            work()


@pytest.mark.parametrize("kind", PAGES)
def test_reading_a_page_costs_what_its_size_does(kind: str) -> None:
    make, num = PAGES[kind]
    assert grows_with(make, num, work_on_page)


def prompt_of(num: int, kind: str, **inputs: Any) -> Json:
    return {str(index): {"class_type": kind, "inputs": dict(inputs)} for index in range(num)}


def chain_of(num: int, kind: str, name: str, **inputs: Any) -> Json:
    return {
        str(index): {"class_type": kind, "inputs": {**inputs, name: [str(index + 1), 0]}} for index in range(num)
    } | {"end": {"class_type": "Save", "inputs": {"images": ["0", 0], "filename_prefix": "x"}}}


def wide(num: int) -> Json:
    """One node that takes its input from many, and many that take theirs from one."""
    many = {f"i{index}": [str(index), 0] for index in range(num)}
    return prompt_of(num, "Pass", image=["all", 0]) | {"all": {"class_type": "Save", "inputs": many}}


def in_loops(num: int, num_loops: int = 30) -> Json:
    """Return samplers, one after the other, within loops."""
    kinds = [*["Start"] * num_loops, *["Sample"] * num, *["End"] * num_loops]
    chain = {
        f"n{index}": {"class_type": kind, "inputs": {"latent_image": [f"n{index - 1}", 0], "steps": 3}}
        for index, kind in enumerate(kinds)
    }
    save = {"images": [f"n{len(kinds) - 1}", 0], "filename_prefix": "x"}
    return chain | {"n0": {"class_type": "Start", "inputs": {}}, "end": {"class_type": "Save", "inputs": save}}


def switches(num: int) -> Json:
    """Return switches of which each follows the next one and leaves out a node."""
    left_out = {f"x{index}": {"class_type": "Make", "inputs": {}} for index in range(num)}
    chain = {
        str(index): {"class_type": "Switch", "inputs": {"on": True, "a": [str(index + 1), 0], "b": [f"x{index}", 0]}}
        for index in range(num)
    }
    return chain | left_out | {"end": {"class_type": "Save", "inputs": {"images": ["0", 0], "filename_prefix": "x"}}}


PROMPTS: dict[str, tuple[Callable[[int], Json], int]] = {
    "nodes of an unknown class": (
        lambda num: {str(i): {"class_type": f"No{i}", "inputs": {}} for i in range(num)},
        500,
    ),
    "a chain": (lambda num: chain_of(num, "Pass", "image"), 300),
    "a chain from its end": (lambda num: dict(reversed(chain_of(num, "Pass", "image").items())), 300),
    "samplers": (lambda num: chain_of(num, "Sample", "latent_image", steps=3), 300),
    "samplers in loops": (in_loops, 300),
    "switches": (switches, 300),
    "schedules": (lambda num: chain_of(num, "Sample", "sigmas", latent_image=["0", 0]), 300),
    "numbers": (lambda num: chain_of(num, "Seed", "value"), 300),
    "one node of many inputs": (wide, 300),
    "inputs of one node": (
        lambda num: {"1": {"class_type": "Text", "inputs": {f"x{i}": "v" for i in range(num)}}},
        2000,
    ),
    "a large list": (lambda num: {"1": {"class_type": "Text", "inputs": {"text": [[1]] * num}}}, 5000),
    "a long text": (lambda num: prompt_of(1, "Text", text="a.a " * num + "a://b@c?d"), 20_000),
    "addresses": (lambda num: prompt_of(1, "Text", text="a://" * num), 20_000),
    "users of addresses": (lambda num: prompt_of(1, "Text", text="a://b:c@d?e=f " * num), 5_000),
    "many lines": (lambda num: prompt_of(1, "Text", text="abc\n" * num), 20_000),
    "placeholders": (lambda num: prompt_of(1, "Text", text="__RANDOM_INT__" * num), 2_000),
    "broken links": (lambda num: prompt_of(num, "Save", images=["gone", 0]), 300),
    "models": (
        lambda num: {str(i): {"class_type": "Lora", "inputs": {"lora_name": f"{i}.safetensors"}} for i in range(num)},
        200,
    ),
    "files": (lambda num: prompt_of(num, "Load", image="https://host/picture.png"), 300),
    "inline files": (lambda num: prompt_of(num, "Load", image="data:image/png;base64," + "A" * 200), 300),
    "outputs": (lambda num: {"s": {"class_type": "Make", "inputs": {}}} | prompt_of(num, "Save", images=["s", 0]), 100),
    "many titles": (
        lambda num: {
            str(i): {"class_type": "Text", "inputs": {"text": "x"}, "_meta": {"title": "T"}} for i in range(num)
        },
        500,
    ),
}


def work_on_prompt(prompt: Json) -> None:
    rules = rules_in(OBJECT_INFO)
    problems = find_problems(prompt, OBJECT_INFO).listed
    references = find_references(PromptGraph(prompt, OBJECT_INFO))
    work = PromptWork(prompt, OBJECT_INFO)
    uses = uses_in_prompt(PromptGraph(prompt, OBJECT_INFO).running_part())
    for done in (
        partial(explain_prompt, prompt, rules),
        partial(with_hints, problems, OBJECT_INFO),
        partial(find_long_names, prompt),
        partial(find_name_problems, prompt, {}, None),
        partial(find_size_problem, prompt, PromptLimits()),
        partial(replace_references, prompt, dict.fromkeys(references, "x")),
        partial(model_files_in, prompt, OBJECT_INFO),
        partial(price_of, work, {}),
        lambda: work.samplings,
        lambda: list(work.video_lengths()),
        partial(split_prompt, prompt, OBJECT_INFO, 4, may_round=True),
        partial(resolve, prompt, lambda: 7),
        partial(find_needs, uses, OBJECT_INFO, built_in_manifest()),
        partial(find_missing_nodes, uses_in_prompt(prompt), OBJECT_INFO),
        partial(shortened, prompt),
        partial(has_url_secrets, prompt),
        partial(without_url_secrets, prompt),
        lambda: sum(1 for _ in texts_of(prompt)),
    ):
        done()


@pytest.mark.parametrize("kind", PROMPTS)
def test_checking_a_prompt_costs_what_its_size_does(kind: str) -> None:
    make, num = PROMPTS[kind]
    assert grows_with(make, num, work_on_prompt)


OVERRIDES: dict[str, tuple[Callable[[int], tuple[Json, Json]], int]] = {
    "names that no node of a class has": (
        lambda num: (prompt_of(num, "Text", text="x"), {f"Text.q{index}": 1 for index in range(num)}),
        200,
    ),
    "inputs of one node": (
        lambda num: (
            {"1": {"class_type": "Text", "inputs": {f"x{index}": 0 for index in range(num)}}},
            {f"1.x{index}": 1 for index in range(num)},
        ),
        300,
    ),
    "dots": (lambda num: (prompt_of(1, "Text", text="x"), {f"{index}{'.a' * 100}": 1 for index in range(num)}), 20),
    "a value for many nodes": (lambda num: (prompt_of(num, "Text", text="x"), {"Text.text": [1] * num}), 200),
    "many values for many nodes": (
        lambda num: (
            {str(index): {"class_type": "Text", "inputs": {f"x{i}": 0 for i in range(20)}} for index in range(num)},
            {f"#x{index}": index for index in range(20)},
        ),
        50,
    ),
}


@pytest.mark.parametrize("kind", OVERRIDES)
def test_overrides_cost_what_their_size_does(kind: str) -> None:
    make, num = OVERRIDES[kind]
    assert grows_with(make, num, lambda made: override(made[0], made[1], OBJECT_INFO))


def test_named_inputs_that_are_unknown_are_compared_with_some_names_only() -> None:
    def make(num: int) -> tuple[Json, Json]:
        return {f"known{index}": () for index in range(num)}, {f"other{index}": 1 for index in range(num)}

    assert grows_with(make, 1000, lambda made: override({}, {}, OBJECT_INFO, made[0], made[1]))


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("{a|b}", "a", "b"),
        ("x {a|{b|c} d} y", "x a y", "x c d y"),
        ("\\{a\\|b\\}", "{a|b}", "{a|b}"),
        ("{a|b", "a", "b"),
        ("a|b}", "a|b}", "a|b}"),
        ("{|}", "", ""),
        ("{{{a}}}", "a", "a"),
        ("", "", ""),
    ],
)
def test_one_of_each_set_of_alternatives_is_kept(text: str, first: str, last: str) -> None:
    assert choose_alternatives(text, lambda _count: 0) == first
    assert choose_alternatives(text, lambda count: count - 1) == last


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/* a */ b // c\nd", " b \nd"),
        ("/*/ a", "/*/ a"),
        ("a /* b", "a /* b"),
        ("/* a // b */c", "c"),
        ("// a /* b\nc */ d", ""),
    ],
)
def test_comments_are_left_out(text: str, kept: str) -> None:
    assert without_comments(text) == kept


def test_a_shared_value_is_counted_for_every_input_that_it_fills() -> None:
    prompt = prompt_of(3_000, "Text", text="x")
    with pytest.raises(RequestRejected) as refused:
        override(prompt, {"Text.text": [0] * 3_000}, OBJECT_INFO)
    assert refused.value.problems[0].type == "max_elements"
    with pytest.raises(RequestRejected) as refused:
        override(prompt, {"Text.text": "a" * 100_000}, OBJECT_INFO)
    assert refused.value.problems[0].type == "max_bytes"


def test_copies_of_a_value_are_fewer_bytes_than_a_front_can_write_again_and_again() -> None:
    prompt = prompt_of(100, "Text", text="x")
    with pytest.raises(RequestRejected) as refused:
        override(prompt, {"#text": "a" * 400_000}, OBJECT_INFO)
    assert refused.value.problems[0].allowed == {"maximum": 32 * 1024 * 1024}
    inner = sub_graph([node(9, "Save", {"filename_prefix": "x", "other": "a" * 400_000}, inputs=[])], [], [])
    scripted = {"Save": OBJECT_INFO["Save"] | {"python_module": "custom_nodes.a"}}
    document = page(*(node(index, "sub") for index in range(100)), **inner)
    with pytest.raises(RequestRejected) as refused:
        to_prompt(document, scripted, lambda _count: 0)
    assert refused.value.problems[0].allowed == {"maximum": 32 * 1024 * 1024}


def test_a_file_that_fills_one_input_is_no_copy() -> None:
    content = "a" * 40 * 1024 * 1024
    changed = override(prompt_of(2, "Text", text="x"), {"1.text": content}, OBJECT_INFO)
    assert changed.prompt["1"]["inputs"]["text"] is content  # type: ignore[index]
    document = page(node(1, "Save", {"filename_prefix": "x", "other": content}))
    scripted = {"Save": OBJECT_INFO["Save"] | {"python_module": "custom_nodes.a"}}
    assert to_prompt(document, scripted, lambda _count: 0)["1"]["inputs"]["other"] is content


def test_a_text_in_a_sub_graph_is_counted_for_every_use() -> None:
    inner = sub_graph([node(9, "Text", ["{a|b}" + "x" * 1_000_000])], [], [])
    document = page(*(node(index, "sub") for index in range(200)), **inner)
    with pytest.raises(RequestRejected) as refused:
        to_prompt(document, OBJECT_INFO, lambda _count: 0)
    assert refused.value.problems[0].type == "max_bytes"


def test_ids_of_nested_sub_graphs_have_a_length() -> None:
    with pytest.raises(RequestRejected) as refused:
        to_prompt(page(node("x" * 5_000, "Text", ["a"])), OBJECT_INFO, lambda _count: 0)
    assert refused.value.problems[0].type == "too_long"


def test_a_name_that_values_make_too_long_is_refused_with_its_node() -> None:
    with pytest.raises(RequestRejected) as refused:
        to_prompt(with_names(100_000), OBJECT_INFO, lambda _count: 0)
    (problem,) = refused.value.problems
    assert (problem.node_id, problem.field, problem.type) == ("2", "filename_prefix", "invalid_filename_prefix")
