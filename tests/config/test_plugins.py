"""Environments and algorithms from outside rlsys: named by import path, like the built-in kinds."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

from rlsys.config import AnytimeConfig, GrpoConfig, RunConfig
from rlsys.config.loading import dump_config, load_config
from rlsys.config.plugins import algorithm_class, environment_class
from rlsys.errors import ConfigError

PACKAGE = {
    "envs.py": """
        from enum import Enum
        from pathlib import Path
        from pydantic import PositiveInt
        from rlsys.config import AlgorithmConfig, EnvironmentConfig

        class Colour(Enum):
            RED = "red"
            BLUE = "blue"

        class Maze:
            class Config(EnvironmentConfig):
                '''A maze.'''
                size: PositiveInt = 8
                '''Cells along one side.'''
                doors: tuple[str, ...] = ("north",)
                folder: Path = Path("mazes")
                exits: list[int] = [1]
                colour: Colour = Colour.RED

        class Vote:
            class Config(AlgorithmConfig):
                share: float

        class Bare:
            pass

        class Strange:
            class Config:
                pass

        def function():
            pass
        """,
    "broken.py": "1 / 0",
    "needy.py": "import a_library_that_nobody_has",
}
MAZE = "mazes_for_rlsys.envs:Maze"
VOTE = "mazes_for_rlsys.envs:Vote"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a package of the user's in it."""
    package = tmp_path / "mazes_for_rlsys"
    package.mkdir()
    for name, text in PACKAGE.items():
        lines = text.splitlines()
        (package / name).write_text("\n".join(line.removeprefix(" " * 8) for line in lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("mazes_for_rlsys")]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "run.yaml").write_text("algorithm: {method: grpo}\n")
    return tmp_path


def maze(*words: str) -> RunConfig:
    return load_config(Path("run.yaml"), [f"environment.type={MAZE}", *words])


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(Path("run.yaml"), words)
    return str(caught.value)


def test_a_kind_from_outside_is_like_the_others() -> None:
    config = maze(
        *("environment.size=9", "environment.doors=east,west", "environment.folder=~/m"),
        "environment.exits=2,3e0",
    )
    assert config.environment.model_dump(mode="json") == {
        "type": MAZE,
        "size": 9,
        "doors": ["east", "west"],
        "folder": str(Path.home() / "m"),
        "exits": [2, 3],
        "colour": "red",
    }
    assert config.algorithm == GrpoConfig()
    assert config == maze(
        f"environment={{type: '{MAZE}', size: 9, doors: [east, west], folder: ~/m, exits: [2, 3]}}"
    )
    Path("dumped.yaml").write_text(dump_config(config))
    assert load_config(Path("dumped.yaml")) == config


def test_the_user_class_is_found_again() -> None:
    config = load_config(
        Path("run.yaml"),
        [f"environment.type={MAZE}", f"algorithm.method={VOTE}", "algorithm.share=0.5"],
    )
    module = sys.modules["mazes_for_rlsys.envs"]
    assert (environment_class(config), algorithm_class(config)) == (module.Maze, module.Vote)
    assert (environment_class(RunConfig()), algorithm_class(RunConfig())) == (None, None)


def test_switching_between_kinds_drops_the_keys_of_the_other() -> None:
    Path("run.yaml").write_text(
        f"algorithm: {{method: grpo}}\nenvironment: {{type: '{MAZE}', size: 3}}\n"
    )
    anytime = ["environment.type=anytime", "environment.budgets=16", "environment.answers=1"]
    assert load_config(Path("run.yaml"), anytime).environment == AnytimeConfig(
        budgets=(16,), answers=1
    )
    Path("run.yaml").write_text("algorithm: {method: grpo}\nenvironment: {budgets: [16]}\n")
    assert maze().environment.model_dump()["size"] == 8


def test_what_is_no_kind_is_refused_in_a_sentence() -> None:
    package = "mazes_for_rlsys"
    for kind, words in {
        f"{package}.nowhere:Maze": ("on the command line", f"no module {package}.nowhere"),
        "nowhere_at_all:Maze": ("no module nowhere_at_all", "install it"),
        f"{package}.envs:Mase": ("no class Mase", "Maze"),
        f"{package}.envs:function": ("a function, no class", "Maze"),
        f"{package}.envs:Bare": ("no Config", "rlsys.config.EnvironmentConfig"),
        f"{package}.envs:Strange": ("another base", "rlsys.config.EnvironmentConfig"),
        VOTE: ("another base", "rlsys.config.EnvironmentConfig"),
        f"{package}.broken:Maze": ("ZeroDivisionError", "correct the module"),
        f"{package}.needy:Maze": ("a_library_that_nobody_has", "install it"),
        f"{package}.envs:Maze:x": ("an import path is written",),
        f"{package}.envs.Maze": (f"is written {MAZE}",),
    }.items():
        sentence = refusal(f"environment.type={kind}")
        assert f"environment.type is '{kind}'" in sentence
        for word in words:
            assert word in sentence
        assert "\n" not in sentence


def test_faults_in_the_section_are_explained() -> None:
    for word, sentence in {
        "environment.sise=3": "did you mean 'environment.size'?",
        "environment.size=0": "environment.size is 0 on the command line but should be greater",
        "environment.doors=[1]": "environment.doors[0] is 1 on the command line",
        f"algorithm.method={VOTE}": "algorithm.share is missing in run.yaml",
    }.items():
        assert sentence in refusal(f"environment.type={MAZE}", word)


def test_the_current_folder_hides_no_library(folder: Path) -> None:
    (folder / "json.py").write_text("raise RuntimeError('imported in the place of a library')")
    code = (
        "from rlsys.config.plugins import extended_schema\n"
        f"extended_schema({{'environment': '{MAZE}'}})\n"
        "import sys; sys.modules.pop('json')\n"
        "import json; json.dumps(1)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONSAFEPATH": "1",
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_configuration_travels_to_another_process(folder: Path, dumps: object) -> None:
    config = load_config(
        Path("run.yaml"),
        [
            *(f"environment.type={MAZE}", "environment.size=9", f"algorithm.method={VOTE}"),
            *("algorithm.share=0.5", "loss.importance_cap=.inf"),
        ],
    )
    assert callable(dumps)
    (folder / "config.pickle").write_bytes(dumps((config, config.environment, config.algorithm)))
    code = (
        "import pathlib, pickle\n"
        "whole, *parts = pickle.loads(pathlib.Path('config.pickle').read_bytes())\n"
        "assert parts == [whole.environment, whole.algorithm]\n"
        "from rlsys.config.loading import dump_config\n"
        "print(dump_config(whole), end='')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout == dump_config(config)
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_schema_of_the_built_in_kinds_says_that_a_path_is_allowed() -> None:
    properties = RunConfig.model_json_schema()["properties"]
    for section in ("environment", "algorithm"):
        assert "import path" in properties[section]["description"]
        assert len(properties[section]["oneOf"]) >= 4
    maze_schema = type(maze()).model_json_schema()["properties"]["environment"]
    assert len(maze_schema["oneOf"]) == 6
    assert "import path" in maze_schema["description"]
