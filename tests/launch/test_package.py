"""What goes with a submitted job: the configuration, and the files that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.errors import ConfigError
from rlsys.launch import package
from rlsys.launch.package import missing_here, packed

ENVIRONMENT = """
from rlsys.config import EnvironmentConfig
class Mine:
    class Config(EnvironmentConfig):
        type: str = "mine"
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {
        "data/train.jsonl": "{}\n{}\n",
        "data/.cache/x.jsonl": "{}\n",
        "data/test.jsonl": "{}\n",
        "other.jsonl": "not named\n",
        "runs/base/metrics.jsonl": "{}\n",
        "runs/base/export/model.safetensors": "large",
        "demo/readme": "shares its name with the run\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(*words: str) -> RunConfig:
    return load_config(None, ["name=demo", "run_dir=/shared/demo", *words], RunConfig)


def names(of: RunConfig, root: Path) -> set[str]:
    with packed(of, root) as sent:
        found = {p.relative_to(sent.folder).as_posix() for p in sent.folder.rglob("*.*")}
        assert load_config(sent.folder / "config.yaml") == of
    assert not sent.folder.exists()
    return found - {"config.yaml"}


def test_named_files_are_packed(root: Path) -> None:
    for words, expected in (
        ([], set()),
        (["model.path=org/name"], set()),
        (["data.train.source=file", "data.train.path=data"], {"data/train", "data/test"}),
        (["data.train.source=file", "data.train.path=data/tr*"], {"data/train"}),
        (["data.train.source=file", f"data.train.path={root}/data/train.jsonl"], set()),
        (["data.train.source=file", "data.train.path=s3://bucket/train.jsonl"], set()),
        (["evaluation.reference=runs/base"], {"runs/base/metrics"}),
    ):
        assert names(config(*words), root) == {f"{name}.jsonl" for name in expected}, words


def test_equal_submissions_have_equal_digests(root: Path) -> None:
    def digest(*words: str) -> str:
        path = "data.train.path=data/train.jsonl"
        with packed(config("data.train.source=file", path, *words), root) as sent:
            assert sent.files == 2
            return sent.digest

    first = digest()
    assert digest() == first
    assert digest("seed=1") != first
    (root / "data/train.jsonl").write_text("{}\n")
    assert digest() != first


def test_refusals(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "inner").mkdir()
    with pytest.raises(ConfigError, match=r"data.train.path .* outside .* absolute path"):
        names(config("data.train.source=file", "data.train.path=../other.jsonl"), root / "inner")
    monkeypatch.setattr(package, "LIMIT_BYTES", 5)
    with pytest.raises(ConfigError, match=r"largest are data/train.jsonl .*absolute path"):
        names(config("data.train.source=file", "data.train.path=data"), root)


def test_the_module_of_an_environment_is_packed(root: Path) -> None:
    (root / "my_packed_env.py").write_text(ENVIRONMENT)
    assert names(config("environment.type=my_packed_env:Mine", "algorithm.method=grpo"), root) == {
        "my_packed_env.py"
    }


def test_absolute_paths_that_are_missing(root: Path) -> None:
    assert missing_here(config("model.path=/models/none", "data.train.source=arithmetic")) == [
        "/models/none"
    ]
    assert missing_here(config("model.path=org/name", f"evaluation.reference={root}")) == []
