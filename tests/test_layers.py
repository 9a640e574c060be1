"""Imports point one way: the table of who may import whom, read over every file by its syntax tree.

Imports inside functions and under TYPE_CHECKING count like any other, since a dependency that is hidden is one still.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.markdown import code_blocks

pytestmark = pytest.mark.usefixtures("without_collector")

ROOT = Path(__file__).parents[1]
OUR_PACKAGES = ("darkroom", "worker", "engine", "modifiers", "machine", "names", "benchmark", "demo", "misc", "tests")

WITHOUT_CIRCLES = ("engine", "worker")
CORE = ("engine.errors", "engine.events", "engine.settings", "engine.cancel", "engine.log_context")


@dataclass(frozen=True)
class Rule:
    """`files` is a module prefix; the longest that fits a module is its rule. `ours` are prefixes of our own modules it
    may import besides its own package, `foreign` the packages from elsewhere (None: any)."""

    files: str
    ours: tuple[str, ...]
    foreign: frozenset[str] | None = None


TORCH = frozenset({"torch", "numpy", "PIL", "safetensors"})
NODE_EXTRAS = frozenset(
    {"scipy", "torchsde", "regex", "simpleeval"}
)  # only inside the functions that use them; a test below holds that
NOTHING: frozenset[str] = frozenset()
WARNING = "engine.log_context"  # where whatever leaves something out reports it

# What a family is described with, and what those that use families see of them.
DESCRIBED_WITH = ("engine.architectures", "engine.text", "engine.formats", "engine.adapters", "engine.diffusion")
KNOWN_OF_FAMILIES = (
    "engine.families.base", "engine.families.comfyui_text_types", "engine.families.registry",
    "engine.families.unsupported",
)  # fmt: skip
MODELS_IN_USE = (
    *CORE, "contract.graph.spec", "contract.graph.streamed", "engine.models", "engine.images", "engine.media",
    *KNOWN_OF_FAMILIES, *DESCRIBED_WITH,
)  # fmt: skip
FAMILY_FOLDERS = tuple(sorted({path.parent.name for path in (ROOT / "engine" / "families").glob("*/*.py")} - {"parts"}))
FAMILIES = tuple(name for name in FAMILY_FOLDERS if (ROOT / "engine" / "families" / name / "family.py").is_file())
# Node classes made for one family are in its folder, and in the layer of all nodes.
NODES_OF_FAMILIES = tuple(f"engine.families.{folder}.nodes" for folder in FAMILY_FOLDERS)

# The front, lowest first: every group may import those above it in this list, and its own package.
WORKER_LEAVES = (
    "worker.concurrency.backoff", "worker.settings.child_environment", "worker.concurrency.dedicated_thread", "worker.json.finite", "worker.json.values",
    "worker.app.lean_imports", "worker.json.long", "worker.guard.network_errors", "worker.settings.object_keys", "worker.settings.priority",
    "worker.settings.store_names", "worker.version", "worker.settings.workload",
)  # fmt: skip
WORKER_BASE = (
    "worker.errors",
    "worker.guard.identity",
    "worker.settings",
    "worker.concurrency.off_loop",
    *WORKER_LEAVES,
)
WORKER_EDGE = (*WORKER_BASE, "worker.guard", "worker.observe")
WORKER_FILES = (*WORKER_EDGE, "worker.media", "worker.media.process", "worker.s3")
WORKER_PARTS = (
    *WORKER_FILES,
    "worker.inputs",
    "worker.outputs",
    "worker.engines",
    "worker.models.demo_model",
    "worker.models",
)
WORKER_JOBS = (
    *WORKER_PARTS,
    "worker.prompts.workflows",
    "worker.prompts.modifier_defaults",
    "worker.jobs",
    "worker.guard.listener",
)
WORKER_OWNERS = (*WORKER_JOBS, "worker.qualification", "worker.autoscaler")
SHARED = ("machine", "names")

WORKER_RULES = (
    *(Rule(module, ("names",) if module == "worker.version" else ()) for module in WORKER_LEAVES),
    Rule("worker.errors", ()),
    Rule("worker.guard.identity", ("worker.errors",)),
    Rule("worker.settings", (*WORKER_BASE, "names")),
    Rule("worker.guard", WORKER_BASE),
    Rule("worker.observe", (*WORKER_BASE, *SHARED)),
    Rule("worker.media", (*WORKER_BASE, "names")),
    Rule("worker.media.process", (*WORKER_BASE, "machine")),
    Rule("worker.outputs.media_child", (*WORKER_FILES, "worker.outputs")),
    Rule("worker.s3", WORKER_EDGE),
    Rule("worker.guard.listener", (*WORKER_EDGE, "machine")),
    Rule("worker.models.demo_model", ("worker.json.values",)),
    Rule(
        "worker.prompts.modifier_defaults",
        ("modifiers", "worker.models.demo_model", "worker.engines", "worker.errors", "worker.json.values"),
    ),
    Rule("worker.inputs", WORKER_FILES),
    Rule("worker.outputs", WORKER_FILES),
    Rule("worker.engines", (*WORKER_EDGE, "worker.media", "contract.graph", *SHARED)),
    Rule("worker.prompts.workflows", ("worker.errors", "worker.json.values", "contract.graph", *SHARED)),
    Rule("worker.jobs", (*WORKER_PARTS, "worker.prompts.workflows", "contract.unit", "contract.graph", *SHARED)),
    Rule("worker.qualification", (*WORKER_JOBS, "modifiers", "worker.qualification", *SHARED)),
    Rule("worker.autoscaler", (*WORKER_JOBS, *SHARED)),
    Rule("worker.sources", (*WORKER_JOBS, "names")),
    Rule("worker.doctor", (*WORKER_FILES, "worker.models", "worker.guard.listener", *SHARED)),
    Rule("worker.api.services", (*WORKER_OWNERS, "worker.sources", "worker.doctor", "modifiers")),
    Rule(
        "worker.api", (*WORKER_OWNERS, "worker.sources", "worker.doctor", "worker.api.services", "modifiers", *SHARED)
    ),
    Rule(
        "worker.gateway",
        (*WORKER_OWNERS, "worker.sources", "worker.api.services", "worker.api", "modifiers", *SHARED),
    ),
    Rule("worker.integrations.ray", (*WORKER_EDGE, "worker.engines", "worker.jobs")),
    Rule("worker.app.application", (*WORKER_EDGE, "worker.api.services", "worker.api", "worker.jobs")),
    Rule("worker.app.external_io", (*WORKER_FILES, "worker.inputs", "worker.outputs", "worker.engines", "worker.jobs")),
    Rule(
        "worker.app.assembly",
        (
            *WORKER_OWNERS,
            "worker.sources",
            "worker.doctor",
            "worker.api.services",
            "worker.app.external_io",
            "worker.api.broker_messages",
            "modifiers",
            *SHARED,
        ),
    ),
    Rule("worker.app.serve", (*WORKER_OWNERS, "worker.app.assembly", "worker.app.application", "worker.api")),
    # The command line: none of its commands but `serve` loads the server.
    Rule("worker.cli.worker_client", WORKER_EDGE),
    Rule("worker.cli.chosen_worker", WORKER_EDGE),
    Rule("worker.cli.generate_subject", ("names",)),
    Rule(
        "worker.cli.generate",
        (
            "darkroom.client",
            "worker.cli.chosen_worker",
            "worker.cli.generate_subject",
            "worker.prompts.workflows",
            "names",
        ),
    ),
    Rule("worker.integrations.mcp.server", ("darkroom.client", "worker.version")),
    Rule("worker.cli.jobs", ("darkroom.client", "worker.cli.chosen_worker", "names")),
    Rule("worker.cli.worker_alone", (*WORKER_EDGE, "worker.engines")),
    Rule(
        "worker.cli.plan",
        (
            *WORKER_EDGE,
            "worker.cli.chosen_worker",
            "worker.cli.worker_alone",
            "worker.cli.worker_client",
            "worker.prompts.workflows",
            "names",
        ),
    ),
    Rule("worker.models", (*WORKER_FILES, *SHARED)),
    Rule("worker.cli.models", (*WORKER_EDGE, "worker.models")),
    Rule("worker.snapshot", (*WORKER_EDGE, "worker.models")),
    Rule("worker.cli.build", (*WORKER_EDGE, "worker.models", "worker.snapshot")),
    Rule("worker.app.thaw_gate", ("worker.errors",)),
    Rule("worker.concurrency.off_loop", ("worker.errors",)),
    Rule("worker.cli.doctor", (*WORKER_EDGE, "worker.doctor")),
    Rule("worker.cli.benchmark", (*WORKER_EDGE, "worker.cli.worker_alone", "worker.cli.worker_client")),
    Rule("worker.cli.tuning", (*WORKER_EDGE, "worker.qualification.tuning_store")),
    Rule(
        "worker.cli.main",
        (
            *SHARED,
            *WORKER_EDGE,
            "worker.cli.tuning",
            "worker.app.thaw_gate",
            "worker.cli.chosen_worker",
            "darkroom.client",
            "worker.cli.generate",
            "worker.cli.jobs",
            "worker.integrations.mcp.server",
            "worker.cli.models",
            "worker.cli.plan",
            "worker.cli.benchmark",
            "worker.cli.build",
            "worker.cli.doctor",
            "worker.prompts.workflows",
            "worker.gateway",
            "worker.app.serve",
        ),
    ),
    Rule("worker.__main__", ("worker.cli.main", "worker.app.lean_imports", "worker.app.serve")),
)

RULES = (
    *WORKER_RULES,
    Rule("worker", ()),
    Rule("darkroom", ("worker",), NOTHING),
    Rule("darkroom.client", (), frozenset({"httpx", "httpx_sse"})),
    Rule("machine", (), NOTHING),
    Rule("names", (), NOTHING),
    Rule("modifiers", ("names",), frozenset({"pydantic", "pydantic_core"})),
    Rule("worker.qualification", (), frozenset({"pydantic"})),
    Rule("benchmark", ("engine", "worker", "modifiers", "benchmark", "names")),
    Rule("demo", ("engine", "worker", "modifiers", "benchmark")),
    Rule("misc", ("engine", "worker")),
    *(Rule(module, CORE, NOTHING) for module in CORE),
    Rule("contract.graph", (*CORE, "names"), NOTHING),
    Rule("engine.diffusion", (), TORCH | NODE_EXTRAS),
    Rule("engine.architectures", (WARNING,), TORCH),
    Rule("engine.text", (WARNING,), TORCH | {"tokenizers", "sentencepiece"}),  # only inside what reads a vocabulary
    Rule("engine.formats", ("engine.errors", "engine.cancel", "engine.memory.device", "names"), TORCH),
    Rule("engine.formats.arriving_file", ("engine.errors", "engine.cancel", "names"), NOTHING),
    Rule("engine.adapters", ("engine.errors", "engine.memory.device", WARNING), TORCH),
    Rule("engine.images", (WARNING, "names"), TORCH),
    Rule("engine.media", (), TORCH | {"av"}),  # only inside its functions
    Rule(
        "engine.models.files.extra_model_paths",
        ("engine.models.files.folders",),
        frozenset({"yaml"}),  # only inside its function
    ),
    Rule("engine.memory", ("engine.errors", "engine.settings", "machine"), NOTHING),
    Rule("engine.memory.device", ("engine.errors", "engine.settings"), TORCH),
    Rule("engine.memory.offload", ("engine.errors", "engine.settings", "engine.memory"), TORCH),
    Rule("engine.memory.weight_patches", ("engine.errors", "engine.settings", WARNING), TORCH),
    Rule("engine.memory.random_state", (), TORCH),
    Rule("engine.families", (*CORE, "contract.graph.spec", *DESCRIBED_WITH), TORCH),
    *(
        Rule(
            f"engine.families.{family}",
            (*CORE, "contract.graph.spec", "engine.families.base", "engine.families.parts", *DESCRIBED_WITH),
            TORCH,
        )
        for family in FAMILY_FOLDERS
    ),
    *(
        Rule(
            module,
            (*MODELS_IN_USE, "engine.families.parts", "engine.models", "engine.models", "engine.nodes"),
            TORCH | NODE_EXTRAS,
        )
        for module in NODES_OF_FAMILIES
    ),
    Rule("engine.models.files.folders", ("engine.formats.arriving_file",), NOTHING),
    Rule(
        "engine.models",
        (
            *KNOWN_OF_FAMILIES,
            *DESCRIBED_WITH,
            "engine.models.files.folders",
            "engine.errors",
            "engine.memory.device",
            WARNING,
        ),
        TORCH,
    ),
    Rule("engine.models", (*MODELS_IN_USE, "engine.memory.weight_patches"), TORCH),
    Rule("engine.models", (*MODELS_IN_USE, "engine.models"), TORCH),
    Rule("engine.nodes", (*MODELS_IN_USE, "engine.models", "engine.models", "names"), TORCH | NODE_EXTRAS),
    Rule("engine.comfy.packs", ("contract.graph.spec", "engine.nodes", "names", *CORE), NOTHING),
    Rule(
        "engine.comfy.packs.node_trial",
        ("contract.graph.spec", "engine.nodes", "engine.runtime.request", *CORE),
        NOTHING,
    ),
    Rule(
        "engine.comfy",
        (
            *MODELS_IN_USE,
            "engine.models",
            "engine.models",
            "engine.nodes",
            "contract.graph",
            "engine.runtime",
            "engine.memory.device",
            "engine.memory.model_memory",
            "engine.memory.plan",
            "engine.memory.residency",
        ),
        TORCH | {"aiohttp"},
    ),
    Rule("engine.tuning", (*CORE, "engine.architectures", "engine.diffusion", "names"), TORCH),
    Rule(
        "engine.tuning.products",
        ("engine.architectures", "engine.formats", "engine.tuning.kernels", "engine.tuning.triton_compiler"),
        TORCH,
    ),
    Rule(
        "engine.tuning.batching",
        (
            *CORE,
            "engine.layers.attention",
            "engine.diffusion",
            "engine.runtime.turns",
            "engine.tuning.quality",
            "engine.tuning.strategy",
        ),
        TORCH,
    ),
    Rule("engine.runtime.resume", ("engine.diffusion", "engine.memory.random_state", "names"), TORCH),
    Rule("engine.tuning.kernels", (), TORCH | {"triton"}),  # which is there on GPU machines alone
    Rule("engine.runtime", ("contract.graph", "engine.nodes.base", *CORE), NOTHING),
    Rule(
        "engine.models.planning",
        (*MODELS_IN_USE, "contract.graph", "engine.models.files.folders", "engine.memory.timeline"),
        TORCH,
    ),
    Rule("engine.models.planning.prompt_stages", ("contract.graph", "engine.memory.timeline"), NOTHING),
    Rule("engine.engine", ("engine", *SHARED), TORCH),
    Rule(
        "engine.server",
        ("engine.engine", "contract.graph", "names", *CORE),
        frozenset({"aiohttp", "multidict", "yarl", "PIL", "prometheus_client"}),
    ),
    Rule("engine.__main__", ("engine",)),
    Rule("engine", ("engine",), TORCH),
)


@dataclass(frozen=True)
class Import:
    importer: str
    line: int
    imported: str

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_below(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


@pytest.fixture(scope="module", autouse=True)
def _forgotten_afterwards() -> Iterator[None]:
    """The trees take hundreds of megabytes, which later tests of the process need not carry along."""
    yield
    nodes_of.cache_clear()


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree: every test here reads the same two thousand files."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@functools.cache
def imports_of(path: Path) -> tuple[Import, ...]:
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[Import]:
    importer = module_name(path)
    for statement in nodes_of(path):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield Import(importer, statement.lineno, alias.name)
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{importer}:{statement.lineno}: relative imports hide the layer"
            assert statement.module is not None
            for alias in statement.names:
                yield Import(importer, statement.lineno, imported_module(statement.module, alias.name))
        elif (
            isinstance(statement, ast.Call)
            and called_name(statement).endswith("import_module")
            and statement.args
            and isinstance(statement.args[0], ast.Constant)
        ):
            yield Import(importer, statement.lineno, str(statement.args[0].value))


def imported_module(package: str, name: str) -> str:
    """`from a.b import c` names the module a.b.c when there is one, else a.b."""
    place = ROOT.joinpath(*package.split("."), name)
    return f"{package}.{name}" if place.is_dir() or place.with_suffix(".py").is_file() else package


def rule_for(module: str) -> Rule:
    return max((rule for rule in RULES if is_below(module, rule.files)), key=lambda rule: len(rule.files))


def is_allowed(item: Import) -> bool:
    rule = rule_for(item.importer)
    top = item.imported.partition(".")[0]
    if top in OUR_PACKAGES:
        own = rule.files if (ROOT / Path(*rule.files.split("."))).is_dir() else package_of(item.importer)
        return is_below(item.imported, own) or any(is_below(item.imported, prefix) for prefix in rule.ours)
    return rule.foreign is None or top in rule.foreign or top in sys.stdlib_module_names


def package_of(module: str) -> str:
    """A file with a rule of its own may import its package's neighbours, unless that is engine or worker itself."""
    package = module.rpartition(".")[0]
    return module if package in ("engine", "worker", "benchmark") else package


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def all_imports(*packages: str) -> list[Import]:
    return [item for path in sources(*packages) for item in imports_of(path)]


def test_only_what_media_processes_run_imports_libraries_of_codecs() -> None:
    """`tests/worker/media_process` holds that the front itself never loads them."""
    found = {
        item.importer
        for path in (ROOT / "worker").rglob("*.py")
        for item in imports_of(path)
        if item.imported.partition(".")[0] in ("PIL", "av", "mutagen")
    }
    assert found == {
        *("worker.media.kinds", "worker.media.lenient_pillow", "worker.media.picture_bounds"),
        *("worker.outputs.audio_tags", "worker.outputs.convert", "worker.outputs.embedded"),
    }


def test_every_package_imports_only_what_the_table_allows() -> None:
    packages = ("darkroom", "worker", "engine", "modifiers", "machine", "names", "benchmark", "demo", "misc")
    wrong = [str(item) for item in all_imports(*packages) if not is_allowed(item)]
    assert not wrong, "\n".join(wrong)


@functools.cache
def place_in_house(module: str) -> str:
    """Return the name by which a module is placed among the layers: node classes of a family are among all nodes."""
    for folder, nodes in zip(FAMILY_FOLDERS, NODES_OF_FAMILIES, strict=True):
        if is_below(module, nodes):
            return f"engine.nodes.families.{folder}{module.removeprefix(nodes)}"
    return module


def circles(package: str, imports: Iterable[Import]) -> list[str]:
    """Return the circles of imports among the direct children of a package, each child with all that lies below it."""
    edges: dict[str, dict[str, Import]] = {}
    prefix = f"{package}."
    for item in imports:
        ends = place_in_house(item.importer), place_in_house(item.imported)
        if ends[0].startswith(prefix) and ends[1].startswith(prefix):
            importer, imported = (name.removeprefix(prefix).partition(".")[0] for name in ends)
            if importer != imported:
                edges.setdefault(importer, {}).setdefault(imported, item)
    reachable = {child: _reachable(child, edges) for child in edges}
    return [
        str(item)
        for importer, found in edges.items()
        for imported, item in found.items()
        if importer in reachable.get(imported, ())
    ]


def _reachable(child: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [child]
    while waiting:
        new = set(edges.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("top", WITHOUT_CIRCLES)
def test_no_two_packages_import_one_another_not_even_by_way_of_others(top: str) -> None:
    """At every level: the files and folders of each package, each folder taken as one."""
    imports = all_imports(top)
    packages = [module_name(path) for path in sources(top) if path.name == "__init__.py"]
    wrong = [line for package in packages for line in circles(package, imports)]
    assert not wrong, "\n".join(wrong)


def test_a_circle_of_imports_is_found() -> None:
    pairs = (("a.b.x", "a.c"), ("a.c", "a.d.y"), ("a.d.z", "a.b"), ("a.c", "a.e"))
    assert len(circles("a", [Import(importer, 1, imported) for importer, imported in pairs])) == 3


PICTURED = frozenset({
    "graph", "diffusion", "architectures", "text", "formats", "adapters", "families", "checkpoints", "values", "images",
    "media", "store", "nodes", "memory", "runtime", "custom_nodes", "engine", "server", "tuning",
})  # fmt: skip


def test_the_picture_of_the_house_shows_its_imports() -> None:
    """Each arrow of `docs/architecture.md` is an import, and each import an arrow or a way along several."""
    (picture,) = code_blocks((ROOT / "docs" / "architecture.md").read_text("utf-8"), "mermaid")
    arrows = {
        (importer.rstrip("_"), imported.rstrip("_"))
        for importer, imported in re.findall(r"^ *(\w+)(?:\[[^]]*\])? --> (\w+)", picture, flags=re.MULTILINE)
    }
    imports: dict[str, set[str]] = {}
    for item in all_imports("engine"):
        importer, imported = (f"{place_in_house(name)}.".split(".")[1] for name in (item.importer, item.imported))
        if importer != imported and {importer, imported} <= PICTURED:
            imports.setdefault(importer, set()).add(imported)
    expected = {
        (importer, imported)
        for importer, found in imports.items()
        for imported in found
        if not any(imported in _reachable(other, imports) for other in found - {imported})
    }
    assert arrows - {("front", "graph")} == expected


def test_the_front_reaches_neither_torch_nor_more_of_the_engine_than_its_graph_checker() -> None:
    banned = ("torch", "engine", "numpy", "safetensors", "av")
    wrong = [
        str(item)
        for item in all_imports("worker", "modifiers")
        if any(is_below(item.imported, name) for name in banned) and not is_below(item.imported, "contract.graph")
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_the_benchmarks_but_the_front_its_plan() -> None:
    wrong = [
        str(item)
        for item in all_imports("worker", "engine", "modifiers")
        if is_below(item.imported, "benchmark") and not is_below(item.imported, "worker.qualification")
    ]
    assert not wrong, "\n".join(wrong)


def test_every_file_of_the_front_has_a_layer() -> None:
    """`Rule("worker")` is for none: a new file or package takes its place in the table."""
    without = {module_name(path) for path in sources("worker") if rule_for(module_name(path)).files == "worker"}
    assert without == {"worker"}


def test_no_two_files_of_the_front_import_each_other_in_a_circle() -> None:
    imported: dict[str, set[str]] = {}
    for item in all_imports("worker"):
        imported.setdefault(item.importer, set()).add(item.imported)
    free: set[str] = set()
    while True:
        found = {module for module, names in imported.items() if not (names & imported.keys()) - free} - free
        if not found:
            break
        free |= found
    assert not imported.keys() - free, sorted(imported.keys() - free)


def test_aiohttp_is_the_servers_alone() -> None:
    wrong = [
        str(item)
        for item in all_imports("engine")
        if is_below(item.imported, "aiohttp")
        and not any(is_below(item.importer, place) for place in ("engine.server", "engine.comfy"))
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_settings_of_the_front_read_the_environment() -> None:
    readers: set[str] = set()
    writers: set[str] = set()
    for path in sources("worker", "engine", "modifiers", "machine", "names"):
        nodes = nodes_of(path)
        written = {item.value for item in nodes if isinstance(item, ast.Subscript) and isinstance(item.ctx, ast.Store)}
        written |= {  # `setdefault` whose answer nobody takes
            item.value.func.value
            for item in nodes
            if isinstance(item, ast.Expr) and isinstance(item.value, ast.Call)
            if isinstance(item.value.func, ast.Attribute) and item.value.func.attr == "setdefault"
        }
        for expression in nodes:
            if (
                isinstance(expression, ast.Attribute)
                and expression.attr in ("environ", "getenv")
                and ast.unparse(expression.value) == "os"
            ):
                (writers if expression in written else readers).add(module_name(path))
    assert readers <= {"worker.settings.environment"}
    assert writers <= {"engine.__main__"}  # for CUDA's, ROCm's and OpenMP's libraries, which look nowhere else


def test_no_function_assigns_globals() -> None:
    wrong = [
        f"{module_name(path)}:{statement.lineno}"
        for path in sources("worker", "engine", "modifiers", "machine", "names", "benchmark", "demo", "misc")
        for statement in nodes_of(path)
        if isinstance(statement, ast.Global)
    ]
    assert not wrong


def attributes_assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.Attribute, ast.expr | None]]:
    """Every attribute that a statement assigns, with the value where it is one for one target."""
    for item in nodes:
        if not isinstance(item, ast.Assign | ast.AugAssign | ast.AnnAssign):
            continue
        for target in item.targets if isinstance(item, ast.Assign) else [item.target]:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Attribute):
                    yield part, item.value if part is target else None


def own_attributes(path: Path) -> tuple[set[str], set[str]]:
    """The names that a file's classes declare as fields of a record, and those that their methods set on themselves."""
    fields, private = set(), set()
    nodes = nodes_of(path)
    for definition in nodes:
        if isinstance(definition, ast.ClassDef):
            declared = (item.target for item in definition.body if isinstance(item, ast.AnnAssign))
            fields |= {target.id for target in declared if isinstance(target, ast.Name)}
    private |= {part.attr for part, _ in attributes_assigned(nodes) if ast.unparse(part.value) == "self"}
    return fields, private


def test_an_object_of_the_front_changes_only_by_its_own_methods() -> None:
    """No attribute that another file's class declares is set from outside, but for fields of a record that was handed
    over; and nobody hangs a callback on an object that exists already."""
    paths = sources("worker")
    owned = {path: own_attributes(path) for path in paths}
    fields = set().union(*(found for found, _ in owned.values()))
    declared = fields.union(*(found for _, found in owned.values()))
    wrong = []
    for path in paths:
        nodes = nodes_of(path)
        methods = {item.name for item in nodes if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
        here = owned[path][0] | owned[path][1]
        for target, value in attributes_assigned(nodes):
            if ast.unparse(target.value) in ("self", "cls", "app.state"):  # the last is Starlette's, made to be filled
                continue
            is_callback = isinstance(value, ast.Lambda) or (isinstance(value, ast.Attribute) and value.attr in methods)
            is_handed_record = isinstance(target.value, ast.Name) and target.attr in fields
            is_foreign = target.attr in declared - here and not is_handed_record
            if target.attr in declared and (is_callback or is_foreign):
                wrong.append(f"{module_name(path)}:{target.lineno} {ast.unparse(target)}")
    assert not wrong, "\n".join(wrong)


def test_a_family_is_imported_by_nobody() -> None:
    """The registry finds the folders."""
    wrong = [
        str(item)
        for item in all_imports("engine")
        for family in FAMILIES
        if is_below(item.imported, f"engine.families.{family}")
        and not is_below(item.importer, f"engine.families.{family}")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_node_classes_of_a_family_are_imported_by_nobody() -> None:
    """Neither the family's description, which is below them, nor another family: the table of nodes finds them."""
    wrong = [
        str(item)
        for item in all_imports("engine")
        for nodes in NODES_OF_FAMILIES
        if is_below(item.imported, nodes) and not is_below(item.importer, nodes)
    ]
    assert not wrong, "\n".join(wrong)


FRONT = ("worker", "modifiers", "benchmark/qualify")


def test_nothing_but_its_folder_names_a_family() -> None:
    """Names of folders as words in code and texts.

    Data may name them: ComfyUI's types of text encoders, workflows and the table of known models, whose names
    stand in commands. The front has its knowledge from the engine, and from data.
    """
    name = re.compile(rf"(?<!linalg\.)(?<!models fetch )\b(?:{'|'.join(FAMILIES)})\b")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources("engine", *FRONT)
        if not any(is_below(module_name(path), f"engine.families.{family}") for family in FAMILIES)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if name.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_front_names_no_known_model() -> None:
    """Neither a file nor a tensor of one, in code or texts; the table of known models is data."""
    table = tomllib.loads((ROOT / "worker" / "models" / "known.toml").read_text("utf-8"))
    addresses = [source for entry in table.values() for source in entry.get("sources", ())]
    names = [*(address.rpartition("/")[2] for address in addresses), "diffusion_model.", "cond_stage_model."]
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(*FRONT)
        for name in names
        if name in path.read_text("utf-8")
    ]
    assert table and not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        (
            "worker.app.application",
            ("torch", "engine.engine", "engine.nodes", "engine.memory", "numpy", "PIL", "av", "mutagen"),
        ),
        ("worker.cli.main", ("torch", "engine", "numpy")),
        ("darkroom.client", ("torch", "engine", "worker", "fastapi", "pydantic", "numpy", "PIL", "sqlalchemy")),
        ("host.memory", ("torch", "numpy", "engine", "worker", "pydantic")),
        ("contract.nearest", ("torch", "numpy", "engine", "worker", "pydantic")),
        ("modifiers.registry", ("torch", "engine", "worker")),
        ("worker.qualification", ("torch", "engine", "worker")),
        ("engine.settings", ("torch", "aiohttp")),
        ("engine", ("torch", "numpy", "PIL", "engine.engine")),
        ("contract.graph.validate", ("torch", "numpy", "PIL", "safetensors", "aiohttp")),
        ("contract.graph.object_info", ("torch", "numpy", "PIL", "safetensors", "aiohttp")),
        ("engine.server.app", ("torch", "worker")),
        ("engine.__main__", ("torch", "worker")),
        ("engine.engine", ("aiohttp", "worker", "scipy", "torchsde", "tokenizers", "sentencepiece", "yaml", "av")),
        ("engine.comfy.packs.commands", ("torch", "aiohttp")),
    ],
)
def test_importing_a_module_brings_in_no_more_than_it_needs(module: str, unwanted: tuple[str, ...]) -> None:
    script = f"import sys, {module}; print(*sorted(set(sys.modules) & set({unwanted!r})))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
