"""Every recipe names settings, routes, ports, users and commands that exist, and gives the worker time to end."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from darkroom.worker.api import health
from darkroom.worker.app.serve_gateway import GOODBYE_SECONDS
from darkroom.worker.engines.pool import PROMPTS_PER_ENGINE
from darkroom.worker.gateway import probes
from darkroom.worker.gateway.scale import Work
from darkroom.worker.models.manifest import built_in_manifest
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.variable_names import known_names
from tests.deploy.recipes import (
    DEPLOY,
    all_values,
    cloud_run_service,
    compose_services,
    fleet_deployments,
    fleet_services,
    kubernetes_deployment,
    salad_group,
    unit_values,
    worker_environments,
    yaml_documents,
    yaml_files,
)

ROOT = DEPLOY.parent
ROUTES = {getattr(route, "path", "") for route in health.router.routes}
RECIPES = worker_environments()


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_variable_is_a_setting_and_parses(recipe: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = RECIPES[recipe]
    assert environment
    assert {name.removesuffix("_FILE") for name in environment} <= {*known_names(), "API_KEYS", "ADMIN_API_KEYS"}
    for name, value in environment.items():
        if value and not value.startswith(("$", "%")) and not name.endswith("_FILE"):
            monkeypatch.setenv(name, value)
    load_settings(env_file=None)


@pytest.mark.parametrize("path", yaml_files(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_yaml_files_parse_and_their_probes_ask_routes_that_exist(path: Path) -> None:
    for value in all_values(yaml_documents(path)):
        if isinstance(value, dict) and "httpGet" in value:
            assert value["httpGet"]["path"] in ROUTES
            assert value["httpGet"]["port"] in ("http", 8000)


def test_json_files_parse_and_probes_of_salad_ask_routes_that_exist() -> None:
    for path in DEPLOY.rglob("*.json"):
        json.loads(path.read_text(encoding="utf-8"))
    group = salad_group()
    assert group["networking"]["port"] == 8000
    for name in ("startup_probe", "readiness_probe", "liveness_probe"):
        assert group[name]["http"]["path"] in ROUTES and group[name]["http"]["port"] == 8000


def test_a_worker_gets_longer_to_stop_than_its_jobs_to_end() -> None:
    drains = {name: int(environment.get("DRAIN_TIMEOUT", 30)) for name, environment in RECIPES.items()}
    assert int(compose_services()["worker"]["stop_grace_period"].removesuffix("s")) > drains["compose"]
    assert int(unit_values("TimeoutStopSec")[0]) > drains["systemd"]
    pod = kubernetes_deployment()
    (container,) = pod["containers"]
    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > drains["kubernetes"] + int(hook[hook.index("--seconds") + 1])
    assert drains["cloud run"] < 10


def test_hooks_run_modules_of_the_image() -> None:
    (container,) = kubernetes_deployment()["containers"]
    module = container["lifecycle"]["preStop"]["exec"]["command"][2]
    assert (ROOT / Path(*module.split("."))).with_suffix(".py").is_file()
    known = set(built_in_manifest().entries) | set(built_in_manifest().sets)
    commands = [value for path in yaml_files() for value in all_values(yaml_documents(path)) if isinstance(value, list)]
    fetched = [command[3] for command in commands if command[:3] == ["darkroom", "models", "fetch"]]
    assert fetched and set(fetched) <= known
    (name,) = re.findall(r"^ARG MODELS=(\w+)$", (DEPLOY / "weights" / "Dockerfile").read_text(), re.MULTILINE)
    assert name in known


def test_users_and_ports_are_those_of_the_image() -> None:
    (user,) = re.findall(r"^USER (\d+):\d+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert kubernetes_deployment()["securityContext"]["runAsUser"] == int(user)
    for path in DEPLOY.rglob("Dockerfile"):
        users = re.findall(r"^USER (\S+)$", path.read_text(), re.MULTILINE)
        assert not users or users[-1] == f"{user}:{user}"
    (port,) = cloud_run_service()["containers"][0]["ports"]
    assert port["containerPort"] == 8000
    assert kubernetes_deployment()["containers"][0]["ports"] == [{"name": "http", "containerPort": 8000}]


def test_images_have_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    texts = "".join(path.read_text(encoding="utf-8") for path in DEPLOY.rglob("*") if path.is_file())
    named = set(re.findall(r"registry\.example\.com/darkroom[\w-]*:([\d.]+)", texts))
    tags = {value["newTag"] for path in yaml_files() for value in all_values(yaml_documents(path)) if is_tag(value)}
    assert named | tags == {version}


def is_tag(value: Any) -> bool:
    return isinstance(value, dict) and "newTag" in value


def test_mounted_files_of_compose_are_there_and_services_need_one_another() -> None:
    services = compose_services()
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "compose" / source).exists(), source
        assert set(service.get("depends_on", ())) <= set(services)
    worker = services["worker"]["environment"]
    assert worker["S3_ENDPOINT_URL"].endswith(":8333") and "store.localhost" in worker["ALLOWED_PRIVATE_HOSTS"]


@pytest.mark.parametrize("arguments", [(), ("full",), ("fleet",)])
def test_setup_writes_every_variable_that_compose_asks_for(arguments: tuple[str, ...], tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "compose" / "setup.sh", tmp_path)
    subprocess.run([tmp_path / "setup.sh", *arguments], check=True, capture_output=True)
    written = (tmp_path / ".env").read_text(encoding="utf-8")
    values = dict(line.split("=", 1) for line in written.splitlines())
    files = values["COMPOSE_FILE"].split(":")
    assert [f"{name}.yaml" for name in arguments] == [name for name in files if name in ("full.yaml", "fleet.yaml")]
    asked = {
        name
        for file in files
        for name in re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose" / file).read_text(encoding="utf-8"))
    }
    assert asked and asked <= {name for name, value in values.items() if value}
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    again = subprocess.run([tmp_path / "setup.sh"], capture_output=True, check=False)
    assert again.returncode == 1 and (tmp_path / ".env").read_text(encoding="utf-8") == written


def test_kustomize_builds_every_overlay() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    for overlay in sorted((DEPLOY / "kubernetes" / "overlays").iterdir()):
        done = subprocess.run([kubectl, "kustomize", str(overlay)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        images = set(re.findall(r"image: (\S+)", done.stdout))
        assert images and all(image.startswith(("registry.example.com/", "redis:", "postgres:")) for image in images)


def test_autoscaler_of_the_fleet_reads_the_work_at_the_gateways() -> None:
    documents = yaml_documents(DEPLOY / "kubernetes" / "components" / "fleet" / "scaled_object.yaml")
    (trigger,) = documents[0]["spec"]["triggers"]
    url = urlsplit(trigger["metadata"]["url"])
    services = yaml_documents(DEPLOY / "kubernetes" / "components" / "fleet" / "gateway.yaml")
    (service,) = [document for document in services if document["kind"] == "Service"]
    assert (url.hostname or "").partition(".")[0] == service["metadata"]["name"]
    assert (url.port or 80) == service["spec"]["ports"][0]["port"]
    assert url.path in {getattr(route, "path", "") for route in probes.router.routes}
    assert trigger["metadata"]["valueLocation"] in Work.model_fields
    assert int(trigger["metadata"]["targetValue"]) == PROMPTS_PER_ENGINE


def test_a_fleet_has_the_versions_and_secrets_that_its_parts_name() -> None:
    services, pods = fleet_services(), fleet_deployments()
    for name in ("redis", "postgres"):
        assert services[name]["image"] == pods[name]["containers"][0]["image"]
    assert {"gateway", "redis", "postgres"} == set(pods)
    assert services["gateway"]["command"] == pods["gateway"]["containers"][0]["command"] == ["darkroom", "gateway"]
    (hook,) = [pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] for pod in (pods["gateway"],)]
    assert pods["gateway"]["terminationGracePeriodSeconds"] > int(hook[1]) + GOODBYE_SECONDS


def test_gateways_and_workers_of_a_fleet_share_the_settings_that_requests_are_checked_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = DEPLOY / "kubernetes" / "components" / "fleet"
    lines = (folder / "shared.env").read_text(encoding="utf-8").splitlines()
    shared = dict(line.split("=", 1) for line in lines)
    assert set(shared) == {"JOB_TIMEOUT", "ALLOWED_PRIVATE_HOSTS", "S3_ENDPOINT_URL", "FETCH_MISSING"}
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    load_settings(env_file=None)
    services = fleet_services()
    assert all(services[name]["environment"].keys() >= shared.keys() for name in ("worker", "gateway"))
    source = {"configMapRef": {"name": "darkroom-shared"}}
    assert source in fleet_deployments()["gateway"]["containers"][0]["envFrom"]
    (component,) = yaml_documents(folder / "kustomization.yaml")
    assert component["configMapGenerator"] == [{"name": "darkroom-shared", "envs": ["shared.env"]}]
    patches = [patch["patch"] for patch in component["patches"]]
    assert sum("name: darkroom-shared" in patch for patch in patches) == 1


def test_metrics_that_scale_pods_exist() -> None:
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    real = set(re.findall(r"^\| `(darkroom_\w+)`", page, re.MULTILINE))
    manifests = "".join(path.read_text(encoding="utf-8") for path in (DEPLOY / "kubernetes").rglob("*.yaml"))
    named = set(re.findall(r"darkroom_\w+", manifests))
    assert named and named <= real


def test_programs_of_the_recipes_parse() -> None:
    for path in DEPLOY.rglob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"))
