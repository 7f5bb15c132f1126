"""The rules of docs/architecture.md: which package may import which.

Imports are read from the source, those for typing included; modules that must not import MLX or
Textual are imported in fresh interpreters.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from entropix_mlx.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PACKAGE = "entropix_mlx"
TUI = ROOT / "tui"  # which is entropix_mlx.tui
CORE = (
    "answer", "api", "chat", "checkpoints", "engine", "models",
    "profiles", "samplers", "tools", "traces",
)  # fmt: skip
MLX_FREE = ("answer", "commands", "profiles", "server", "tools", "traces")
MLX_FREE_MODULES = (
    "chat.attachments", "chat.conversation", "chat.events", "chat.finding", "chat.recorded",
    "chat.remote", "chat.session", "chat.store", "chat.thread",
    "lab.evaluate", "lab.questions", "models.config", "samplers.registry",
)  # fmt: skip
HEAVY = {"mlx", "mlx_lm", "transformers"}
CONSUMERS = {"entropix_mlx.commands", "entropix_mlx.lab", "entropix_mlx.server", "entropix_mlx.tui"}
"""Packages that use the core. Only the command line imports the others."""


def name_of(file):
    root = TUI.parent if file.is_relative_to(TUI) else ROOT / PACKAGE
    parts = (PACKAGE, *file.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    name_of(file): file
    for top in (ROOT / PACKAGE, TUI)
    for file in sorted(top.rglob("*.py"))
    if not file.is_relative_to(ROOT / PACKAGE / "tui")
}
TREES = {name: ast.parse(file.read_text("utf-8")) for name, file in FILES.items()}


def imports(module):
    """Yield the modules of this project that a module imports, wherever in its file."""
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            named = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in FILES else base for name in named]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == PACKAGE)


def package_of(module):
    """Return the package of a module; the root's modules and entry points stand for themselves."""
    if module.endswith("__main__"):
        return module
    return ".".join(module.split(".")[:2])


def packages():
    """Return the packages that each package imports."""
    graph = defaultdict(set)
    for module in FILES:
        package = package_of(module)
        graph[package] |= {package_of(other) for other in imports(module)} - {package}
    return graph


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def loaded_by(modules):
    """Import modules one after the other in a fresh interpreter: {module: new top-level names}."""
    code = (
        "import sys; from importlib import import_module\nbefore = set()\n"
        f"for module in {list(modules)!r}:\n"
        "    import_module(module); now = {name.split('.')[0] for name in sys.modules}\n"
        "    print(module, *(now - before)); before = now\n"
    )
    return {line.split()[0]: set(line.split()[1:]) for line in run(code).splitlines()}


@pytest.mark.parametrize("module", sorted(m for m, f in FILES.items() if f.name == "__init__.py"))
def test_a_package_is_only_a_docstring(module):
    body = TREES[module].body
    assert ast.get_docstring(TREES[module])
    assert len(body) == 1 or module == "entropix_mlx"  # its public names are imported when used


def mlx_free():
    """Return the modules that do without MLX, in named groups."""
    named = {"root": [m for m, f in FILES.items() if f.parent == ROOT / "entropix_mlx"]}
    named |= {p: [m for m in FILES if m.startswith(f"entropix_mlx.{p}.")] for p in MLX_FREE}
    named["modules"] = [f"entropix_mlx.{module}" for module in MLX_FREE_MODULES]
    named["tui"] = [m for m in FILES if m.startswith("entropix_mlx.tui")]
    return named


@pytest.mark.parametrize("name", [*MLX_FREE, "root", "modules", "tui"])
def test_modules_that_read_steps_do_without_mlx(name):
    for module, new in loaded_by(mlx_free()[name]).items():
        assert not HEAVY & new, module


def test_only_the_terminal_ui_imports_textual():
    names = tuple(f"entropix_mlx.{name}." for name in (*CORE, "commands", "lab", "server"))
    modules = [module for module in FILES if module.startswith(names)]
    assert "textual" not in set.union(*loaded_by(modules).values())


def test_a_subcommand_is_imported_when_it_is_asked_for():
    loaded = run("import sys, entropix_mlx.cli as c; c.build_app(); print(*sys.modules)").split()
    assert not [
        name
        for name in loaded
        if name.startswith("entropix_mlx.commands.") and "shared" not in name
    ]
    assert "entropix_mlx.settings" not in loaded


@pytest.mark.parametrize(
    "folder", sorted({file.parent for file in FILES.values()}), ids=lambda f: f.name
)
def test_a_package_has_at_most_14_modules(folder):
    assert len({file for file in folder.glob("*.py") if file.name != "__init__.py"}) <= 14


def test_a_class_name_means_one_thing():
    found = defaultdict(list)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name != "Row":  # of a batch, and of a table
                found[node.name.lstrip("_")].append(module)
    assert not {name: modules for name, modules in found.items() if len(modules) > 1}


def test_packages_form_no_circle():
    list(TopologicalSorter(packages()).static_order())  # raises CycleError, which names the circle


def test_nothing_but_the_command_line_imports_a_consumer():
    graph = packages()
    for name in {f"entropix_mlx.{name}" for name in CORE} | CONSUMERS - {"entropix_mlx.commands"}:
        assert not graph[name] & CONSUMERS, name


def test_subcommands_do_not_import_one_another():
    paths = (path.partition(":")[0] for path, _ in COMMANDS.values())
    subcommands = {f"entropix_mlx.commands.{module}" for module in paths}
    assert subcommands <= FILES.keys()
    for module in subcommands:
        assert not subcommands & set(imports(module)), module


def test_public_names_are_functions():
    # A module of the same name at the root would take their place once it is imported.
    code = "import entropix_mlx as e; print(all(callable(f) for f in (e.generate, e.load)))"
    assert run(code) == "True\n"
