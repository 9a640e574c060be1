"""Nodes of partners' services, which take a key of the request."""

from __future__ import annotations

from darkroom.contract.wire import PARTNER_KEYS
from darkroom.worker.engines.fallback.partners import find_partner_problems, partner_nodes

INFO = {
    "Film": {"input": {"required": {}, "hidden": {"api_key_comfy_org": ["API_KEY_COMFY_ORG"]}}},
    "Old": {"input": {"hidden": {"auth_token": "AUTH_TOKEN_COMFY_ORG"}}},
    "Plain": {"input": {"hidden": {"prompt": "PROMPT", "id": ["UNIQUE_ID"]}}},
}
PROMPT = {
    str(number): {"class_type": name, "inputs": {}} for number, name in enumerate(("Film", "Old", "Plain", "None"))
}


def test_a_class_that_takes_a_key_is_a_partners() -> None:
    assert partner_nodes(PROMPT, INFO) == {"0": "Film", "1": "Old"}


def test_a_key_is_asked_for_once_and_only_where_a_node_takes_it() -> None:
    (problem,) = find_partner_problems(PROMPT, INFO, (), may_send=True)
    assert problem.field == "input.extra_data.api_key_comfy_org" and "Film, Old" in problem.message
    assert not find_partner_problems(PROMPT, INFO, PARTNER_KEYS[:1], may_send=True)
    assert not find_partner_problems({"2": PROMPT["2"]}, INFO, (), may_send=True)


def test_where_nothing_may_leave_every_such_node_is_refused_with_and_without_a_key() -> None:
    problems = find_partner_problems(PROMPT, INFO, PARTNER_KEYS, may_send=False)
    assert [(problem.node_id, problem.type) for problem in problems] == [
        ("0", "no_outgoing_traffic"),
        ("1", "no_outgoing_traffic"),
    ]
    assert not find_partner_problems({"2": PROMPT["2"]}, INFO, (), may_send=False)
