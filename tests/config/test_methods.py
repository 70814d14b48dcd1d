"""Which method fits which environment, and what a method fills in for the loss."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.errors import ConfigError

ONE = ["environment.budgets=[64]", "environment.answers=1"]
SEVERAL = ["environment.budgets=[16, 32, 64]", "environment.answers=1"]
LIMIT = ["algorithm.length_limit=40"]


def load(folder: Path, *words: str) -> RunConfig:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({}))
    return load_config(path, words)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("ddca", ONE),
        ("dler", [*ONE, *LIMIT]),
        ("lcpo", [*ONE, "algorithm.target_length=40"]),
        ("reinforce++", ONE),
        ("sgrpo", SEVERAL),
    ],
)
def test_methods_that_fit(tmp_path: Path, method: str, words: list[str]) -> None:
    config = load(tmp_path, f"algorithm.method={method}", *words)
    assert config.algorithm.method == method
    expected = {"dler": True, "reinforce++": "whiten"}.get(method, False)
    assert config.resolved_loss.normalise_advantages == expected


def test_a_teacher_needs_no_group_and_fits_beside_scores(tmp_path: Path) -> None:
    teacher = "distillation.teacher.path=tiny-reflective"
    alone = load(tmp_path, "algorithm.method=distill", teacher, "batch.group_size=1")
    assert alone.distillation is not None
    assert alone.distillation.coefficient == 1.0
    beside = load(tmp_path, "algorithm.method=brpo", teacher, "distillation.coefficient=0.1")
    assert beside.algorithm.method == "brpo"


def test_one_thought_is_a_group_for_sgrpo_alone(tmp_path: Path) -> None:
    alone = ["batch.group_size=1"]
    assert load(tmp_path, "algorithm.method=sgrpo", *SEVERAL, *alone).batch.group_size == 1
    whole_batch = load(tmp_path, "algorithm.method=reinforce++", *ONE, *alone)
    assert whole_batch.batch.group_size == 1
    with pytest.raises(ConfigError, match="without a group baseline"):
        load(tmp_path, "algorithm.method=reinforce++", "algorithm.baseline=group", *ONE, *alone)
    with pytest.raises(ConfigError, match="without a group baseline"):
        load(tmp_path, "algorithm.method=ddca", *ONE, *alone)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["algorithm.method=ddca"], ("'ddca' trains one answer", "4 budgets x 4 answers", "[64]")),
        (["algorithm.method=dler", *LIMIT], ("'dler' trains one answer", "[64]")),
        (["algorithm.method=dler", *ONE], ("algorithm.length_limit is missing",)),
        (
            # 64 thought and 118 answer tokens at most.
            ["algorithm.method=dler", *ONE, "algorithm.length_limit=182"],
            ("length_limit 182 is never exceeded", "182 sampled tokens", "smaller"),
        ),
        (
            ["algorithm.method=dler", *ONE, *LIMIT, "algorithm.easy_limits=[[0.5,30],[0.9,35]]"],
            ("easy_limits has [0.9, 35]", "limit of 30", "ever shorter limits"),
        ),
        (["algorithm.method=sgrpo"], ("'sgrpo' compares", "4 budgets x 4 answers", "answers to 1")),
        (["algorithm.method=sgrpo", *ONE], ("1 budgets x 1 answers", "two or more")),
        (
            ["environment.type=reflection", "algorithm.method=ddca"],
            ("'ddca' does not fit environment.type 'reflection'", "use 'rea'"),
        ),
        (
            ["environment.type=economics", "algorithm.method=sgrpo"],
            ("'sgrpo' does not fit environment.type 'economics'", "use 'turn_grpo'"),
        ),
        (
            ["loss.surrogate=gspo"],
            ("'gspo' needs episodes that are one response", "16 scores", "'ppo' or 'cispo'"),
        ),
        (
            ["loss.surrogate=cispo", "loss.dual_clip=3"],
            ("loss.dual_clip 3.0 needs loss.surrogate 'ppo'", "'cispo'"),
        ),
        (
            ["algorithm.method=lcpo", *ONE, "algorithm.target_length=183"],
            ("target_length 183 is never reached", "182 sampled tokens"),
        ),
        (
            ["algorithm.method=grpo", *ONE, "algorithm.overlong.buffer=200"],
            ("overlong.buffer 200 and limit 182", "182 sampled tokens"),
        ),
        (
            [
                *("algorithm.method=grpo", *ONE),
                *("algorithm.overlong.buffer=9", "algorithm.scale=mean"),
            ],
            ("scale 'mean' divides by the mean reward", "algorithm.overlong"),
        ),
        (
            ["algorithm.method=reinforce++", *ONE, "loss.normalise_advantages=false"],
            ("normalise_advantages False leaves", "without a baseline", "baseline to 'group'"),
        ),
        (
            ["algorithm.method=reinforce++", *ONE, "batch.dynamic_sampling=2"],
            ("batch.dynamic_sampling drops groups", "'whiten'", "baseline 'group'"),
        ),
        (["environment.truncation=zero"], ("truncation 'zero' needs one budget", "[64]")),
        (["loss.importance=icepop"], ("'icepop' needs loss.importance_floor", "0.5")),
        (["loss.importance_floor=0.5"], ("importance_floor 0.5 has no effect", "'truncate'")),
        (
            ["loss.importance=icepop", "loss.importance_floor=1.5"],
            ("on which engine and learner agree", "importance_floor 1.5", "importance_cap 2"),
        ),
        (
            ["loss.importance=sequence_truncate"],
            ("'sequence_truncate' needs episodes that are one response", "16 scores"),
        ),
        (["loss.kl_in=reward"], ("kl_in 'reward' has no effect with loss.kl_coefficient 0",)),
        (
            ["batch.dynamic_sampling=1.01"],
            ("batch.dynamic_sampling 1.01 replaces no group of batch.problems 32", "1.03125"),
        ),
        (["algorithm.method=distill"], ("'distill' learns from a teacher", "teacher.path")),
        (
            ["distillation.teacher.path=tiny", "batch.dynamic_sampling=2"],
            ("batch.dynamic_sampling drops groups", "distillation"),
        ),
        (["distillation.coefficient=0.5"], ("distillation.teacher is missing",)),
        (["loss.dual_clip=1"], ("loss.dual_clip is 1", "greater than 1")),
    ],
)
def test_methods_that_do_not_fit(tmp_path: Path, words: list[str], parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, *words)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_normalisation_can_be_chosen_for_every_method(tmp_path: Path) -> None:
    dler = ["algorithm.method=dler", *ONE, *LIMIT]
    off = load(tmp_path, *dler, "loss.normalise_advantages=false")
    assert off.resolved_loss.normalise_advantages is False
    assert load(tmp_path).resolved_loss.normalise_advantages is False
    on = load(tmp_path, "loss.normalise_advantages=true")
    assert on.resolved_loss.normalise_advantages is True


def test_every_command_of_the_page_of_methods_is_accepted() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "methods.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^rlsys train (\S+)(.*)$", text, re.MULTILINE)
    assert len(commands) > 5
    for path, words in commands:
        load_config(root / path, shlex.split(words))
