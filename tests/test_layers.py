"""Imports point one way: the table of who may import whom, read over every file by its syntax tree.

The rooms of `darkroom` have their short names here: `engine.nodes` for `darkroom.engine.nodes`.

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
from tests.statements import statements_of

pytestmark = pytest.mark.usefixtures("without_collector")

ROOT = Path(__file__).parents[1]
OUR_PACKAGES = ("darkroom", "worker", "engine", "modifiers", "host", "contract", "benchmark", "demo", "tools", "tests")

ROOMS = ("engine", "worker", "contract", "host", "modifiers")
ALL_MAY_IMPORT = ("darkroom.start",)

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

# What a family is made of: tensors and callables, which import neither families nor nodes; and the libraries that each
# may import besides torch's, some only inside the functions that use them.
BELOW_FAMILIES: dict[str, frozenset[str]] = {
    "engine.layers": NOTHING,
    "engine.text": frozenset({"tokenizers", "sentencepiece"}),
    "engine.images": frozenset({"scipy"}),
    "engine.media": frozenset({"av", "scipy", "xatlas"}),
    "engine.formats": NOTHING,
    "engine.adapters": NOTHING,
    "engine.diffusion": NODE_EXTRAS,
}
KNOWN_OF_FAMILIES = (
    "engine.families.base", "engine.families.comfyui_text_types", "engine.families.registry",
    "engine.families.unsupported", "engine.families.vision_family",
)  # fmt: skip
MODELS_IN_USE = (*CORE, "contract", *KNOWN_OF_FAMILIES, *BELOW_FAMILIES)
DESCRIPTIONS = ("family.py", "vision.py")
FAMILIES = tuple(
    sorted(path.parent.name for name in DESCRIPTIONS for path in (ROOT / "engine" / "families").glob(f"*/{name}"))
)
# Node classes made for one family lie in its folder and belong to the layer of all nodes: they import what nodes may,
# and nothing imports them.
NODES_OF_FAMILIES = tuple(
    sorted({f"engine.families.{path.parent.name}.nodes" for path in (ROOT / "engine" / "families").glob("*/nodes*")})
)

SHARED = ("contract", "host")

# The front, lowest first: a room may import those of the bands before and of its own band, in which no circle arises.
WORKER_BANDS = (
    ("worker.errors", "worker.version", "worker.json", "worker.concurrency", "worker.settings"),
    ("worker.guard",),
    ("worker.observe",),
    (
        *("worker.media", "worker.s3", "worker.storage", "worker.inputs", "worker.outputs", "worker.models"),
        "worker.engines",
    ),
    ("worker.prompts", "worker.jobs"),
    (
        *("worker.qualification", "worker.autoscaler", "worker.sources", "worker.doctor", "worker.snapshot"),
        *("worker.gateway", "worker.api"),
    ),
    ("worker.integrations",),
    ("worker.app", "worker.cli", "worker.__main__"),
)
WORKER_SHARED = (*SHARED, "modifiers", "darkroom.client")

WORKER_RULES = tuple(
    Rule(room, tuple(other for lower in WORKER_BANDS[: number + 1] for other in lower) + WORKER_SHARED)
    for number, rooms in enumerate(WORKER_BANDS)
    for room in rooms
)

# The engine put together: the façade's parts, which may import everything below.
PUT_TOGETHER = (
    "assembly", "environment", "housekeeping", "machine_tuning", "measurements", "pack_trial", "previews",
    "prompt_checks", "runs", "sampling_runs", "snapshot",
)  # fmt: skip

RULES = (
    *WORKER_RULES,
    Rule("worker", ()),
    Rule("darkroom", ("worker",), NOTHING),
    Rule("darkroom.client", (), frozenset({"httpx", "httpx_sse"})),
    Rule("host", (), NOTHING),
    Rule("contract", (), NOTHING),
    Rule("modifiers", ("contract",), frozenset({"pydantic", "pydantic_core"})),
    Rule("benchmark", ("engine", "worker", "modifiers", "benchmark", "contract")),
    Rule("demo", ("engine", "worker", "modifiers", "benchmark")),
    Rule("tools", ("engine", "worker", "contract")),
    *(Rule(module, (*CORE, "contract"), NOTHING) for module in CORE),
    *(
        Rule(room, (*CORE, "contract", "engine.memory.device"), TORCH | libraries)
        for room, libraries in BELOW_FAMILIES.items()
    ),
    Rule("engine.images.ffmpeg_frames", ("engine.images", "engine.media"), TORCH),
    Rule("engine.formats.arriving_file", ("engine.errors", "engine.cancel", "contract"), NOTHING),
    Rule("engine.memory", ("engine.errors", "engine.settings", "host"), NOTHING),
    Rule("engine.memory.device", ("engine.errors", "engine.settings"), TORCH),
    Rule("engine.memory.offload", ("engine.errors", "engine.settings", "engine.memory"), TORCH),
    Rule("engine.memory.weight_patches", ("engine.errors", "engine.settings", WARNING), TORCH),
    Rule("engine.memory.random_state", (), TORCH),
    Rule("engine.families", (*CORE, "contract", *BELOW_FAMILIES), TORCH),  # and its lineage, as tested below
    *(
        Rule(module, (*MODELS_IN_USE, "engine.families", "engine.models", "engine.nodes"), TORCH | NODE_EXTRAS)
        for module in NODES_OF_FAMILIES
    ),
    Rule(
        "engine.models",
        (*MODELS_IN_USE, "engine.memory.device", "engine.memory.timeline", "engine.memory.weight_patches"),
        TORCH | {"yaml", "scipy"},  # only inside the functions that use them
    ),
    Rule("engine.models.files.folders", ("engine.formats.arriving_file",), NOTHING),
    Rule("engine.models.planning.prompt_stages", ("contract", "engine.memory.timeline"), NOTHING),
    Rule("engine.nodes", (*MODELS_IN_USE, "engine.models"), TORCH | NODE_EXTRAS),
    Rule("engine.comfy.packs", ("engine.comfy", "engine.nodes", "engine.runtime.request", *SHARED, *CORE), NOTHING),
    Rule(
        "engine.comfy",
        (
            *MODELS_IN_USE,
            "engine.models",
            "engine.nodes",
            "engine.runtime",
            "engine.memory.device",
            "engine.memory.model_memory",
            "engine.memory.plan",
            "engine.memory.residency",
            "engine.memory.weight_patches",
        ),
        TORCH | {"aiohttp"},
    ),
    Rule("engine.tuning", (*CORE, "engine.layers", "engine.diffusion", "contract"), TORCH),
    Rule(
        "engine.tuning.products",
        ("engine.layers", "engine.formats", "engine.tuning.kernels", "engine.tuning.triton_compiler"),
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
    Rule("engine.tuning.kernels", (), TORCH | {"triton"}),  # which is there on GPU machines alone
    Rule("engine.runtime", ("contract", "engine.nodes.base", *CORE), NOTHING),
    Rule("engine.runtime.resume", ("engine.diffusion", "engine.memory.random_state", "contract"), TORCH),
    Rule("engine.probes", ("engine.memory.device",), TORCH),
    Rule("engine.engine", ("engine", *SHARED), TORCH),
    Rule(
        "engine.server",
        ("engine.engine", *SHARED, *CORE),
        frozenset({"aiohttp", "multidict", "yarl", "PIL", "prometheus_client"}),
    ),
    Rule("engine.__main__", ("engine",)),
    *(Rule(f"engine.{name}", ("engine", *SHARED), TORCH) for name in PUT_TOGETHER),
    Rule("engine", ("engine.engine", *CORE, *SHARED, "engine.runtime.request"), TORCH),
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


def short_name(module: str) -> str:
    """The name within the table: that of the folder at the root of the checkout."""
    inner = module.removeprefix("darkroom.")
    return inner if inner.partition(".")[0] in ROOMS else module


def is_below(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


@pytest.fixture(scope="module", autouse=True)
def _forgotten_afterwards() -> Iterator[None]:
    """The trees take hundreds of megabytes, which later tests of the process need not carry along."""
    yield
    tree_of.cache_clear()
    nodes_of.cache_clear()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return a file's syntax tree: every test here reads the same two thousand files."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(tree_of(path)))


def called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@functools.cache
def imports_of(path: Path) -> tuple[Import, ...]:
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[Import]:
    importer = module_name(path)
    calls_by_name = "import_module" in path.read_text(encoding="utf-8")
    for statement in nodes_of(path) if calls_by_name else statements_of(tree_of(path)):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield Import(importer, statement.lineno, short_name(alias.name))
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{importer}:{statement.lineno}: relative imports hide the layer"
            assert statement.module is not None
            for alias in statement.names:
                yield Import(importer, statement.lineno, short_name(imported_module(statement.module, alias.name)))
        elif (
            isinstance(statement, ast.Call)
            and called_name(statement).endswith("import_module")
            and statement.args
            and isinstance(statement.args[0], ast.Constant)
        ):
            yield Import(importer, statement.lineno, short_name(str(statement.args[0].value)))


def imported_module(package: str, name: str) -> str:
    """`from a.b import c` names the module a.b.c when there is one, else a.b."""
    place = ROOT.joinpath(*package.split("."), name)
    return f"{package}.{name}" if place.is_dir() or place.with_suffix(".py").is_file() else package


def rule_for(module: str) -> Rule:
    return max((rule for rule in RULES if is_below(module, rule.files)), key=lambda rule: len(rule.files))


def is_allowed(item: Import) -> bool:
    rule = rule_for(item.importer)
    top = item.imported.partition(".")[0]
    if item.imported in ALL_MAY_IMPORT:
        return True
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
    """`tests/worker/media/process` holds that the front itself never loads them."""
    found = {
        item.importer
        for path in (ROOT / "worker").rglob("*.py")
        for item in imports_of(path)
        if item.imported.partition(".")[0] in ("PIL", "av", "mutagen")
    }
    assert found == {
        *("worker.media.kinds", "worker.media.lenient_pillow", "worker.media.image_bounds"),
        *("worker.outputs.audio_tags", "worker.outputs.convert", "worker.outputs.embedded"),
        "worker.cli.terminal_images",  # of a command that is a client
    }


def test_every_package_imports_only_what_the_table_allows() -> None:
    packages = ("darkroom", "worker", "engine", "modifiers", "host", "contract", "benchmark", "demo", "tools")
    wrong = [str(item) for item in all_imports(*packages) if not is_allowed(item)]
    assert not wrong, "\n".join(wrong)


def is_node_of_family(module: str) -> bool:
    """Return True for the node classes of a family, and what lies in the package that they are in."""
    return any(is_below(module, nodes) for nodes in NODES_OF_FAMILIES)


def test_our_packages_are_imported_below_one_name() -> None:
    """A module `engine` or `host` in a process of ours may be that of a node pack."""
    wrong = [
        f"{path.relative_to(ROOT)}:{statement.lineno}"
        for path in sources("darkroom", *ROOMS, "benchmark", "demo", "tools", "tests")
        for statement in statements_of(tree_of(path))
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for name in ([statement.module or ""] if isinstance(statement, ast.ImportFrom) else names_of(statement))
        if name.partition(".")[0] in ROOMS
    ]
    assert not wrong, "\n".join(wrong)


def names_of(statement: ast.Import) -> list[str]:
    return [alias.name for alias in statement.names]


def circles(package: str, imports: Iterable[Import]) -> list[str]:
    """Return the circles of imports among the direct children of a package, each child with all that lies below it."""
    edges: dict[str, dict[str, Import]] = {}
    prefix = f"{package}."
    for item in imports:
        ends = item.importer, item.imported
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
    """At every level: the files and folders of each package, each folder taken as one.

    Node classes of families are left out, each of which lies in a folder of a lower layer: nothing imports them.
    """
    imports = [item for item in all_imports(top) if not is_node_of_family(item.importer)]
    packages = [module_name(path) for path in sources(top) if path.name == "__init__.py"]
    wrong = [line for package in packages for line in circles(package, imports)]
    assert not wrong, "\n".join(wrong)


def test_a_circle_of_imports_is_found() -> None:
    pairs = (("a.b.x", "a.c"), ("a.c", "a.d.y"), ("a.d.z", "a.b"), ("a.c", "a.e"))
    assert len(circles("a", [Import(importer, 1, imported) for importer, imported in pairs])) == 3


PICTURED = frozenset({
    "diffusion", "layers", "text", "formats", "adapters", "families", "models", "images", "media", "nodes",
    "family_nodes", "memory", "runtime", "comfy", "engine", "assembly", "server", "tuning",
})  # fmt: skip


def pictured_room(module: str) -> str:
    """Return the room of the image that a module is in."""
    return "family_nodes" if is_node_of_family(module) else f"{module}.".split(".")[1]


PICTURED_OF_WORKER = frozenset(room.removeprefix("worker.") for band in WORKER_BANDS for room in band) - {
    *("__main__", "version", "errors", "json", "concurrency"),
}  # fmt: skip


def arrows_of(image: str) -> set[tuple[str, str]]:
    found = re.findall(r"^ *(\w+)(?:\[[^]]*\])? --> (\w+)", image, flags=re.MULTILINE)
    return {(importer.rstrip("_"), imported.rstrip("_")) for importer, imported in found}


def drawn_imports(top: str, rooms: frozenset[str]) -> set[tuple[str, str]]:
    """Return the imports between rooms of a package, but for those that several others together amount to."""
    imports: dict[str, set[str]] = {}
    for item in all_imports(top):
        importer, imported = (pictured_room(name) for name in (item.importer, item.imported))
        if importer != imported and is_below(item.imported, top) and {importer, imported} <= rooms:
            imports.setdefault(importer, set()).add(imported)
    return {
        (importer, imported)
        for importer, found in imports.items()
        for imported in found
        if not any(imported in _reachable(other, imports) for other in found - {imported})
    }


def test_the_images_of_the_house_show_its_imports() -> None:
    """Each arrow of `docs/architecture.md` is an import, and each import an arrow or a way along several."""
    of_engine, of_worker = code_blocks((ROOT / "docs" / "architecture.md").read_text("utf-8"), "mermaid")
    assert arrows_of(of_engine) == drawn_imports("engine", PICTURED)
    assert arrows_of(of_worker) == drawn_imports("worker", PICTURED_OF_WORKER)


def test_the_front_reaches_neither_torch_nor_the_engine() -> None:
    banned = ("torch", "engine", "numpy", "safetensors", "av")
    wrong = [
        str(item)
        for item in all_imports("worker", "modifiers")
        if any(is_below(item.imported, name) for name in banned)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_installed_imports_what_a_checkout_alone_has() -> None:
    wrong = [
        str(item)
        for item in all_imports("worker", "engine", "modifiers", "contract", "host", "darkroom")
        if item.imported.partition(".")[0] in ("benchmark", "tools", "demo", "tests")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("top", ["worker", "engine"])
def test_every_file_has_a_layer(top: str) -> None:
    """The rule of the package is for its `__init__` alone: a new file or package takes its place in the table."""
    without = {module_name(path) for path in sources(top) if rule_for(module_name(path)).files == top}
    assert without == {top}


REGISTRY = "worker.app.integrations"


def test_nothing_but_the_registry_names_an_integration() -> None:
    """Neither in an import nor in a text from which one could be loaded."""
    name = re.compile(r"worker\.integrations\.\w")
    wrong = [
        module_name(path)
        for path in sources("worker")
        if not is_below(module_name(path), "worker.integrations") and name.search(path.read_text("utf-8"))
    ]
    assert wrong == [REGISTRY]


def test_an_integration_imports_none_of_the_others() -> None:
    wrong = [
        str(item)
        for item in all_imports("worker/integrations")
        if is_below(item.imported, "worker.integrations")
        and item.imported.split(".")[2:3] != item.importer.split(".")[2:3]
    ]
    assert not wrong, "\n".join(wrong)


def files_in_circles(top: str) -> list[str]:
    """Return the modules of a package that import one another, or that import one which does."""
    imported: dict[str, set[str]] = {}
    for item in all_imports(top):
        imported.setdefault(item.importer, set()).add(item.imported)
    free: set[str] = set()
    while True:
        found = {module for module, names in imported.items() if not (names & imported.keys()) - free} - free
        if not found:
            return sorted(imported.keys() - free)
        free |= found


def test_no_two_files_of_the_front_import_each_other_in_a_circle() -> None:
    assert files_in_circles("worker") == []


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
    for path in sources("worker", "engine", "modifiers", "host", "contract"):
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
        for path in sources("worker", "engine", "modifiers", "host", "contract", "benchmark", "demo", "tools")
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


def lineages() -> dict[str, tuple[str, ...]]:
    """Return the families that each family declares in its `FAMILY` to build on."""
    found = {}
    for family in FAMILIES:
        folder = ROOT / "engine" / "families" / family
        described = [node for name in DESCRIPTIONS if (folder / name).exists() for node in nodes_of(folder / name)]
        keywords = [keyword for node in described if isinstance(node, ast.Call) for keyword in node.keywords]
        declared = [ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg == "lineage"]
        found[family] = tuple(name for names in declared for name in names)
    return found


def test_the_lineage_of_families_has_no_circle() -> None:
    declared = lineages()
    assert set().union(*declared.values()) <= set(FAMILIES)
    assert not [family for family in FAMILIES if family in _reachable(family, declared)]


def test_a_family_imports_others_along_its_lineage_alone() -> None:
    """The modules that all families share import none of them; the registry finds the folders."""
    declared = lineages()
    used: dict[str, set[str]] = {family: set() for family in FAMILIES}
    wrong = []
    for item in all_imports("engine/families"):
        if is_node_of_family(item.importer) or not is_below(item.imported, "engine.families"):
            continue
        importer, imported = (f"{name}...".split(".")[2] for name in (item.importer, item.imported))
        used.setdefault(importer, set()).add(imported)
        is_foreign = imported in FAMILIES and imported != importer and imported not in _reachable(importer, declared)
        if is_foreign or (importer in FAMILIES and imported == "registry"):
            wrong.append(str(item))
    assert not wrong, "\n".join(wrong)
    unused = {family: set(names) - used[family] for family, names in declared.items()}
    assert not any(unused.values()), unused


def test_no_two_files_of_the_engine_import_each_other_in_a_circle() -> None:
    assert files_in_circles("engine") == []


def test_the_node_classes_of_a_family_are_imported_by_nobody() -> None:
    """Neither the family's description, which is below them, nor another family: the table of nodes finds them."""
    wrong = [
        str(item)
        for item in all_imports("engine")
        for nodes in NODES_OF_FAMILIES
        if is_below(item.imported, nodes) and not is_below(item.importer, nodes)
    ]
    assert not wrong, "\n".join(wrong)


FRONT = ("worker", "modifiers")


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
        ("engine.settings", ("torch", "aiohttp")),
        ("engine", ("torch", "numpy", "PIL", "engine.engine")),
        ("contract.graph.validate", ("torch", "numpy", "PIL", "safetensors", "aiohttp", "engine")),
        ("contract.graph.object_info", ("torch", "numpy", "PIL", "safetensors", "aiohttp")),
        ("engine.server.app", ("torch", "worker")),
        ("engine.__main__", ("torch", "worker")),
        ("engine.engine", ("aiohttp", "worker", "scipy", "torchsde", "tokenizers", "sentencepiece", "yaml", "av")),
        ("engine.comfy.packs.commands", ("torch", "aiohttp")),
    ],
)
def test_importing_a_module_brings_in_no_more_than_it_needs(module: str, unwanted: tuple[str, ...]) -> None:
    names = [f"darkroom.{name}" if name.partition(".")[0] in ROOMS else name for name in (module, *unwanted)]
    script = f"import sys, {names[0]}; print(*sorted(set(sys.modules) & set({names[1:]!r})))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
