"""Who may import whom, read from the source: the layers of the design, kept by this test."""

import ast
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p for top in ("rlsys", "actors", "learner") for p in (ROOT / top).rglob("*.py"))
ENDS = {"rlsys.cli", "rlsys.orchestration.launch"}
"""Where everything meets."""

FORBIDDEN = {
    # A layer, and what none of its modules may import.
    "rlsys": ("ray", "vllm", "deepspeed", "actors", "learner"),
    "rlsys.algorithms": ("rlsys.data", "rlsys.environments", "rlsys.orchestration"),
    "rlsys.data": ("torch", "rlsys.algorithms", "rlsys.environments", "rlsys.orchestration"),
    "rlsys.reflection": ("torch", "transformers", "rlsys.orchestration"),
    "rlsys.environments": ("torch", "transformers", "rlsys.orchestration"),
    "actors": ("learner", "rlsys.orchestration", "deepspeed"),
    "learner": ("actors", "rlsys.orchestration", "rlsys.environments"),
}
ONLY = {
    # A layer, and all it may import beside the standard library and itself.
    "rlsys.types": ("numpy",),
    "rlsys.errors": (),
    "rlsys.config_base": ("pydantic",),
    "rlsys.config_economics": ("pydantic", "rlsys.config_base"),
    "rlsys.config_parts": ("pydantic", "rlsys.config_base"),
    "rlsys.config_reflection": ("pydantic", "rlsys.config_base", "rlsys.config_parts"),
    "rlsys.config": (
        *("pydantic", "rlsys.config_base", "rlsys.config_economics"),
        *("rlsys.config_parts", "rlsys.config_reflection"),
    ),
    "rlsys.algorithms": (
        *("numpy", "torch", "rlsys.types", "rlsys.errors"),
        *("rlsys.config", "rlsys.config_parts", "rlsys.config_reflection"),
    ),
}
HEAVY = {"torch", "transformers", "datasets", "sympy", "math_verify", "ray", "vllm", "deepspeed"}
LIGHT_MODULES = {
    "rlsys.cli",
    "rlsys.cli_common",
    "rlsys.config",
    "rlsys.config_base",
    "rlsys.config_economics",
    "rlsys.config_errors",
    "rlsys.config_parts",
    "rlsys.config_loading",
    "rlsys.config_reflection",
    "rlsys.doctor",
    "rlsys.errors",
    "rlsys.orchestration.inputs",
    "rlsys.orchestration.preflight",
    "rlsys.orchestration.reporting",
    "rlsys.reflection_cli",
    "rlsys.types",
}
"""Imported before the input is known to be right; what is heavy waits inside their functions."""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """Modules that the file imports, those only named for type checkers left out."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not (top_level_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            waiting += ast.iter_child_nodes(node)


def within(module: str, packages: Collection[str]) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_a_module_imports_nothing_that_its_layer_forbids(path: Path) -> None:
    module = module_of(path)
    layers = [layer for layer in FORBIDDEN if within(module, (layer,))]
    if within(module, ENDS):
        layers.remove("rlsys")
    forbidden = tuple(name for layer in layers for name in FORBIDDEN[layer])
    assert [name for name in imports(path) if within(name, forbidden)] == []


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_the_inner_layers_stand_on_little(path: Path) -> None:
    module = module_of(path)
    for layer, allowed in ONLY.items():
        if not within(module, (layer,)):
            continue
        known = (*sys.stdlib_module_names, *allowed, layer)
        assert [name for name in imports(path) if not within(name, known)] == []


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_what_runs_before_the_input_is_known_imports_nothing_heavy(path: Path) -> None:
    if module_of(path) in LIGHT_MODULES:
        heavy = [name for name in imports(path, top_level_only=True) if within(name, HEAVY)]
        assert heavy == []
