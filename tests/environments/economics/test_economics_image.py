"""The image, without an engine: a linter, and its instructions in an empty environment."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from economics_server import FOLDER, Server, free_port, reset, session, step

DOCKERFILE = FOLDER / "server" / "Dockerfile"
ROOT = FOLDER.parents[2]
NO_NETWORK = ("Failed to establish a new connection", "Temporary failure in name resolution")


def test_the_linter_finds_nothing() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, "--no-color", DOCKERFILE], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


class Container(Server):
    """A folder instead of an image's root, and a virtual environment instead of its Python."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        venv.create(root / "venv", with_pip=True)
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        self.environ["PATH"] = f"{root / 'venv' / 'bin'}:{os.environ['PATH']}"
        self.environ["PIP_NO_COMPILE"] = "1"  # half of the time, for a server that starts once
        self.folder = root

    def carry_out(self) -> None:
        """Follow the Dockerfile up to its CMD, which starts the server."""
        text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
        for line in text.splitlines():
            keyword, _, rest = line.partition(" ")
            # Of the absolute paths, those that the image itself makes.
            rest = re.sub(r"(?<![\w.])/(?=build|app)", f"{self.root}/", rest)
            match keyword:
                case "COPY":
                    self.copy(*rest.split())
                case "RUN" if "useradd" not in rest:
                    self.execute(rest)
                case "ENV":
                    self.environ |= dict(pair.split("=", 1) for pair in shlex.split(rest))
                case "WORKDIR":
                    self.folder = Path(rest)
                case "CMD":
                    self.serve(json.loads(rest))

    def copy(self, source: str, target: str) -> None:
        made = Path(target)
        made.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, made, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, made)

    def execute(self, command: str) -> None:
        done = subprocess.run(
            ["sh", "-c", command], env=self.environ, capture_output=True, text=True
        )
        if done.returncode and any(sentence in done.stderr for sentence in NO_NETWORK):
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr

    def serve(self, command: list[str]) -> None:
        assert self.environ["ECONOMICS_PORT"] == "8000"
        environ = self.environ | {"ECONOMICS_PORT": str(self.port), "ECONOMICS_HOST": "127.0.0.1"}
        self.process = subprocess.Popen(command, cwd=self.folder, env=environ)
        self._wait_until_healthy()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_instructions_make_a_server_without_torch(tmp_path: Path) -> None:
    container = Container(tmp_path)
    try:
        container.carry_out()
        with session(container.url) as ask:
            assert reset(ask, seed=1)["data"]["observation"]["num_questions"] == 10
            assert step(ask, "\\boxed{1}")["type"] == "observation"
    finally:
        if hasattr(container, "process"):  # it got as far as its CMD
            container.stop()
    heavy = "torch", "vllm", "deepspeed", "ray", "transformers", "trl"
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    assert [name for name in heavy if (packages / name).exists()] == []
