"""What users write, file by file and word by word: accepted as meant, or refused with a remedy."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.config import EconomicsEvaluationConfig, RunConfig
from rlsys.config.loading import dump_config, load_config
from rlsys.config.reflection import ReflectionConfig
from rlsys.config.spelling import as_meant
from rlsys.errors import ConfigError

FILE = ["data.train.source=file"]
GRPO = ["algorithm.method=grpo", "environment.budgets=16", "environment.answers=1"]

ACCEPTED: tuple[tuple[list[str], str, object], ...] = (
    # Words, the key they set, its value.
    (["--steps", "10"], "steps", 10),
    (["--steps=10"], "steps", 10),
    (["+steps=10"], "steps", 10),
    (["++steps=10"], "steps", 10),
    (["--steps", "10", "seed=3", "--name", "-1x"], "name", "-1x"),
    (["steps =10 "], "steps", 10),
    (["steps=1e3"], "steps", 1000),
    (["steps=10.0"], "steps", 10),
    (["steps=1_000"], "steps", 1000),
    (["seed=0x10"], "seed", 16),
    (["environment.budgets=16,32"], "environment.budgets", (16, 32)),
    (["environment.budgets=16, 32,"], "environment.budgets", (16, 32)),
    (["environment.budgets=16"], "environment.budgets", (16,)),
    (["environment.budgets=[1e1,2e1]"], "environment.budgets", (10, 20)),
    (["evaluation.budgets=8,9"], "evaluation.budgets", (8, 9)),
    (["learner.lora.target_modules=q_proj,v_proj"], "learner.lora.target_modules",
     ("q_proj", "v_proj")),
    ([*FILE, "data.train.path=a.jsonl,b.jsonl"], "data.train.path",
     ("a.jsonl", "b.jsonl")),
    ([*FILE, "data.train.path='a,b.jsonl'"], "data.train.path", ("a,b.jsonl",)),
    ([*FILE, "data.train.path=a", "data.train.limit=None"], "data.train.limit", None),
    ([*FILE, "data.train.path=a", "data.train.limit=none"], "data.train.limit", None),
    ([*FILE, "data.train.path=a", "data.train.limit=null"], "data.train.limit", None),
    (["data.prompt.system=None"], "data.prompt.system", None),
    (["data.prompt.system='None'"], "data.prompt.system", "None"),
    (["name=None"], "name", "None"),
    (["algorithm.shaping=none"], "algorithm.shaping", None),
    ([*GRPO, "algorithm.scale=none"], "algorithm.scale", "none"),
    (["algorithm.mode=none"], "algorithm.mode", "none"),
    (["data.shuffle=False"], "data.shuffle", False),
    (["data.shuffle=no"], "data.shuffle", False),
    (["data.shuffle=Off"], "data.shuffle", False),
    (["generation.enforce_eager=YES"], "generation.enforce_eager", True),
    (["name=no"], "name", "no"),
    (["name=010"], "name", "010"),
    (["name=2024-01-01"], "name", "2024-01-01"),
    (["name=12:30:15"], "name", "12:30:15"),
    (["environment.closing= "], "environment.closing", " "),
    (["environment.closing="], "environment.closing", ""),
    (["loss.importance_cap=.inf"], "loss.importance_cap", float("inf")),
    (["run_dir=~/runs"], "run_dir", Path("/home/me/runs")),
    (["run_dir=${SCRATCH}/runs"], "run_dir", Path("/scratch/runs")),
    (["run_dir=a~b"], "run_dir", Path("a~b")),
    (["model.path=${SCRATCH}/model"], "model.path", "/scratch/model"),
    (["model.path=~/model"], "model.path", "/home/me/model"),
    ([*FILE, "data.train.path=~/a,${SCRATCH}/b"], "data.train.path",
     ("/home/me/a", "/scratch/b")),
)  # fmt: skip
REFUSED: tuple[tuple[list[str], tuple[str, ...]], ...] = (
    # Words, and what the one sentence says.
    (["steps='10'"], ("steps is '10'", "integer")),
    (["steps=true"], ("steps is True", "integer")),
    (["steps=yes"], ("steps is 'yes'", "integer")),
    (["steps=1.5"], ("steps is 1.5", "integer")),
    (["steps=010"], ("steps is '010'", "write 10")),
    (["steps=None"], ("steps is 'None'", "integer")),
    (["name=true"], ("name is True", "string")),
    (["data.shuffle='no'"], ("data.shuffle is 'no'", "boolean")),
    (["data.shuffle=1"], ("data.shuffle is 1", "boolean")),
    (["environment.budgets=(16,32)"], ("'(16,32)'", "list", "[1, 2]")),
    (["environment.budgets=16;32"], ("environment.budgets[0] is '16;32'", "integer")),
    (["environment.budgets=true"], ("environment.budgets is True", "list")),
    (["data.prompt.examples=a,b"], ("data.prompt.examples is 'a,b'", "list")),
    (["learner.optimizer.learning_rate=.inf"], ("learning_rate is inf", "finite")),
    (["learner.optimizer.learning_rate=.nan"], ("learning_rate is nan", "finite")),
    (["learner.optimizer.betas=0.9,.nan"], ("betas[1] is nan", "finite")),
    (["learner.optimizer.learning_rate=1e999"], ("learning_rate is inf", "finite")),
    (["loss.importance_cap=.nan"], ("importance_cap is nan",)),
    (["run_dir=${UNSET}/x"], ("command line: run_dir", "UNSET", "not set")),
    (["run_dir=$SCRATCH/x"], ("run_dir", "${SCRATCH}")),
    (["model.path=$SCRATCH/x"], ("model.path", "${SCRATCH}")),
    (["run_dir=~nobody_at_all/x"], ("run_dir", "no user")),
    (["--steps"], ("'--steps'", "without a value", "key.path=value")),
    (["--steps", "seed=3"], ("'--steps'", "without a value")),
    (["steps", "10"], ("'steps' must be key.path=value",)),
    (["~algorithm.shaping"], ("cannot remove", "algorithm.shaping=null")),
    (["algorithm=grpo"], ("algorithm is 'grpo'", "write algorithm.method=grpo")),
)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch")
    monkeypatch.delenv("UNSET", raising=False)
    Path("run.yaml").write_text("{}\n")


def value_at(config: object, key: str) -> object:
    for name in key.split("."):
        config = getattr(config, name)
    return config


def refusal(path: str, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(Path(path), words)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_words_that_are_accepted_as_meant() -> None:
    for words, key, value in ACCEPTED:
        config = load_config(Path("run.yaml"), words)
        assert value_at(config, key) == value, words
        Path("dumped.yaml").write_text(dump_config(config))
        assert load_config(Path("dumped.yaml")) == config, words


def test_words_that_are_refused_with_the_right_spelling() -> None:
    for words, expected in REFUSED:
        sentence = refusal("run.yaml", *words)
        for part in expected:
            assert part in sentence, (words, sentence)


def test_files_that_are_accepted() -> None:
    for name, content in {
        "empty.yaml": b"",
        "comment.yaml": b"# nothing yet\n",
        "a.yml": b"steps: 3\n",
        "a.json": b'{"steps": 3,\n\t"name": "a\\/b"}',
        "empty.json": b"\n",
        "windows.yaml": b"steps: 3\r\nbatch:\r\n  problems: 4\r\n",
        "mark.yaml": b"\xef\xbb\xbfsteps: 3\n",
        "spaces.yaml": b"steps: 3   \nname: a  \n",
        "merged.yaml": b"learner: {optimizer: &o {learning_rate: 1e-3}}\nsteps: 3\n",
    }.items():
        Path(name).write_bytes(content)
        assert load_config(Path(name)).steps == (3 if b"steps" in content else 100), name
    assert load_config(Path("a.json")).name == "a/b"
    assert load_config(Path("spaces.yaml")).name == "a"


def test_files_that_are_refused() -> None:
    Path("folder").mkdir()
    for name, content, *expected in (
        ("twice.yaml", b"steps: 3\nseed: 1\nsteps: 4\n", "line 3", "'steps' is also on line 1"),
        ("sections.yaml", b"batch: {}\n\nbatch:\n  problems: 3\n", "line 3", "on line 1"),
        ("inner.yaml", b"batch:\n  problems: 3\n  problems: 4\n", "line 3", "on line 2"),
        ("twice.json", b'{"steps": 3, "steps": 4}', "'steps' is there twice"),
        ("torn.json", b'{"steps": 3,\n', "line 2"),
        ("tab.yaml", b"batch:\n\tproblems: 3\n", "line 2", "a tab", "spaces"),
        ("list.yaml", b"- steps: 3\n", "a list at the top level"),
        ("word.yaml", b"steps\n", "a single value at the top level"),
        ("two.yaml", b"steps: 3\n---\nsteps: 4\n", "line 2", "second document"),
        ("itself.yaml", b"data: &d {train: *d}\n", "contains itself"),
        ("number.yaml", b"steps: !!int ten\n", "not valid YAML"),
        ("latin.yaml", b"name: caf\xe9\n", "not UTF-8"),
        ("dotted.yaml", b"batch.problems: 3\n", "unknown key 'batch.problems'", "'batch:'"),
        ("folder", None, "Is a directory"),
        ("steps=3", None, "put the file before all settings"),
        ("quoted.yaml", b'steps: "10"\n', "steps is '10' in quoted.yaml"),
        ("unset.yaml", b"run_dir: ${UNSET}/x\n", "unset.yaml: run_dir", "UNSET"),
    ):
        if isinstance(content, bytes):
            Path(name).write_bytes(content)
        sentence = refusal(name)
        for part in (name, *expected):
            assert str(part) in sentence, (name, sentence)


def test_an_anchor_used_twice_is_two_values() -> None:
    Path("run.yaml").write_text("data: {train: &d {size: 5}, evaluation: *d}\n")
    data = load_config(Path("run.yaml"), ["data.train.size=7"]).data
    assert (value_at(data, "train.size"), value_at(data, "evaluation.size")) == (7, 5)


def test_other_configurations_read_the_same_way() -> None:
    words = ["agents=uniform,bandit", "environment.corpus.source=datasets"]
    config = load_config(None, words, EconomicsEvaluationConfig)
    assert config.agents == ("uniform", "bandit")
    ratios = load_config(None, ["measure.ratios=0.5,1"], ReflectionConfig).measure.ratios
    assert ratios == (0.5, 1.0)


def test_values_within_lists_of_sections_are_meant_too() -> None:
    tree: dict[str, Any] = load_tables()
    assert as_meant(tree, EconomicsEvaluationConfig) == {
        "environment": {
            "corpus": {
                "source": "datasets",
                "tables": [{"types": ["a", "b"], "subset": None}],
                "prod": True,
            }
        }
    }


def load_tables() -> dict[str, Any]:
    from rlsys.config.reading import parse_value

    value: dict[str, Any] = parse_value(
        "environment: {corpus: {source: datasets, prod: yes, "
        "tables: [{types: !!seq [a, b], subset: none}]}}"
    )
    return value


def test_non_finite_numbers_are_refused_in_code_too() -> None:
    with pytest.raises(ValueError, match="finite"):
        RunConfig.model_validate({"learner": {"optimizer": {"learning_rate": float("inf")}}})


def test_settings_may_be_typed_as_options_of_a_command() -> None:
    words = ["--steps", "3", "--batch.problems=4", "+name=x", "--seed", "7"]
    shown = CliRunner().invoke(app, ["config", "show", "run.yaml", *words])
    tree = yaml.safe_load(shown.stdout)
    assert [tree["steps"], tree["batch"]["problems"], tree["name"], tree["seed"]] == [3, 4, "x", 7]
    dry = CliRunner().invoke(app, ["train", "run.yaml", "--dryrun"])
    assert (dry.exit_code, "no option of this command" in dry.stderr) == (2, True)
    sft = CliRunner().invoke(app, ["config", "show", "--sft", "run.yaml", "--rows_per_step", "9"])
    assert yaml.safe_load(sft.stdout)["rows_per_step"] == 9
