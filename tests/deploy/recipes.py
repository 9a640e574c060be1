"""Contents of the files of `deploy/`, read for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"


def yaml_documents(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(path.read_text(encoding="utf-8")) if item]


def yaml_files() -> list[Path]:
    return sorted([*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.yml")])


def all_values(value: Any) -> Iterator[Any]:
    """The value and everything in it."""
    yield value
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from all_values(item)


def compose_services() -> dict[str, dict[str, Any]]:
    """Service of a compose file -> what its files together say of it."""
    merged: dict[str, dict[str, Any]] = {}
    for name in ("compose.yaml", "gpu.yaml", "full.yaml"):
        (document,) = yaml_documents(DEPLOY / "compose" / name)
        for service, described in document["services"].items():
            have = merged.setdefault(service, {})
            environment = {**have.get("environment", {}), **described.get("environment", {})}
            merged[service] = {**have, **described, "environment": environment}
    return merged


def kubernetes_deployment() -> dict[str, Any]:
    (document,) = yaml_documents(DEPLOY / "kubernetes" / "base" / "deployment.yaml")
    pod: dict[str, Any] = document["spec"]["template"]["spec"]
    return pod


def fleet_deployments() -> dict[str, dict[str, Any]]:
    """Container of the fleet -> the pod that has it, of gateway, broker and database."""
    folder = DEPLOY / "kubernetes" / "components" / "fleet"
    documents = [item for name in ("gateway", "redis", "postgres") for item in yaml_documents(folder / f"{name}.yaml")]
    pods = [item["spec"]["template"]["spec"] for item in documents if "template" in item.get("spec", {})]
    return {pod["containers"][0]["name"]: pod for pod in pods}


def fleet_services() -> dict[str, dict[str, Any]]:
    (document,) = yaml_documents(DEPLOY / "compose" / "fleet.yaml")
    services: dict[str, dict[str, Any]] = document["services"]
    return services


def cloud_run_service() -> dict[str, Any]:
    (document,) = yaml_documents(DEPLOY / "cloud_run" / "service.yaml")
    pod: dict[str, Any] = document["spec"]["template"]["spec"]
    return pod


def salad_group() -> dict[str, Any]:
    group: dict[str, Any] = json.loads((DEPLOY / "salad" / "container_group.json").read_text(encoding="utf-8"))
    return group


def unit_values(name: str) -> list[str]:
    unit = (DEPLOY / "systemd" / "darkroom.service").read_text(encoding="utf-8")
    return re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)


def worker_environments() -> dict[str, dict[str, str]]:
    """Recipe -> the variables that it gives the worker."""
    (pod,), (run,) = kubernetes_deployment()["containers"], cloud_run_service()["containers"]
    unit = dict(line.split("=", 1) for line in unit_values("Environment"))
    file = (DEPLOY / "systemd" / "darkroom.env").read_text(encoding="utf-8")
    hub = json.loads((DEPLOY / "runpod" / "hub.json").read_text(encoding="utf-8"))
    vast = json.loads((DEPLOY / "vast" / "template.json").read_text(encoding="utf-8"))
    modal = (DEPLOY / "modal" / "app.py").read_text(encoding="utf-8")
    (settings,) = re.findall(r"settings = ({.*?})", modal)
    return {
        "compose": compose_services()["worker"]["environment"],
        "compose worker of a fleet": fleet_services()["worker"]["environment"],
        "compose gateway": fleet_services()["gateway"]["environment"],
        "kubernetes gateway": {
            item["name"]: item.get("value", "") for item in fleet_deployments()["gateway"]["containers"][0]["env"]
        },
        "kubernetes": {item["name"]: item.get("value", "") for item in pod["env"]},
        "systemd": unit | dict(re.findall(r"^(\w+)=(.*)$", file, re.MULTILINE)),
        "runpod": json.loads((DEPLOY / "runpod" / "template.json").read_text(encoding="utf-8"))["env"],
        "runpod hub": {item["key"]: str(item["input"]["default"]) for item in hub["config"]["env"]},
        "vast": dict(re.findall(r"-e (\w+)=(\S+)", vast["env"])),
        "modal": json.loads(settings),
        "cloud run": {item["name"]: item.get("value", "") for item in run["env"]},
        "salad": salad_group()["container"]["environment_variables"],
    }
