"""Loading: overrides, kinds of sections, every refusal as a sentence, and the way back to YAML."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlsys.config import (
    AnytimeConfig,
    ArithmeticData,
    BatchConfig,
    BrpoConfig,
    DataConfig,
    EvaluationConfig,
    FileData,
    GrpoConfig,
    HubData,
    LearnerConfig,
    LoraConfig,
    LossConfig,
    OptimizerConfig,
    PreferenceFile,
    PromptConfig,
    RunConfig,
    SftConfig,
    SupervisedFile,
)
from rlsys.config.base import Section
from rlsys.config.economics import DatasetsCorpus, EconomicsServerConfig
from rlsys.config.evaluation_sets import SetsConfig
from rlsys.config.loading import dump_config, load_config
from rlsys.config.reflection import ReflectionConfig
from rlsys.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


def write(folder: Path, tree: Any) -> Path:
    path = folder / "run.yaml"
    path.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value).replace(str(path), "run.yaml")


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")) == RunConfig()
    assert load_config(write(tmp_path, ""), [], SftConfig) == SftConfig()


def test_overrides_are_yaml_and_later_ones_win(tmp_path: Path) -> None:
    path = write(tmp_path, {"steps": 5, "batch": {"problems": 4}})
    config = load_config(
        path,
        [
            "steps=6",
            "steps=7",
            "batch.group_size=2",
            "environment.budgets=[8, 9]",
            "learner.optimizer.learning_rate=3e-4",
            "environment.closing=",
            "run_dir=runs/a=b",
        ],
    )
    assert config.steps == 7
    assert config.batch == BatchConfig(problems=4, group_size=2)
    assert isinstance(config.environment, AnytimeConfig)
    assert config.environment.budgets == (8, 9)
    assert config.learner.optimizer.learning_rate == 3e-4
    assert config.run_dir == Path("runs/a=b")


def test_a_section_without_its_kind_has_the_default_kind(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, ""), ["algorithm.prior=linear", "data.train.size=10"])
    assert config.algorithm == BrpoConfig(prior="linear")


def test_setting_one_key_of_a_section_leaves_its_other_defaults(tmp_path: Path) -> None:
    evaluation = load_config(write(tmp_path, ""), ["data.evaluation.size=4"]).data.evaluation
    assert evaluation == ArithmeticData(seed=1_000_003, size=4, held_out=True)


def test_defaults_that_are_lists_of_sections(tmp_path: Path) -> None:
    words = ["environment.corpus.source=datasets", "environment.corpus.prod=true"]
    corpus = load_config(write(tmp_path, ""), words, EconomicsServerConfig).environment.corpus
    assert corpus == DatasetsCorpus(prod=True)


def test_an_override_that_switches_the_kind_drops_the_other_kinds_keys(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "algorithm": {"method": "brpo", "prior": "linear"},
            "data": {"train": {"source": "arithmetic", "difficulty": [3, 4]}},
            "environment": {"budgets": [64], "answers": 1},
        },
    )
    words = ["data.train.path=[a.jsonl]", "data.train.source=file", "algorithm.method=grpo"]
    config = load_config(path, words)
    assert config.algorithm == GrpoConfig()
    assert config.data.train == FileData(path=(Path("a.jsonl"),))


def test_a_refusal_names_the_value_the_place_and_the_remedy(tmp_path: Path) -> None:
    cases: list[tuple[Any, list[str]]] = [
        ({"batch": {"problem": 3}}, ["'batch.problem'", "did you mean 'batch.problems'"]),
        (
            {"learner": {"lora": {"dropout": 0.05}}},
            ["'learner.lora.dropout'", "rank, alpha, target_modules"],
        ),
        (
            {"learner": {"lora": {"target_modules": []}}},
            ["learner.lora.target_modules", "empty", "[q_proj, v_proj]"],
        ),
        ({"budgets": [3]}, ["unknown key 'budgets'", "did you mean 'environment.budgets'"]),
        (
            {"data": {"train": {"path": ["a"]}}},
            ["'data.train.path'", "data.train.source 'file'", "data.train.source=file"],
        ),
        ({"steps": "10"}, ["steps is '10'", "integer"]),
        ({"steps": True}, ["steps is True", "integer"]),
        ({"steps": 0}, ["steps is 0", "greater than 0"]),
        ({"batch": 3}, ["batch is 3", "section of `key: value` lines"]),
        ({"environment": {"budgets": [1, "a"]}}, ["environment.budgets[1] is 'a'", "integer"]),
        (
            {"environment": {"budgets": [32, 16]}},
            ["environment.budgets [32, 16]", "increasing", "[16, 32, 64]"],
        ),
        (
            {"algorithm": {"prior": "unifrom"}},
            ["algorithm.prior is 'unifrom'", "'base', 'uniform' or 'linear'", "mean 'uniform'"],
        ),
        (
            {"algorithm": {"method": "brpoo"}},
            ["algorithm.method is 'brpoo'", "'dler', 'grpo', 'lcpo', 'rea'", "did you mean 'brpo'"],
        ),
        (
            {"data": {"train": {"source": "file"}}},
            ["data.train.path is missing", "data.train.path=VALUE"],
        ),
        (
            {"data": {"prompt": {"template": "hi"}}},
            ["data.prompt", "template 'hi'", "{problem}"],
        ),
        (
            {"batch": {"group_size": 1}},
            ["batch.group_size 1", "algorithm.method 'brpo'", "use 2 or more"],
        ),
        (
            {"batch": {"problems": 5, "optimizer_steps": 2}},
            ["batch.problems 5", "multiple of batch.optimizer_steps 2"],
        ),
        (
            {"environment": {"type": "economics", "episode": {"tokenizer": "nope/x"}}},
            ["environment.episode.tokenizer 'nope/x'", "no effect", "leave it out"],
        ),
        (
            {"environment": {"type": "economics", "episode": {"trusted": True}}},
            ["environment.episode.trusted True", "no effect", "leave it out"],
        ),
    ]
    for tree, words in cases:
        said = refusal(write(tmp_path, tree))
        for word in ["run.yaml", *words]:
            assert word in said, tree


def test_a_fault_of_a_word_is_placed_on_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, {"batch": {"problems": 4}})
    assert refusal(path, "batch.groupsize=3", "steps=x") == (
        "steps is 'x' on the command line but should be a valid integer\n"
        "unknown key 'batch.groupsize' on the command line; did you mean 'batch.group_size'?"
    )


def test_without_a_file_every_fault_is_of_the_command_line() -> None:
    def refused(*words: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load_config(None, words, EconomicsServerConfig)
        return str(caught.value)

    assert refused("environment.total_budget=5").startswith(
        "the command line: environment: a budget of 5 tokens is less than min_tokens 10"
    )
    assert refused("environment.port=5").startswith(
        "unknown key 'environment.port' on the command line"
    )
    assert load_config(None, ["port=1"], EconomicsServerConfig).port == 1


def test_words_that_are_no_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, {"steps": 5})
    assert refusal(path, "steps") == (
        "'steps' must be key.path=value, for instance batch.problems=16"
    )
    assert "goes into 'steps', which is a value" in refusal(path, "steps.more=3")
    assert "is not valid YAML" in refusal(path, "name=[1")


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    assert refusal(tmp_path / "run.yaml") == (
        "cannot read the configuration run.yaml: No such file or directory; "
        "give the path of a YAML file, or a name that ships with rlsys, for instance demo"
    )
    assert refusal(write(tmp_path, "steps: 3\nname: [a\nseed: 1\n")).startswith(
        "run.yaml is not valid YAML: line 3:"
    )
    assert refusal(write(tmp_path, "- a\n- b\n")) == (
        "run.yaml is a list at the top level; it must hold `key: value` lines"
    )


text = st.text(st.characters(codec="utf-8"), max_size=12)
positive = st.integers(1, 10**6)
number = st.floats(1e-9, 1e9)
fraction = st.floats(1e-6, 1.0)
paths = st.lists(st.from_regex(r"[a-z0-9:#' ]{1,8}\.jsonl", fullmatch=True), min_size=1).map(
    lambda names: tuple(map(Path, names))
)
budgets = st.sets(positive, min_size=1, max_size=6).map(lambda found: tuple(sorted(found)))
prompts = st.builds(
    PromptConfig,
    template=text.map(lambda t: t + "{problem}"),
    system=st.none() | text,
    examples=st.lists(st.tuples(text, text), max_size=2).map(tuple),
    prefill=text,
)
sources = st.builds(FileData, path=paths, limit=st.none() | positive) | st.builds(
    HubData, name=text, subset=st.none() | text
)
learners = st.builds(
    LearnerConfig,
    lora=st.none() | st.builds(LoraConfig, rank=positive, alpha=number),
    optimizer=st.builds(OptimizerConfig, learning_rate=number, betas=st.tuples(fraction, fraction)),
)
runs = st.builds(
    RunConfig,
    name=text,
    data=st.builds(DataConfig, train=sources, prompt=prompts),
    environment=st.builds(
        AnytimeConfig, budgets=budgets, answers=st.integers(1, 9), closing=text, think_end=text
    ),
    algorithm=st.builds(BrpoConfig, prior=st.sampled_from(["base", "uniform", "linear"])),
    loss=st.builds(LossConfig, clip_low=fraction, importance_cap=number | st.just(float("inf"))),
    batch=st.builds(BatchConfig, group_size=st.integers(2, 64)),
    learner=learners,
    evaluation=st.builds(EvaluationConfig, budgets=st.none() | budgets),
)
sfts = st.builds(
    SftConfig,
    data=st.builds(SupervisedFile, path=paths, prompt=prompts)
    | st.builds(PreferenceFile, path=paths, prompt=prompts),
    learner=learners,
)
shared_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
    deadline=None,
)


@shared_folder
@given(config=runs)
def test_a_run_survives_the_way_through_yaml(tmp_path: Path, config: RunConfig) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config


def test_text_that_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    for name in ("1e5", "0E0", "3.5", "true", "null", "~", "12", ""):
        path = write(tmp_path, dump_config(RunConfig(name=name)))
        assert load_config(path).name == name


@shared_folder
@given(config=sfts)
def test_supervised_runs_survive_too(tmp_path: Path, config: SftConfig) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path, [], SftConfig) == config


def test_every_field_is_documented_in_the_schema() -> None:
    undocumented = [
        f"{section}.{name}"
        for schema in (RunConfig.model_json_schema(), SftConfig.model_json_schema())
        for section, definition in schema["$defs"].items()
        for name, field in definition["properties"].items()
        if len(field.keys() - {"default", "const"}) == 0
    ]
    assert undocumented == []


def test_every_shipped_configuration_loads() -> None:
    for path in CONFIGS:
        words = ["data.train.path=[train.jsonl]"] if path.name.startswith("smollm2") else []
        schema: type[Section] = RunConfig
        if path.name.startswith("sft_"):
            schema = SftConfig
        elif path.name.startswith("reflection_"):
            schema = ReflectionConfig
        elif path.name.startswith("eval_"):
            schema = SetsConfig
        load_config(path, words, schema)


@pytest.mark.parametrize(("baseline", "length"), [("grpo", "none"), ("grpo_length", "length")])
def test_baselines_of_rea_rl_differ_in_nothing_else(baseline: str, length: str) -> None:
    folder = CONFIGS[0].parent
    taken_away = ["environment.revision=null", "algorithm.reflection=null"]
    rearl = load_config(folder / "rearl_tiny.yaml", [*taken_away, f"algorithm.length={length}"])
    names = ["name=rearl-tiny", "run_dir=runs/rearl-tiny"]
    assert load_config(folder / f"rearl_tiny_{baseline}.yaml", names) == rearl


def test_the_configuration_needs_no_heavy_library() -> None:
    code = (
        "import sys, rlsys.config.loading\n"
        "heavy = {'torch', 'transformers', 'datasets', 'ray', 'vllm', 'deepspeed', 'sympy'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_runs_on_gpus_are_asynchronous_unless_they_say_otherwise(tmp_path: Path) -> None:
    path, learner, engines = tmp_path / "run.yaml", "learner.gpus_per_rank", "generation.gpus_per"
    path.write_text("{}")
    for words, expected in (
        ([], 0),
        ([f"{learner}=1"], 0),
        ([f"{learner}=1", f"{engines}_engine=1"], 1),
        ([f"{learner}=0.5", f"{engines}_engine=0.5"], 1),
        ([f"{learner}=1", f"{engines}_engine=1", "rollout.max_staleness=0"], 0),
        (["rollout.max_staleness=2"], 2),
        (["rollout.max_staleness=null"], 0),
    ):
        config = load_config(path, words)
        assert (config.rollout.max_staleness, config.max_staleness) == (expected,) * 2, words
        assert "max_staleness: " + str(expected) in dump_config(config)


def test_an_offloaded_optimizer_needs_divided_gradients(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("learner: {optimizer: {offload: cpu}}")
    with pytest.raises(ConfigError, match=r"offload 'cpu' needs learner.zero_stage 2 or 3.* is 1"):
        load_config(path, [])
    assert load_config(path, ["learner.zero_stage=2"]).learner.optimizer.offload == "cpu"


def test_checkpointing_is_a_switch_a_number_of_layers_or_auto() -> None:
    cases = [("true", True), ("false", False), ("auto", "auto"), ("12", 12), ("1", 1), ("0", 0)]
    for word, expected in cases:
        words = [f"learner.gradient_checkpointing={word}"]
        found = load_config(None, words, RunConfig).learner
        assert found.gradient_checkpointing == expected
        assert type(found.gradient_checkpointing) is type(expected), word
    for word in ("some", "-1", "2.5", "null"):
        with pytest.raises(ConfigError, match=r"must be true, false, auto, or a number of layers"):
            load_config(None, [f"learner.gradient_checkpointing={word}"], RunConfig)
