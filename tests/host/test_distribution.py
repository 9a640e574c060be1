"""The name of the distribution; no text of the repository installs a name of ours from an index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from darkroom.host.distribution import DISTRIBUTION, install_command, installed_version
from tests.installed import tracked_files

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OURS = frozenset({"darkroom", DISTRIBUTION, "darkroom-client"})
INSTALLERS = re.compile(
    r"\b(?:pip3?|uv pip|uv|uv tool|pipx|poetry|pdm|conda|npm|pnpm|yarn|bun)\s+"
    r"(?:install|add|i|download|wheel|run|inject)\b(?P<arguments>[^\n;&|`]*)|\b(?:uvx|npx)\s+(?P<tool>[^\n;&|`]*)"
)
ARGUMENT = re.compile(
    r"""["']?(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?(?:[=<>~!]=?[^\s"'@]*)?(?P<end>\s*@|["'\s]|$)"""
)
WRONG_EXTRA = re.compile(r"(?<![\w./-])darkroom\[[a-z][a-z, -]*\]")
REQUIREMENT = re.compile(r"^\s*(?:darkroom(?:[-_](?:worker|client))?)\s*(?:\[|[=<>~!]=)", re.MULTILINE)


def unsafe_installs(text: str) -> Iterator[str]:
    """Yields the commands that take one of our names from a package index, and requirements that do."""
    for found in INSTALLERS.finditer(text):
        for argument in re.split(r"\s+(?!@)", (found["arguments"] or found["tool"]).strip()):
            match = ARGUMENT.match(argument)
            if match and "@" not in match["end"] and re.sub(r"[-_.]+", "-", match["name"]).lower() in OURS:
                yield found[0].strip()
    yield from (found[0].strip() for pattern in (WRONG_EXTRA, REQUIREMENT) for found in pattern.finditer(text))


def test_no_text_of_the_repository_installs_a_name_of_ours_from_an_index() -> None:
    found = []
    for path in tracked_files(ROOT):
        content = (ROOT / path).read_bytes()
        if path != Path(__file__).relative_to(ROOT) and b"\0" not in content[:8192]:
            found += [f"{path}: {command}" for command in unsafe_installs(content.decode("utf-8", errors="replace"))]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "pip install darkroom",
        "python -m pip install -U 'darkroom[mcp]'",
        'pip3 install "darkroom>=0.1"',
        "uv add darkroom",
        "uv pip install darkroom-worker[redis]",
        "pipx install darkroom_worker",
        "pipx run darkroom serve",
        "uvx darkroom generate",
        "npm install darkroom-client",
        "expected the extra darkroom[otel]",
        "torch==2\ndarkroom==0.2.0\n",
    ],
)
def test_every_way_to_install_a_name_of_ours_is_found(text: str) -> None:
    assert list(unsafe_installs(text))


@pytest.mark.parametrize(
    "text",
    [
        ".venv/bin/pip install -c constraints.txt -e '.[mcp]'",
        'pip install "darkroom-worker[ray] @ git+https://example.com/darkroom.git"',
        "pip install 'dist/darkroom_worker-0.2.0-py3-none-any.whl[mcp]'",
        "pip install --no-deps /wheels/darkroom_worker-*.whl",
        "pip install 'redis>=5.2' && darkroom serve",
        "apt-get update && /opt/darkroom/bin/python -m pip install torch",
    ],
)
def test_an_installation_from_a_folder_a_wheel_or_a_repository_is_none(text: str) -> None:
    assert not list(unsafe_installs(text))


def test_the_name_is_that_of_the_project_and_of_what_is_installed() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert installed_version() == PROJECT["version"]
    commands = metadata.distribution(DISTRIBUTION).entry_points.select(group="console_scripts")
    assert {command.name for command in commands} == {"darkroom"}


@pytest.mark.parametrize("extra", [name for name in PROJECT["optional-dependencies"] if name != "test"])
def test_the_command_for_an_extra_names_its_packages_and_this_python(extra: str) -> None:
    command = install_command(extra)
    assert command.startswith(f"{sys.executable} -m pip install ")
    needed = {Requirement(line).name for line in PROJECT["optional-dependencies"][extra]}
    assert all(name in command for name in needed)
    assert not list(unsafe_installs(command))


def test_what_the_command_for_an_extra_names_is_what_is_installed_here() -> None:
    command = install_command("mcp").replace(sys.executable, "python", 1).split(" -m ", 1)[1].replace("'", "").split()
    done = subprocess.run(
        [sys.executable, "-m", *command, "--dry-run", "--no-index", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_an_extra_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="extra: unknown; got 'nothing'"):
        install_command("nothing")
