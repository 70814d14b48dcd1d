"""Which module may import which part of economics, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import rlsys

PACKAGE = Path(rlsys.__path__[0])
ROOT = PACKAGE.parent
ECONOMICS = "rlsys.environments.economics"
FOLDER = PACKAGE / "environments" / "economics"
SOURCES = sorted(p for top in ("rlsys", "actors", "learner") for p in (ROOT / top).rglob("*.py"))

USERS = {
    "rlsys/cli/economics.py",
    "rlsys/launch/environment_service.py",
    "rlsys/launch/local_model.py",
}
"""Modules outside the folder that may import economics. The table of environments
(rlsys/environments/registry.py) names it in a string and imports it when a run plays it."""


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports anywhere, for type checkers too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def users_of(module: str, paths: list[Path]) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in paths
        if any(f"{name}.".startswith(f"{module}.") for name in imported(path))
    }


def test_few_modules_import_economics() -> None:
    outside = [path for path in SOURCES if FOLDER not in path.parents]
    assert len(outside) > 100
    assert users_of(ECONOMICS, outside) <= USERS


def test_the_game_imports_neither_the_server_nor_the_benchmark() -> None:
    game = sorted(FOLDER.glob("*.py"))
    assert len(game) > 10
    server, benchmark = (sorted((FOLDER / room).rglob("*.py")) for room in ("server", "benchmark"))
    assert len(server) > 4 and len(benchmark) > 10
    assert users_of(f"{ECONOMICS}.server", game + benchmark) == set()
    assert users_of(f"{ECONOMICS}.benchmark", game + server) == set()
