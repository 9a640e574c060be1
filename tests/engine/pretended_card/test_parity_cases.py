"""One in five of ComfyUI's recorded workflows on a pretended card: none fails, and none mixes devices.

Their images are compared elsewhere; here there are no numbers. A handful runs with `./test.sh`, all with `-m slow`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from darkroom.engine.engine import Engine
from tests.engine.pretended_card.card import PretendedCard
from tests.engine.pretended_card.runs import engine_on_card
from tests.parity.in_process import run_case
from tests.parity.recorded import INPUTS, Case, case_named, find_cases

EVERY = 5
FAST = ("sdxl/tinyxl_control", "later_nodes/growing_batches")
SLOW = [case for case in list(find_cases())[::EVERY] if str(case) not in FAST]


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, PretendedCard]]:
    """An engine on a card, over the inputs of the cases. Models are written by the first case that uses them."""
    base = tmp_path_factory.mktemp("parity_on_card")
    shutil.copytree(INPUTS, base / "input")
    with engine_on_card(base) as found:
        yield found
    shutil.rmtree(base)


def check_case(parity: tuple[Engine, PretendedCard], case: Case) -> None:
    """Fail where a case fails or mixes devices."""
    engine, card = parity
    card.log.entries.clear()
    run_case(engine, case)
    assert not card.log.faults


@pytest.mark.parametrize("name", FAST)
def test_a_recorded_workflow_runs_on_a_card(parity: tuple[Engine, PretendedCard], name: str) -> None:
    check_case(parity, case_named(name))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", SLOW, ids=lambda case: f"{case.family}-{case.name}")
def test_other_recorded_workflows_run_on_a_card(parity: tuple[Engine, PretendedCard], case: Case) -> None:
    check_case(parity, case)
