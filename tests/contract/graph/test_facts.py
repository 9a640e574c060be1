"""Facts of nodes and samplers: as `/object_info` has them, and as they are known without an engine."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from darkroom.contract.graph.facts import (
    FACTS_KEY,
    KNOWN_PATH,
    NO_FACTS,
    Facts,
    NodeFacts,
    SamplerFacts,
    known_facts,
    read_facts,
)
from tools.known_facts import LISTS_SAMPLERS, described_facts

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def test_facts_are_read_back_as_they_were_declared() -> None:
    facts = NodeFacts(
        models={"ckpt_name": "checkpoints"},
        recorded=("audio",),
        saves="filename_prefix",
        items="alone",
        sampler_input="sampler_name",
        samplers={"heun": SamplerFacts(2, True), "dpm_adaptive": SamplerFacts(None, False)},
        passes=3,
        reads_early=True,
    )
    assert read_facts(json.loads(json.dumps(facts.as_json()))) == facts
    assert NO_FACTS.as_json() == {}


@given(st.dictionaries(st.sampled_from(["samplers", "models", "recorded", "saves", "passes", "reads_early"]), VALUES))
def test_no_report_of_an_engine_raises(described: dict[str, object]) -> None:
    assert read_facts(read_facts(described).as_json()) == read_facts(described)


def test_facts_known_without_an_engine_are_those_declared() -> None:
    """A node or sampler may be missing in the file: the engine reports it."""
    declared = described_facts()
    for name, known in json.loads(KNOWN_PATH.read_text("utf-8")).items():
        samplers, own = known.pop("samplers", {}), dict(declared[name])
        assert samplers.items() <= dict(own.pop("samplers", {})).items()  # type: ignore[call-overload]
        assert known == own, f"{name}: run `python -m tools.known_facts`"
    assert known_facts()[LISTS_SAMPLERS].samplers["heun"] == SamplerFacts(2, True)


def test_an_engine_that_reports_facts_is_believed() -> None:
    info = {
        "SaveTwice": {FACTS_KEY: {"saves": "first"}},
        "Pick": {FACTS_KEY: {"sampler_input": "name", "samplers": {"own": [4, False]}}},
    }
    facts = Facts(info)
    assert facts.of("SaveTwice").saves == "first"
    assert facts.sampler("own") == SamplerFacts(4, False)
    assert facts.sampler("of_a_pack") is None
    assert facts.sampler("heun") is None, "the engine says what its samplers are, and has none of that name"
    assert Facts({"Pick": {FACTS_KEY: {"samplers": {"heun": [3, False]}}}}).sampler("heun") == SamplerFacts(3, False)
    assert Facts({"KSampler": {"python_module": "nodes"}}).sampler("heun") == SamplerFacts(2, True)


def test_comfyuis_own_classes_are_known_where_an_engine_reports_none() -> None:
    facts = Facts({"SaveImage": {"python_module": "nodes"}, "SaveVideo": {"python_module": "custom_nodes.other"}})
    assert facts.of("SaveImage").saves == "filename_prefix"
    assert facts.of("SaveVideo") == NO_FACTS
    assert facts.of("NoSuchClass") == NO_FACTS
    assert Facts().of("LoadLatent").files == {"latent": "latent"}
