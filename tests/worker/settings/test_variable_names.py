"""Names of variables that are no settings: those without effect, those of earlier versions, misspelt ones."""

from __future__ import annotations

from pathlib import Path

from worker.settings.variable_names import REMOVED_NAMES, find_name_problems, known_names, private_names

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_a_removed_setting_is_named_with_what_to_do() -> None:
    for name, advice in REMOVED_NAMES.items():
        assert find_name_problems([name]) == [f"{name} is no longer a setting: {advice}"]
        assert name in private_names([]) and f"`{name}`" in PAGE.read_text(encoding="utf-8")


def test_a_removed_setting_is_no_setting_and_is_proposed_for_no_other_name() -> None:
    assert not REMOVED_NAMES.keys() & known_names()
    (warning,) = find_name_problems(["ENGINE_SPLIT_GUIDANC"])
    assert not any(name in warning.partition(" ")[2] for name in REMOVED_NAMES)
