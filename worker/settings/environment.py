"""The only file of the front that reads the environment and `.env`, and that builds the environment of children.

`load_settings()` returns one frozen `Settings` and the warnings to log. A value that does not parse raises
SettingsInvalid naming the variable. Unknown names are ignored, with a warning for one that resembles ours. Every secret
has a form `NAME_FILE`, the name of a file that holds the value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import getproxies

from pydantic import SecretStr, ValidationError
from pydantic_settings import DotEnvSettingsSource

from darkroom.contract.missing_file import unreadable_file
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.child_environment import find_pattern_problem, listed_environment
from darkroom.worker.settings.listener import ListenerSettings
from darkroom.worker.settings.section import by_section, variables_of
from darkroom.worker.settings.settings import Settings
from darkroom.worker.settings.start_checks import find_idle_sandbox, find_incomplete_store, find_open_doors
from darkroom.worker.settings.variable_names import (
    RUNPOD_PREFIX,
    VAST_PORT_PREFIX,
    find_name_problems,
    known_names,
    private_names,
    secret_names,
)

HUB_ENDPOINT: Final = "https://huggingface.co"
CIVITAI_ENDPOINT: Final = "https://civitai.com"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and warnings about them for the log."""

    settings: Settings
    warnings: tuple[str, ...]


def load_settings(env_file: Path | None = Path(".env"), **overrides: Any) -> LoadedSettings:
    """Read the environment and `env_file` (if it is there); `overrides` (by variable) take precedence over both.

    Raises SettingsInvalid naming every variable whose value does not parse, and a secret that is given twice.
    """
    seen = _names_and_values(env_file)
    given = {name.upper(): value for name, value in overrides.items()}
    if unknown := given.keys() - known_names():
        raise TypeError(f"overrides: no such setting; got {', '.join(sorted(unknown))}, expected names of variables")
    worker_port = given.get("WORKER_PORT") or seen.get("WORKER_PORT") or ListenerSettings().port
    try:
        sections: dict[str, Any] = by_section(Settings, read_secret_files(seen) | given)
        if public_port := _public_port(f"{VAST_PORT_PREFIX}{worker_port}", seen):
            sections.setdefault("vast", {})["public_port"] = public_port
        settings = Settings(_env_file=env_file, **sections)  # type: ignore[call-arg]  # pydantic-settings' own argument
    except ValidationError as error:
        raise SettingsInvalid(_explain(error)) from None
    _check_environment_names(settings.engine.environment_names)
    problems = (find_open_doors(settings), find_incomplete_store(settings), find_idle_sandbox(settings))
    return LoadedSettings(settings, tuple(find_name_problems(seen) + [line for lines in problems for line in lines]))


def trusted_proxies() -> tuple[str, ...]:
    """Return the addresses and networks that the HTTP server trusts as proxies, from FORWARDED_ALLOW_IPS."""
    return tuple(part.strip() for part in os.environ.get("FORWARDED_ALLOW_IPS", "").split(",") if part.strip())


def child_environment(extra: Sequence[str] | None = None, *, has_proxy_passwords: bool = False) -> dict[str, str]:
    """Return the environment for a child process: the listed names of ours, and no setting of the front.

    `extra` are the names of ENGINE_ENVIRONMENT; None reads that variable.
    """
    if extra is None:
        extra = [part.strip() for part in os.environ.get("ENGINE_ENVIRONMENT", "").split(",") if part.strip()]
    return listed_environment(os.environ, extra, private_names(os.environ), has_proxy_passwords=has_proxy_passwords)


def runpod_environment() -> dict[str, str]:
    """Return the environment for RunPod's loop. By default the package logs addresses with keys, and outputs."""
    level = os.environ.get("RUNPOD_LOG_LEVEL", "").upper()
    of_runpod = {name: value for name, value in os.environ.items() if name.upper().startswith(RUNPOD_PREFIX)}
    quiet = level if level in ("INFO", "WARN", "ERROR") else "INFO"
    return {**child_environment((), has_proxy_passwords=True), **of_runpod, "RUNPOD_LOG_LEVEL": quiet}


def add_to_environment(variables: Mapping[str, str]) -> None:
    """Add variables to this process's environment, before the settings are read."""
    os.environ.update(variables)


def inherited_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for another worker: ours with all its settings, some of them replaced by these."""
    return {**os.environ, **changes}


def read_secret_files(names: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the secrets whose `NAME_FILE` is set, by variable; files of keys are read elsewhere.

    Raises SettingsInvalid for a file that cannot be read or holds nothing, and where NAME is set as well.
    """
    values, problems = {}, []
    for name in secret_names():
        if by_section(Settings, {f"{name}_FILE": ""}):
            continue
        try:
            value = _read_secret_file(name, names)
        except SettingsInvalid as error:
            problems.append(error.message)
            continue
        if value is not None:
            values[name] = value
    if problems:
        raise SettingsInvalid("; ".join(problems))
    return values


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Address and token of a site with models; an empty token is none. `is_offline`: it must not be asked."""

    endpoint: str
    token: SecretStr = SecretStr("")
    is_offline: bool = False


def hub_access() -> HubAccess:
    """Return the access to the Hugging Face hub, from the variables that its own library reads, and HF_TOKEN_FILE.

    Without HF_TOKEN it is the token that the hub's own login command has stored. Raises SettingsInvalid.
    """
    token = _read_secret_file("HF_TOKEN", os.environ) or os.environ.get("HF_TOKEN", "")
    if not token:
        from huggingface_hub import get_token

        token = get_token() or ""
    is_offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return HubAccess(os.environ.get("HF_ENDPOINT", "") or HUB_ENDPOINT, SecretStr(token.strip()), is_offline)


def civitai_access() -> HubAccess:
    """Return the access to Civitai, from CIVITAI_TOKEN, CIVITAI_TOKEN_FILE and CIVITAI_ENDPOINT.

    Raises SettingsInvalid.
    """
    token = _read_secret_file("CIVITAI_TOKEN", os.environ) or os.environ.get("CIVITAI_TOKEN", "")
    return HubAccess(os.environ.get("CIVITAI_ENDPOINT", "") or CIVITAI_ENDPOINT, SecretStr(token.strip()))


def site_tokens() -> list[str]:
    """Return the tokens of HF_TOKEN and CIVITAI_TOKEN, for redaction in the log. Raises SettingsInvalid."""
    names = ("HF_TOKEN", "CIVITAI_TOKEN")
    given = (_read_secret_file(name, os.environ) or os.environ.get(name, "").strip() for name in names)
    return [token for token in given if token]


def has_colors() -> bool:
    """Return False where the user's terminals show no colours: NO_COLOR is set, to any value but an empty one."""
    return not os.environ.get("NO_COLOR")


def terminal_variables() -> dict[str, str]:
    """Return the variables by which terminals say what they are and can do."""
    names = ("TERM", "TERM_PROGRAM", "COLORTERM", "KITTY_WINDOW_ID", "TMUX")
    return {name: os.environ[name] for name in names if name in os.environ}


def has_proxy() -> bool:
    """Return True if the environment names a proxy for addresses of the web."""
    return not getproxies().keys().isdisjoint({"http", "https", "all"})


def _public_port(name: str, names: Mapping[str, str]) -> int | None:
    """Return the port that Vast maps to the worker's; None where it names none. Raises SettingsInvalid."""
    value = names.get(name, "")
    if value and not value.isdecimal():
        raise SettingsInvalid(f"{name}: no port; got {value!r}, expected a number")
    return int(value) if value else None


def _read_secret_file(name: str, names: Mapping[str, str]) -> str | None:
    file = names.get(f"{name}_FILE", "")
    if not file:
        return None
    if names.get(name):
        raise SettingsInvalid(f"{name}: set beside {name}_FILE; got both, expected one of them")
    try:
        value = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsInvalid(f"{name}_FILE: {file}: {unreadable_file(Path(file), error)}") from None
    except UnicodeDecodeError:
        raise SettingsInvalid(f"{name}_FILE: {file} cannot be read: not UTF-8 text") from None
    if not value:
        raise SettingsInvalid(f"{name}_FILE: {file} is empty; expected the value of {name}")
    return value


def _check_environment_names(patterns: Sequence[str]) -> None:
    """Raise SettingsInvalid where a child would get a setting of the front."""
    private = private_names(os.environ)
    problems = [problem for pattern in patterns if (problem := find_pattern_problem(pattern, private))]
    if problems:
        raise SettingsInvalid(f"ENGINE_ENVIRONMENT: {'; '.join(problems)}")


def _names_and_values(env_file: Path | None) -> dict[str, str]:
    seen: dict[str, str] = {}
    if env_file is not None and env_file.is_file():
        source = DotEnvSettingsSource(Settings, env_file=env_file)
        seen.update({name.upper(): value for name, value in source.env_vars.items() if value is not None})
    seen.update({name.upper(): value for name, value in os.environ.items()})
    return seen


def _shown_name(name: str) -> str:
    """Return the name of a variable, with the setting that has it as a part."""
    part_of = {variable.name: variable.part_of for variable in variables_of(Settings)}.get(name, "")
    return f"{name} or its part of {part_of}" if part_of else name


def _explain(error: ValidationError) -> str:
    """Return the problems, each with the name of its variable; a rule between several names them in its message."""
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        location, message = problem["loc"], problem["msg"]
        lines.append(
            f"{_shown_name(str(location[1]))}: {message}"
            if len(location) > 1
            else message.removeprefix("Value error, ")
        )
    return "; ".join(lines)
