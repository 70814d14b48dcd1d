"""What is refused of a teacher, before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlsys.assets import shipped_path
from rlsys.config import ModelConfig, RunConfig
from rlsys.errors import ModelError
from rlsys.launch.inputs import check_inputs
from rlsys.launch.teacher import with_folder


def config(path: str, **teacher: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "distillation": {"teacher": {"path": path, **teacher}},
            "algorithm": {"method": "distill"},
            "environment": {
                "type": "anytime",
                "budgets": [16],
                "answers": 1,
                "answer_tokens": 6,
                "closing": "",
            },
            "data": {
                "train": {"source": "arithmetic", "size": 8},
                "evaluation": {"source": "arithmetic", "size": 4, "held_out": True},
            },
        }
    )


def copy(folder: Path, file: str, old: str, new: str) -> str:
    """A copy of the tiny reasoner with one word of a file replaced."""
    shutil.copytree(shipped_path("tiny"), folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    return str(folder)


def test_a_teacher_with_the_same_tokenizer() -> None:
    checked = config("tiny-reflective")
    assert check_inputs(checked).summary.endswith("at most 1,024 tokens")
    named = with_folder(checked.distillation)
    assert named is not None
    assert named.teacher.path == str(shipped_path("tiny-reflective"))
    assert with_folder(None) is None


def test_sequences_fit_into_the_teacher() -> None:
    assert check_inputs(config("tiny", max_length=200)).summary.endswith("at most 200 tokens")


def test_what_a_teacher_may_not_be(tmp_path: Path) -> None:
    other = copy(tmp_path / "other", "tokenizer.json", '"7"', '"seven"')
    large = copy(tmp_path / "large", "config.json", '"vocab_size": 104', '"vocab_size": 112')
    cases = [
        ("runs/no/such", "tiny", "does not exist; correct distillation.teacher.path"),
        (other, "tiny", "has another tokenizer than model.path 'tiny': 1 of 104 tokens"),
        ("tiny", large, "'tiny' has 104 rows of the embedding and model.path"),
    ]
    for path, policy, words in cases:
        asked = config(path)
        asked = asked.model_copy(update={"model": ModelConfig(path=policy)})
        with pytest.raises(ModelError) as caught:
            check_inputs(asked)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
