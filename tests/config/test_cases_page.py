"""The page docs/cases.md: what each row of its tables says is what happens."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rlsys.config.loading import dump_config, load_config
from rlsys.errors import ConfigError, ResourceError
from rlsys.launch import machine
from rlsys.launch.machine import check_machine
from rlsys.launch.resources import starts_local_ray

PAGE = Path(__file__).parents[2] / "docs" / "cases.md"
SPECIAL = ("RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR", "XDG_CACHE_HOME", *machine.PROXIES)


def rows(first_heading: str) -> Iterator[tuple[str, str]]:
    """Yield both cells of every row of the table whose first column has this heading."""
    lines = iter(PAGE.read_text(encoding="utf-8").splitlines())
    assert any(line.startswith(f"| {first_heading} |") for line in lines)
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            return
        first, second = line.strip("|").split(" | ")
        yield first.strip(), second.strip()


def code(cell: str) -> str:
    """The text between the backquotes of a cell; empty if there is none."""
    found = re.search("`(.*)`", cell)
    return found[1] if found else ""


def outcome(words: list[str]) -> str:
    """What the page would say of run.yaml with these words: the whole configuration, or why not."""
    try:
        return dump_config(load_config(Path("run.yaml"), words))
    except ConfigError as error:
        assert "\n" not in str(error), words
        return f"refused: {error}"


def agrees(result: str, cell: str) -> bool:
    """True if the outcome is what the second cell of a row says."""
    if cell.startswith("refused: "):
        return result.startswith("refused: ") and code(cell) in result
    key, _, value = code(cell).partition(": ")
    found = yaml.safe_load(result)
    for name in key.split("."):
        found = found[name]
    return bool(found == yaml.safe_load(value))


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (*SPECIAL, "UNSET", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch")


def test_words() -> None:
    Path("run.yaml").write_text("{}\n")
    cases = list(rows("you type"))
    assert len(cases) > 30
    for first, second in cases:
        result = outcome(shlex.split(code(first)))
        assert agrees(result, second), (first, second, result[:300])


def test_files() -> None:
    for first, second in rows("the file holds"):
        Path("run.yaml").write_text(code(first).replace(" ⏎ ", "\n") + "\n")
        result = outcome([])
        assert agrees(result, second), (first, second, result[:300])


def test_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ray._private import services

    for first, second in rows("variables"):
        with monkeypatch.context() as patched:
            patched.setenv("HOME", str(tmp_path))
            for word in code(first).split():
                patched.setenv(*word.split("=", 1))
            if "that answers" in first:
                patched.setattr(machine, "_no_cluster_at", lambda host, port: None)
            if first.endswith("where no cluster runs"):
                patched.setattr(services, "get_ray_address_from_environment", lambda *_: None)
            try:
                check_machine()
                own = starts_local_ray()
                result = "runs on a Ray of its own" if own else "joins the cluster"
            except ResourceError as error:
                result = f"refused: {error}"
        expected = code(second) if second.startswith("refused: ") else second
        assert result.startswith(second.split("`")[0]) and expected in result, (first, result)


def test_every_other_case_of_the_machine_is_a_sentence_of_the_code() -> None:
    """The tests beside the code try these; here only the words on the page are compared."""
    source = "\n".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for path in (PAGE.parents[1] / "rlsys").rglob("*.py")
    )
    cases = [(first, code(second)) for first, second in rows("the machine") if ": `" in second]
    assert len(cases) == 6
    for first, sentence in cases:
        assert sentence in source, first
