"""What is found out before Ray starts: the model, the prompts, their lengths, the machines."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlsys.config import (
    AnytimeConfig,
    ArithmeticData,
    BatchConfig,
    DataConfig,
    EconomicsDialogue,
    EvaluationConfig,
    FileData,
    GenerationConfig,
    GradingConfig,
    LearnerConfig,
    ModelConfig,
    OpenEnvDialogue,
    PromptConfig,
    RunConfig,
    SyncConfig,
    TurnGrpoConfig,
)
from rlsys.errors import ConfigError, DataError, ModelError, ResourceError
from rlsys.launch.inputs import check_inputs
from rlsys.launch.preflight import (
    batch_table,
    check_batch,
    check_local_gpus,
    check_resources,
    check_shares,
)
from rlsys.sft.tiny_model import TINY_ENVIRONMENT, build_tiny
from rlsys.tokenization.model_folder import check_model
from rlsys.types import Problem


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained tiny reasoner: 1,024 positions, four heads of size 32."""
    return build_tiny(tmp_path_factory.mktemp("models") / "tiny", seed=0)


def run_of(model: Path, **sections: Any) -> RunConfig:
    data = DataConfig(train=ArithmeticData(size=20), evaluation=ArithmeticData(seed=1, size=20))
    defaults = {"data": data, "environment": TINY_ENVIRONMENT}
    return RunConfig(model=ModelConfig(path=str(model)), **{**defaults, **sections})


def test_good_inputs_come_back_loaded(tiny: Path) -> None:
    config = run_of(
        tiny, evaluation=EvaluationConfig(problems=5), sync=SyncConfig(canary_prompts=2)
    )
    inputs = check_inputs(config)
    assert (len(inputs.train), len(inputs.evaluation)) == (20, 5)
    assert len(inputs.canary) == 2
    assert inputs.longest_sequence == 1024  # the prompt may fill what the episode leaves
    assert inputs.summary == (
        "20 training and 5 held-out problems; sequences of at most 1,024 tokens"
    )


def test_the_longest_sequence_counts_what_is_forced(tiny: Path) -> None:
    # prompt 20 + thought 64 + closing 0 + </think> 1 + header 2 + answer 6
    data = DataConfig(
        train=ArithmeticData(size=5),
        evaluation=ArithmeticData(size=5),
        prompt=PromptConfig(max_tokens=20),
    )
    assert check_inputs(run_of(tiny, data=data)).longest_sequence == 93


def test_long_prompts_are_dropped_and_counted(tiny: Path, tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    rows = [{"problem": "1+1", "answer": "2"}, {"problem": "1+1+1+1+1+1+1+1", "answer": "8"}]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = FileData(path=(problems,))
    data = DataConfig(train=source, evaluation=source, prompt=PromptConfig(max_tokens=10))
    inputs = check_inputs(run_of(tiny, data=data))
    assert [task.text for task in inputs.train if isinstance(task, Problem)] == ["1+1"]
    assert "2 dropped" in inputs.summary


def test_a_run_with_only_long_prompts_is_refused(tiny: Path) -> None:
    data = DataConfig(train=ArithmeticData(size=5), prompt=PromptConfig(max_tokens=3))
    with pytest.raises(DataError, match=r"all 5 prompts have more than data.prompt.max_tokens 3"):
        check_inputs(run_of(tiny, data=data))


@pytest.mark.parametrize(("largest", "left"), [(1020, 0), (1010, 5)])
def test_budgets_beyond_the_models_length_are_refused(tiny: Path, largest: int, left: int) -> None:
    environment = TINY_ENVIRONMENT.model_copy(update={"budgets": (16, largest)})
    with pytest.raises(ModelError) as caught:
        check_inputs(run_of(tiny, environment=environment))
    for part in (f"needs {largest + 9} tokens", "1024 in all", f"leaves {left} for", "budgets"):
        assert part in str(caught.value)


def test_evaluation_budgets_count_too(tiny: Path) -> None:
    with pytest.raises(ModelError, match="needs 5009 tokens after the prompt"):
        check_inputs(run_of(tiny, evaluation=EvaluationConfig(budgets=(16, 5000))))


def test_an_end_of_thought_that_the_tokenizer_cannot_write_is_refused(tiny: Path) -> None:
    environment = AnytimeConfig(think_end="→")
    with pytest.raises(ModelError, match="think_end '→' cannot be written"):
        check_inputs(run_of(tiny, environment=environment))


def test_a_model_is_limited_by_the_configuration_and_by_itself(tiny: Path) -> None:
    assert check_model(ModelConfig(path=str(tiny)), on_cpu=True) == 1024
    assert check_model(ModelConfig(path=str(tiny), max_length=512), on_cpu=True) == 512
    with pytest.raises(ModelError, match="max_length 2048 is more than the 1024 positions"):
        check_model(ModelConfig(path=str(tiny), max_length=2048), on_cpu=True)


def test_a_model_folder_must_be_whole(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no settings \(config.json\)"):
        check_model(ModelConfig(path=str(tmp_path)), on_cpu=True)
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    with pytest.raises(ModelError, match=r"has no weights \(\*.safetensors or"):
        check_model(ModelConfig(path=str(tmp_path)), on_cpu=True)
    with pytest.raises(ModelError, match="model folder '/no/such/model' does not exist"):
        check_model(ModelConfig(path="/no/such/model"), on_cpu=True)


def test_head_sizes_without_a_cpu_kernel_are_refused_on_the_cpu(tiny: Path, tmp_path: Path) -> None:
    settings = json.loads((tiny / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "head_dim": 16}))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert check_model(ModelConfig(path=str(tmp_path)), on_cpu=False) == 1024
    with pytest.raises(ModelError, match="attention heads of size 16, but engines on the CPU"):
        check_model(ModelConfig(path=str(tmp_path)), on_cpu=True)


def test_the_batch_table_multiplies_out() -> None:
    config = RunConfig(
        batch=BatchConfig(problems=16, group_size=8, optimizer_steps=2),
        environment=AnytimeConfig(budgets=(16, 64), answers=3, answer_tokens=6),
        learner=LearnerConfig(ranks=2),
    )
    console = Console(width=120)
    with console.capture() as shown:
        console.print(batch_table(config))
    counts = [line.split("│")[2].strip() for line in shown.get().splitlines() if "│" in line]
    # 16 * 8 = 128 episodes, each 2 * 3 scores and 64 + 6 * 6 = 100 tokens
    assert counts == ["16", "128", "768", "12,800", "64", "6,400"]


def test_a_rank_without_an_episode_is_refused() -> None:
    config = RunConfig(batch=BatchConfig(problems=2, group_size=2), learner=LearnerConfig(ranks=8))
    with pytest.raises(ConfigError, match=r"learner\.ranks 8 is more than the 4 episodes"):
        check_batch(config)
    shared = LearnerConfig(ranks=8, sequence_ranks=2)  # four parts of the rows
    check_batch(config.model_copy(update={"learner": shared}))


def cards(**numbers: Any) -> RunConfig:
    return RunConfig(
        learner=LearnerConfig(
            ranks=numbers.get("ranks", 1), gpus_per_rank=numbers.get("gpus_per_rank", 0)
        ),
        generation=GenerationConfig(
            engines=numbers.get("engines", 1),
            tensor_parallel=numbers.get("tensor_parallel", 1),
            gpus_per_engine=numbers.get("gpus_per_engine", 0),
        ),
    )


def test_clusters_that_suffice() -> None:
    cases: list[tuple[RunConfig, list[dict[str, float]]]] = [
        (cards(), [{"CPU": 4.0}]),
        (cards(gpus_per_rank=0.5, gpus_per_engine=0.5), [{"CPU": 4.0, "GPU": 1.0}]),
        (cards(gpus_per_rank=1, gpus_per_engine=1), [{"CPU": 4.0, "GPU": 2.0}]),
        (
            cards(ranks=2, gpus_per_rank=1, gpus_per_engine=2, tensor_parallel=2),
            [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 2.0}],
        ),
        (
            cards(ranks=2, engines=2, gpus_per_rank=0.4, gpus_per_engine=0.6),
            [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 1.0}],
        ),
    ]
    for config, nodes in cases:
        check_shares(config)
        check_resources(config, nodes)


def test_the_impossible_bundle_is_shown() -> None:
    cases: list[tuple[RunConfig, list[dict[str, float]], str]] = [
        (cards(gpus_per_rank=1), [{"CPU": 4.0}], "learner rank 1 of 1 {CPU: 1, GPU: 1}"),
        (
            cards(gpus_per_rank=1, gpus_per_engine=1),
            [{"CPU": 4.0, "GPU": 1.0}],
            "engine 1 of 1 {CPU: 1, GPU: 1}",
        ),
        (
            # Four cards, but no node with two for the engine.
            cards(gpus_per_engine=2, tensor_parallel=2),
            [{"CPU": 8.0, "GPU": 1.0}] * 4,
            "engine 1 of 1 {CPU: 1, GPU: 2}",
        ),
        (
            cards(ranks=2, gpus_per_rank=0.5, gpus_per_engine=0.5),
            [{"CPU": 8.0, "GPU": 1.0}],
            "shared GPU 2 of 2 {CPU: 2, GPU: 1}",
        ),
        (cards(), [{"CPU": 2.0}], "environment actor 1 of 1 {CPU: 1}"),
    ]
    for config, nodes, bundle in cases:
        with pytest.raises(ResourceError) as caught:
            check_resources(config, nodes)
        said = str(caught.value)
        assert said.startswith(f"{bundle} fits on no node: the nodes have {{CPU: "), nodes


def test_shares_that_no_machine_could_give() -> None:
    cases: list[tuple[RunConfig, str]] = [
        (cards(gpus_per_rank=2), "learner.gpus_per_rank 2 is more than the one GPU"),
        (cards(gpus_per_engine=1.5), "gpus_per_engine 1.5 does not match"),
        (cards(gpus_per_engine=1, tensor_parallel=2), "gpus_per_engine 1 does not match"),
        (cards(gpus_per_rank=0.6, gpus_per_engine=0.5), "add up to 1.1; lower them to a sum of 1"),
    ]
    for config, sentence in cases:
        with pytest.raises(ConfigError, match=sentence):
            check_shares(config)


def test_local_cards_are_counted_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_local_gpus(cards())
    check_local_gpus(cards(gpus_per_rank=0.5, gpus_per_engine=0.5))
    with pytest.raises(ResourceError, match=r"\{CPU: any, GPU: 1\}, .*; set RAY_ADDRESS=auto"):
        check_local_gpus(cards(gpus_per_rank=1, gpus_per_engine=1))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    check_local_gpus(cards(gpus_per_rank=1, gpus_per_engine=1))


def test_services_need_cores_of_a_cluster() -> None:
    config = RunConfig(grading=GradingConfig(actors=4))
    check_resources(config, [{"CPU": 7.0}])
    with pytest.raises(ResourceError, match="grading actor 4 of 4"):
        check_resources(config, [{"CPU": 6.0}])


URL, OTHER = "http://127.0.0.1:8000", "http://127.0.0.1:8001"
TEXTS = {"observation_field": "text", "action_field": "text"}


def test_evaluations_on_the_training_server_are_warned_of() -> None:
    cases: list[tuple[Any, bool]] = [
        (TINY_ENVIRONMENT, False),
        (EconomicsDialogue(), False),
        (EconomicsDialogue(url=URL), True),
        (EconomicsDialogue(url=URL, evaluation_url=OTHER), False),
        (EconomicsDialogue(url=URL, evaluation_url=URL), False),
        (OpenEnvDialogue(url=URL, **TEXTS), True),
        (OpenEnvDialogue(url=URL, evaluation_url=OTHER, **TEXTS), False),
    ]
    for environment, warned in cases:
        changes = {} if environment is TINY_ENVIRONMENT else {"algorithm": TurnGrpoConfig()}
        sentence = RunConfig(environment=environment, **changes).environment.evaluation_warning
        assert (sentence is not None and URL in sentence) == warned, environment
