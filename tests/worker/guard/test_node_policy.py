"""Nodes that a workflow may use."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.worker.guard.node_policy import NodePolicy, pack_names
from darkroom.worker.settings.jobs import NodePolicyConfig

INFO = {
    "KSampler": {"python_module": "nodes"},
    "LoadImage": {"python_module": "nodes"},
    "Canny": {"python_module": "comfy_extras.nodes_canny"},
    "RunShell": {"python_module": "custom_nodes.ComfyUI-Shell"},
    "Detail": {"python_module": "custom_nodes.Impact"},
}


def forbidden(classes: list[str], **rules: tuple[str, ...]) -> dict[str | None, str]:
    return _rules_broken(classes, NodePolicyConfig(**rules), is_trusted=False)


def _rules_broken(classes: list[str], config: NodePolicyConfig, *, is_trusted: bool) -> dict[str | None, str]:
    prompt = {str(index): {"class_type": name, "inputs": {}} for index, name in enumerate(classes)}
    problems = NodePolicy(config).find_problems(prompt, INFO, is_trusted=is_trusted)
    return {problem.class_type: (problem.extra or {})["rule"] for problem in problems}


def test_without_rules_every_node_may_be_used() -> None:
    assert forbidden([*INFO, "Unknown"]) == {}
    assert not NodePolicy(NodePolicyConfig()).is_active


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"denied": ("Load*",)}, {"LoadImage": "DENIED_NODES=Load*"}),
        ({"denied_packs": ("ComfyUI-*",)}, {"RunShell": "DENIED_NODE_PACKS=ComfyUI-*"}),
        (
            {"denied_packs": ("custom_nodes.*",)},
            {"RunShell": "DENIED_NODE_PACKS=custom_nodes.*", "Detail": "DENIED_NODE_PACKS=custom_nodes.*"},
        ),
        ({"allowed_packs": ("built-in", "Impact")}, {"RunShell": "ALLOWED_NODE_PACKS"}),
        ({"allowed_packs": ("nodes",), "allowed": ("Can*", "Detail")}, {"RunShell": "ALLOWED_NODES"}),
        ({"allowed_packs": ("built-in",), "denied": ("Canny",)}, {"Canny": "DENIED_NODES=Canny"}),
    ],
)
def test_rules_forbid_by_class_and_by_pack(rules: dict[str, Any], expected: dict[str, str]) -> None:
    found = forbidden(list(INFO), **rules)
    assert expected.items() <= found.items()
    if "denied" in rules or "denied_packs" in rules:
        assert "KSampler" not in found


def test_upper_and_lower_case_are_distinguished() -> None:
    assert forbidden(["LoadImage"], denied=("load*",)) == {}


def test_a_deny_list_wins() -> None:
    assert forbidden(["Canny"], allowed=("*",), denied=("Canny",)) == {"Canny": "DENIED_NODES=Canny"}


def test_a_class_that_nobody_knows_is_on_no_list_of_packs() -> None:
    assert forbidden(["New"], allowed_packs=("*",)) == {"New": "ALLOWED_NODE_PACKS"}
    assert forbidden(["New"], denied_packs=("*",)) == {}


def test_the_operators_modifiers_obey_deny_lists_alone() -> None:
    config = NodePolicyConfig(allowed=("Nothing",), denied=("Canny",))
    assert _rules_broken(["LoadImage", "Canny"], config, is_trusted=True) == {"Canny": "DENIED_NODES=Canny"}


@pytest.mark.parametrize("declared", [None, {}, {"python_module": 3}, {"python_module": ""}, []])
def test_an_engine_that_does_not_say_has_no_packs(declared: Any) -> None:
    assert pack_names(declared) == ()
