"""Which package may import which: the layers of the design, read from the source."""

import ast
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p for top in ("rlsys", "actors", "learner") for p in (ROOT / top).rglob("*.py"))

FORBIDDEN = {
    # A package, and what none of its modules may import.
    "rlsys": ("ray", "vllm", "deepspeed", "actors", "learner"),
    "rlsys.algorithms": ("rlsys.data", "rlsys.environments", "rlsys.training", "rlsys.launch"),
    "rlsys.data": ("torch", "rlsys.algorithms", "rlsys.environments", "rlsys.launch"),
    "rlsys.environments": ("torch", "transformers", "rlsys.training", "rlsys.launch"),
    "rlsys.evaluation": ("torch", "rlsys.launch"),
    "rlsys.grading": ("torch", "transformers", "rlsys.environments", "rlsys.launch"),
    "rlsys.reflection": ("torch", "transformers", "rlsys.training", "rlsys.launch"),
    "rlsys.reporting": ("rlsys.launch",),
    "rlsys.training": ("torch", "transformers", "rlsys.launch"),
    "actors": ("learner", "rlsys.training", "rlsys.launch", "deepspeed"),
    "learner": ("actors", "rlsys.training", "rlsys.launch", "rlsys.environments"),
}
ONLY = {
    # A package, and all it may import beside the standard library and itself.
    "rlsys.types": ("numpy", "rlsys.records"),
    "rlsys.records": ("rlsys.types",),
    "rlsys.errors": (),
    "rlsys.config": ("pydantic", "pydantic_core", "yaml", "rlsys.errors", "rlsys.assets"),
    "rlsys.algorithms": (
        *("numpy", "torch", "rlsys.types", "rlsys.records", "rlsys.errors", "rlsys.config"),
    ),
}
MAY_USE_RAY = ("rlsys.cli", "rlsys.launch", "rlsys.planning")
"""Where everything meets; the rules of `rlsys` do not hold there."""
HEAVY = {"torch", "transformers", "datasets", "sympy", "math_verify", "ray", "vllm", "deepspeed"}
LIGHT = (
    *("rlsys.cli", "rlsys.config", "rlsys.doctor", "rlsys.errors", "rlsys.reporting"),
    *("rlsys.launch.inputs", "rlsys.launch.preflight", "rlsys.types"),
)
"""Imported before the input is known to be right; heavy imports wait inside their functions."""


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


def faults(path: Path) -> Iterator[str]:
    """Every import of a file that a rule forbids."""
    module = module_of(path)
    for package, forbidden in FORBIDDEN.items():
        if not within(module, (package,)) or (package == "rlsys" and within(module, MAY_USE_RAY)):
            continue
        yield from (f"{module} -> {name}" for name in imports(path) if within(name, forbidden))
    for package, allowed in ONLY.items():
        if within(module, (package,)):
            known = (*sys.stdlib_module_names, *allowed, package)
            yield from (f"{module} -> {name}" for name in imports(path) if not within(name, known))
    if within(module, LIGHT):
        for name in imports(path, top_level_only=True):
            if within(name, HEAVY):
                yield f"{module} -> {name} (heavy)"


def test_no_module_imports_what_its_layer_forbids() -> None:
    assert [fault for path in SOURCES for fault in faults(path)] == []


def test_the_rules_name_packages_that_exist() -> None:
    modules = {module_of(path) for path in SOURCES}
    assert {*FORBIDDEN, *ONLY, *LIGHT, *MAY_USE_RAY} <= modules
