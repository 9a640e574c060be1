"""The README says what is: its settings, its files, its commands and its example requests."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices, SecretStr

from engine.server.flags import (
    IGNORED_OPTIONS,
    IGNORED_SWITCHES,
    TEXT_DTYPES,
    UNET_DTYPES,
    VAE_DTYPES,
    build_parser,
)
from modifiers.registry import build_registry
from worker.api.schemas import GenerateRequest
from worker.settings import Settings, known_names

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EMPTY = "–"


def section(title: str) -> str:
    return README.partition(f"## {title}\n")[2].partition("\n## ")[0]


def table_rows(text: str) -> list[list[str]]:
    """The cells of every table row but headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [
        row for index, row in enumerate(cells) if not set("".join(row)) <= set("- ") and not is_heading(cells, index)
    ]


def is_heading(cells: list[list[str]], index: int) -> bool:
    return index + 1 < len(cells) and set("".join(cells[index + 1])) <= set("- ")


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def curl_bodies() -> list[dict[str, Any]]:
    commands = [shlex.split(block) for block in code_blocks("sh") if block.startswith("curl")]
    return [json.loads(words[words.index("-d") + 1]) for words in commands]


def shown_default(value: Any) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value in ("", ()):
        return EMPTY
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{value}`"


def main_name(attribute: str) -> str:
    alias = Settings.model_fields[attribute].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else attribute.upper()


def test_lists_every_setting_in_order_with_its_default() -> None:
    rows = [(row[0].strip("`"), row[1]) for row in table_rows(section("Settings"))]
    assert rows == [(main_name(name), shown_default(field.default)) for name, field in Settings.model_fields.items()]


def test_names_every_other_name_of_a_setting() -> None:
    assert not [name for name in known_names() if f"`{name}`" not in README]


def test_the_flow_table_names_files_that_exist() -> None:
    files = re.findall(r"`([\w/]+\.py)`", section("How a request flows"))
    assert len(files) > 20
    assert not [name for name in files if not (ROOT / name).is_file()]


def test_names_only_files_that_exist() -> None:
    named = re.findall(r"`((?:misc|tests|benchmark|modifiers|engine|worker)/[\w/.]*)`", README)
    assert not [name for name in named if not (ROOT / name).exists()]


def test_lists_every_flag_of_the_engine_that_has_an_effect() -> None:
    flags = {
        option for action in build_parser()._actions for option in action.option_strings if option.startswith("--")
    }
    told = set(re.findall(r"--[a-z][a-z0-9_-]*", section("The engine alone")))
    sisters = {*UNET_DTYPES, *VAE_DTYPES, *TEXT_DTYPES}  # "and its sisters"
    silent = {*IGNORED_SWITCHES, *IGNORED_OPTIONS, "--fast", "--help", "--liveness-fd"}
    assert told <= flags
    assert flags - told - sisters - silent == set()


def test_lists_every_modifier_with_all_its_parameters() -> None:
    rows = {row[0].strip("`"): row[1] for row in table_rows(README) if row[0].strip("`") in build_registry().names()}
    assert set(rows) == set(build_registry().names())
    text = rows["Text2Image"]
    described = {item["name"]: item for item in build_registry().describe()}
    assert not [name for name in described["Text2Image"]["schema"]["properties"] if f"`{name}`" not in text]


@pytest.mark.parametrize("body", curl_bodies())
def test_example_requests_are_well_formed(body: dict[str, Any]) -> None:
    GenerateRequest.model_validate(body)
    request = body["input"]
    if "modifier" in request:
        build_registry().build(request["modifier"], request["modifications"], {})


@pytest.mark.parametrize("block", code_blocks("sh"))
def test_shell_examples_parse(block: str) -> None:
    subprocess.run(["bash", "-n", "-c", block], check=True)


def test_other_examples_parse() -> None:
    for block in code_blocks("json"):
        json.loads(block)
    for block in code_blocks("python"):
        ast.parse(block)


@pytest.mark.parametrize("script", ["run.sh", "test.sh", ".ci/run", "misc/install.sh", "misc/lock.sh"])
def test_scripts_parse_and_may_be_run(script: str) -> None:
    path = ROOT / script
    subprocess.run(["bash", "-n", path], check=True)
    assert path.stat().st_mode & 0o111


def test_continuous_integration_runs_the_readmes_own_command() -> None:
    assert "test.sh" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_table_of_nodes_is_that_of_the_catalogue() -> None:
    done = subprocess.run([sys.executable, "misc/node_table.py", "--check"], cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, "run `python misc/node_table.py`"
