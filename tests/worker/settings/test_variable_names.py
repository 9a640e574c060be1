"""Names of variables that are no settings: those without effect, those of earlier versions, misspelt ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.doctor.examination import check_settings
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.removed import REMOVED_NAMES
from darkroom.worker.settings.variable_names import find_name_problems, known_names, private_names

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_a_removed_setting_is_named_with_what_to_do() -> None:
    for name, advice in REMOVED_NAMES.items():
        assert find_name_problems([name]) == [f"{name} is no longer a setting: {advice}"]
        assert name in private_names([]) and f"`{name}`" in PAGE.read_text(encoding="utf-8")


def test_a_removed_setting_stops_no_start_and_the_doctor_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEAD_TIMEOUT", "soon")
    file = tmp_path / ".env"
    file.write_text("MODEL_CONNECTIONS=-1\n", encoding="utf-8")
    warnings = load_settings(env_file=file).warnings
    assert [line.partition(" ")[0] for line in warnings] == ["HEAD_TIMEOUT", "MODEL_CONNECTIONS"]
    assert all(line in check_settings(warnings).detail for line in warnings)


def test_what_vast_sets_without_effect_is_not_warned_about() -> None:
    assert find_name_problems(["MODEL_HEALTH_ENDPOINT"]) == []


def test_a_removed_setting_is_no_setting_and_is_proposed_for_no_other_name() -> None:
    assert not REMOVED_NAMES.keys() & known_names()
    (warning,) = find_name_problems(["ENGINE_SPLIT_GUIDANC"])
    assert not any(name in warning.partition(" ")[2] for name in REMOVED_NAMES)
