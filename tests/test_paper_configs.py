"""configs/paper: every run of the page loads, is as published, and dry-runs.

Models are folders with the sizes of the real ones and no weights; data are a few rows.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from families import family_tokenizer
from paper_page import EVALUATION, PAGE, PAPER, REFLECTION, ROOT, RUNS, SFT, variants
from safetensors.torch import save_file
from tokenizers import AddedToken
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.config import AnytimeConfig, BrpoConfig, ReaConfig, RunConfig, SftConfig
from rlsys.config.base import Section
from rlsys.config.evaluation_sets import SetsConfig
from rlsys.config.loading import load_config
from rlsys.config.reflection import ReflectionConfig
from rlsys.evaluation.preparation import prepare
from rlsys.launch.supervised import load_rows
from rlsys.reflection.labelling.workspace import Workspace


@pytest.fixture(scope="module")
def plans() -> Iterator[ModuleType]:
    """benchmarks/paper_plans.py: the sizes of the models, and the cards of the runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("paper_plans")


@pytest.fixture(scope="module")
def models(plans: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for every model: its config.json, a small tokenizer, and one number as weights."""
    tokenizer = family_tokenizer("qwen2.5")
    for text in ("<think>", "</think>", " Think", " Result"):
        tokenizer.add_tokens([AddedToken(text, normalized=False)])
    folders = {}
    for name, settings in plans.SETTINGS.items():
        folder = tmp_path_factory.mktemp("models") / name.replace("/", "-")
        tokenizer.save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps(settings))
        save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
        folders[name] = folder
    return folders | {made: folders[name] for made, name in plans.TRAINED_FROM.items()}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with the columns of all the data that configs/paper reads."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    row = {
        **{"problem": "1+1?", "answer": "2", "type": "GSM_SV"},
        **{"response": " Think", "chosen": "2", "rejected": "3"},
    }
    path.write_text("".join(json.dumps({**row, "id": str(i)}) + "\n" for i in range(500)))
    return path


@pytest.fixture(autouse=True)
def _cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run counts the cards of this machine, which has as many as any run needs."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 16)


def stubbed(config: RunConfig, models: dict[str, Path], rows: Path) -> list[str]:
    """Settings that put folders of this test in the place of models and data."""
    words = [f"model.path={models[config.model.path]}"]
    if config.revision is not None:
        words += [f"environment.revision.model.path={models[config.revision.model.path]}"]
    if config.environment.type == "economics":
        table = (
            f"[{{name: rows, path: [{rows}], question: problem, answer: answer, type: type, "
            "types: [GSM_SV]}]"
        )
        corpora = ("episode.corpus", "evaluation_corpus")
        return [*words, *(f"environment.{corpus}.tables={table}" for corpus in corpora)]
    return [*words, f"data.train.path={rows}", f"data.evaluation.path={rows}"]


def brpo(config: RunConfig) -> tuple[object, ...]:
    environment, algorithm = config.environment, config.algorithm
    assert isinstance(environment, AnytimeConfig)
    chosen = (environment.answers, environment.budgets, config.evaluation.answers)
    if not isinstance(algorithm, BrpoConfig):
        return (*chosen, algorithm.method)
    return (*chosen, algorithm.prior, algorithm.mode, algorithm.answer_method)


FOUR = (2000, 4000, 6000, 8000)
EIGHT = (2000, 4000, 6000, 8000, 10000, 12000, 14000, 16000)
BRPO_8K = {
    "AR-uniform": (4, FOUR, 4, "uniform", "brpo", "brpo"),
    "AR-linear": (4, FOUR, 4, "linear", "brpo", "brpo"),
    "AR-base, which is GRPO + decouple + variance reduction": (
        *(4, FOUR, 4, "base", "brpo", "brpo"),
    ),
    "GRPO": (1, (8000,), 1, "grpo"),
    "GRPO + linear": (1, FOUR, 1, "linear", "v2only", "grpo"),
    "GRPO + decouple": (4, FOUR, 4, "base", "v2only", "brpo"),
    "GRPO + variance reduction": (1, FOUR, 1, "base", "brpo", "grpo"),
}
BRPO_16K = {
    "uniform": (2, EIGHT, 2, "uniform", "brpo", "brpo"),
    "linear": (2, EIGHT, 2, "linear", "brpo", "brpo"),
    "base": (2, EIGHT, 2, "base", "brpo", "brpo"),
    "GRPO": (1, (16000,), 1, "grpo"),
}


def test_brpo_is_as_published() -> None:
    for file, expected, budget, batch, constant, epochs, evaluated in (
        ("brpo_8k.yaml", BRPO_8K, 8000, (64, 8, 2), 10176, 1, (20, 32, FOUR)),
        (
            *("brpo_16k.yaml", BRPO_16K, 16000, (128, 16, 2), 18176, 3),
            (40, 32, (4000, 8000, 12000, 16000)),
        ),
    ):
        found = {name: load_config(PAPER / file, words) for name, words in variants(file).items()}
        assert {name: brpo(config) for name, config in found.items()} == expected
        for config in found.values():
            assert (config.epochs, config.model.dtype) == (epochs, "bfloat16")
            assert config.model.path == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
            environment, loss, optimizer = (
                *(config.environment, config.loss, config.learner.optimizer),
            )
            assert isinstance(environment, AnytimeConfig)
            assert environment.longest_thought == budget
            assert environment.answer_tokens == 118
            assert environment.closing == "...\n\n...\n\n"
            assert environment.answer_header == "\n\n**Final Answer**\n"
            assert getattr(config.algorithm, "summary_weight", 1.0) == 1.0
            assert getattr(config.algorithm, "scale", "none") == "none"
            assert (loss.clip_low, loss.clip_high, loss.kl_coefficient) == (0.2, 0.2, 0.0)
            assert (loss.aggregation, loss.constant) == ("constant", constant)
            assert (loss.importance, loss.entropy_coefficient) == ("none", 0.0)
            step = config.batch
            assert (step.problems, step.group_size, step.optimizer_steps) == batch
            assert (optimizer.learning_rate, optimizer.weight_decay) == (1e-6, 0.01)
            assert (optimizer.betas, optimizer.max_grad_norm) == ((0.9, 0.999), 1.0)
            assert (optimizer.schedule, optimizer.warmup_steps) == ("constant", 0)
            assert (config.generation.temperature, config.rollout.max_staleness) == (1.0, 0)
            assert config.data.prompt.max_tokens == 1024
            evaluation = config.evaluation
            assert (evaluation.every, evaluation.samples, evaluation.budgets) == evaluated
            assert (evaluation.temperature, evaluation.top_p) == (0.6, 1.0)


def test_brpo_s_evaluation_is_as_published(
    models: dict[str, Path], rows: Path, tmp_path: Path
) -> None:
    config = load_config(PAPER / EVALUATION, [], SetsConfig)
    assert {name: one.samples for name, one in config.data.sets.items()} == {
        **{"amc22_23": 320, "aime24": 320, "math500": 80, "minerva": 80, "olympiadbench": 80}
    }
    assert config.environment.grid == tuple(range(250, 8001, 250))
    assert (config.environment.answer_tokens, config.temperature) == (118, 0.6)
    trained = load_config(PAPER / "brpo_8k.yaml")
    assert config.data.prompt == trained.data.prompt
    words = [f"model.path={models[config.model.path]}", f"run_dir={tmp_path}"]
    words += [f"data.sets.{name}.path={rows}" for name in config.data.sets]
    prepared = prepare(load_config(PAPER / EVALUATION, words, SetsConfig))
    assert {len(problems) for problems in prepared.problems.values()} == {500}


REA = {
    "REA-RL": (True, "refined", 225.09, 16),
    "GRPO": (False, "none", None, 16),
    "GRPO + length": (False, "length", None, 32),
    "without the reflection model": (False, "refined", 225.09, 32),
    "without the reflection reward": (True, "length", None, 16),
}


def test_rea_rl_is_as_published() -> None:
    found = {
        name: load_config(PAPER / "rearl.yaml", words)
        for name, words in variants("rearl.yaml").items()
    }
    chosen = {}
    for name, config in found.items():
        method, loss, learner = config.algorithm, config.loss, config.learner
        assert isinstance(method, ReaConfig)
        reward = None if method.reflection is None else method.reflection.tokens_per_reflection
        chosen[name] = (config.revision is not None, method.length, reward, config.batch.problems)
        assert config.environment.model_dump(exclude={"revision"}) == {
            **{"type": "reflection", "budget": 8000, "originals": "free", "answer_tokens": 1024},
            **{"think_end": "</think>", "closing": "\n"},
            "answer_header": "\n\n**Final Answer:**\n\n",
            "reflections": {
                **{"mode": "published", "gap": 59},
                "words": ("wait", "alternatively", "check", "but"),
            },
        }
        if (revision := config.revision) is not None:
            assert (revision.strength, revision.answer_tokens) == ("normal", 256)
            chunking = revision.detector.chunking
            assert (chunking.least, chunking.most) == (32, 128)
        assert (config.epochs, config.batch.group_size, config.batch.optimizer_steps) == (1, 4, 1)
        assert (loss.clip_low, loss.clip_high, loss.aggregation) == (0.2, 0.2, "token_mean")
        assert (loss.kl_coefficient, loss.kl_estimator, loss.importance) == (0.04, "k3", "none")
        optimizer = learner.optimizer
        assert (optimizer.learning_rate, optimizer.schedule) == (2e-5, "cosine")
        assert (optimizer.warmup_ratio, optimizer.weight_decay) == (0.1, 0.0)
        assert learner.lora is not None
        assert (learner.lora.rank, learner.lora.alpha) == (16, 32)
        assert (config.generation.temperature, config.rollout.max_staleness) == (0.6, 1)
        evaluation = config.evaluation
        assert (evaluation.temperature, evaluation.top_p) == (0.6, 0.95)
        assert (evaluation.samples, evaluation.budgets) == (8, (8192, 16384))
    assert chosen == REA


def test_supervised_parts_of_rea_rl_are_as_published(models: dict[str, Path], rows: Path) -> None:
    expected = {
        "rearl_reflection_sft.yaml": (1, 128, 8192, 0.03),
        "rearl_sft.yaml": (1, 128, 10240, 0.03),
        "rearl_rpo.yaml": (1800, 32, 10240, 0.1),
    }
    for file, (length, per_step, most, warmup) in expected.items():
        config = load_config(PAPER / file, [], SftConfig)
        optimizer, data = config.learner.optimizer, config.data
        assert data.source in ("file", "preferences")
        assert (config.epochs or config.steps, config.rows_per_step) == (length, per_step)
        assert (optimizer.learning_rate, optimizer.schedule) == (2e-5, "cosine")
        assert optimizer.warmup_ratio == warmup
        assert config.learner.lora is not None and config.learner.lora.rank == 16
        assert getattr(data, "max_tokens", None) == most
        assert (config.rpo.beta, config.rpo.alpha) == (0.1, 1.0)
        words = [f"model.path={models[config.model.path]}", f"data.path={rows}"]
        assert load_rows(load_config(PAPER / file, words, SftConfig)).samples(0, 2)


def test_the_reflection_model_s_data_are_as_published(
    models: dict[str, Path], rows: Path, tmp_path: Path
) -> None:
    config = load_config(PAPER / REFLECTION, [], ReflectionConfig)
    assert config.teacher.type == "engine"
    assert (config.teacher.model.path, config.teacher.gold) == ("Qwen/Qwen2.5-32B-Instruct", True)
    assert (config.problems, config.samples, config.rows.unanswered) == (40315, 1, False)
    assert (config.environment.budgets, config.generation.temperature) == ((8192,), 0.6)
    assert (config.environment.answer_tokens, config.rows.per_problem) == (1024, 4)
    words = [
        *(f"policy.path={models[config.policy.path]}", f"run_dir={tmp_path}"),
        *(f"data.train.path={rows}", f"data.evaluation.path={rows}"),
    ]
    place = Workspace.load(load_config(PAPER / REFLECTION, words, ReflectionConfig), 131_072)
    assert len(place.problems(held_out=False, tell=print)) == 500


@pytest.mark.parametrize(
    ("file", "problems", "mode", "reply", "batch", "ratio"),
    [
        ("economics_500m.yaml", 10, "hard", 2048, (4, 8), 4.0),
        ("economics_14b.yaml", 4, "soft", 128, (8, 2), 4.0),
    ],
)
def test_economics_is_as_published(
    file: str, problems: int, mode: str, reply: int, batch: tuple[int, int], ratio: float
) -> None:
    config = load_config(PAPER / file)
    environment: Any = config.environment
    episode = environment.episode
    assert (episode.problems, episode.mode, environment.reply_tokens) == (problems, mode, reply)
    assert (episode.rules, episode.coefficients) == ("compat", "D")
    assert (episode.budget_ratio, episode.total_budget, episode.min_tokens) == (ratio, None, 10)
    names = ["meta-math/MetaMathQA", "AI-MO/NuminaMath-TIR"]
    windows = {
        corpus: [(table.name, table.window) for table in tables]
        for corpus, tables in (
            ("training", episode.corpus.tables),
            ("evaluation", environment.evaluation_corpus.tables),
        )
    }
    assert windows == {
        "training": [(name, (0, 500)) for name in names],
        "evaluation": [(name, (500, 1000)) for name in names],
    }
    algorithm: Any = config.algorithm
    assert (algorithm.method, algorithm.credit, algorithm.scale) == ("turn_grpo", "episode", "std")
    assert (config.batch.problems, config.batch.group_size) == batch
    assert config.learner.optimizer.learning_rate == 5e-7
    assert config.generation.temperature == 1.0


@pytest.mark.parametrize("file", RUNS)
def test_every_run_dry_runs(file: str, models: dict[str, Path], rows: Path, tmp_path: Path) -> None:
    for name, words in (variants(file) or {"": ()}).items():
        config = load_config(PAPER / file, words)
        words = (*words, *stubbed(config, models, rows), f"run_dir={tmp_path / 'run'}")
        result = CliRunner().invoke(app, ["train", str(PAPER / file), *words, "--dry-run"])
        assert result.exit_code == 0, (name, result.output)
        if config.epochs is not None:
            steps = config.epochs * (500 // config.batch.problems)
            assert f"{config.epochs} epochs: {steps:,} steps" in result.stdout


def test_every_command_of_the_page_loads() -> None:
    """Evaluations, labelling and supervised runs; the settings of training runs are in tables."""
    schemas: dict[str, type[Section]] = {
        "eval": RunConfig,
        "eval sets": SetsConfig,
        "sft": SftConfig,
        "reflection": ReflectionConfig,
    }
    page = re.sub(r" \\\n *", " ", PAGE)
    lines = re.findall(
        r"(?:^ *|`)rlsys (eval sets|eval(?! compare)|sft|reflection)( [^`\n]*)", page, re.MULTILINE
    )
    shell = {"$set": "aime24", "$try": "2"}
    budgets = []
    for command, rest in lines:
        for name, value in shell.items():
            rest = rest.replace(name, value)
        file, *words = [word for word in rest.split() if "configs/" in word or "=" in word]
        config = load_config(ROOT / file, words, schemas[command])
        if isinstance(config, RunConfig):
            budgets.append(config.evaluation_budgets)
    assert budgets == [(8000,), (8192, 16384), (8192, 16384)]
    assert {file for _, rest in lines for file in re.findall("configs/paper/(.*?yaml)", rest)} == {
        *(EVALUATION, "rearl.yaml", REFLECTION, *SFT)
    }
