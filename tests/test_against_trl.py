"""The comparison with TRL: its figures, and that both sides do the same work."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sample_parts import advantages_of

from rlsys.algorithms.samples import build_samples
from rlsys.assets import shipped_path
from rlsys.config import PromptConfig, RunConfig
from rlsys.config.data import ArithmeticData
from rlsys.config.loading import load_config
from rlsys.data.problems import load_problems
from rlsys.planning.cards import CARDS
from rlsys.planning.plan import Shapes, plan_run
from rlsys.planning.shape import shape_of
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import NO_PARENT, Episode, Group, Kind, Problem, Segment

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("against_trl")


def rows(*ends: float) -> list[dict[str, float]]:
    """Steps that end at these times; the first one took 30 s."""
    others = {"time/step": 30.0, "thought/length": 512.0, "grad_norm": 0.5}
    return [{"time": end, **others} for end in ends]


def test_the_first_two_steps_are_not_measured(script: ModuleType) -> None:
    found = script.measures(rows(100, 101, 109, 113, 118), completions=256)
    assert found["steps_s"] == [30, 1, 8, 4, 5]
    assert found["step_s"] == 5
    assert found["tokens_per_step"] == 131_072
    assert found["tokens_per_s"] == 26_214
    assert script.measures(rows(100, 108), completions=256)["step_s"] == 8
    assert script.measures(rows(100, 108, 112), completions=256)["step_s"] == 4


def test_ratios_take_the_last_row_of_a_side(script: ModuleType) -> None:
    found = [
        {"side": "trl", "tokens_per_s": 10},
        {"side": "rlsys", "error": "0 steps"},
        {"over_trl": {}},
        {"side": "rlsys", "tokens_per_s": 15},
        {"side": "trl", "tokens_per_s": 20},
    ]
    assert script.ratios(found) == {"over_trl": {"rlsys": 0.75}}
    assert script.ratios(found[1:4]) == {"over_trl": {}}


def test_both_sides_take_the_same_steps(script: ModuleType) -> None:
    load = script.Load()
    theirs = script.trl_settings(load, on_gpu=True)
    words = script.rlsys_settings(load, on_gpu=True, ahead=True)
    config = load_config(None, words, RunConfig)
    batch = theirs["per_device_train_batch_size"] * theirs["gradient_accumulation_steps"]
    assert batch == config.batch.episodes == 256
    assert theirs["num_generations"] == config.batch.group_size
    assert theirs["learning_rate"] == config.learner.optimizer.learning_rate
    assert theirs["max_completion_length"] == config.environment.curve_budgets[-1] == 512
    assert config.rollout.max_staleness == 1

    sizes = importlib.import_module("speed_model").SHAPES[load.shape]
    shape = {"model_type": "qwen2", "tie_word_embeddings": True, **sizes}
    assert plan_run(config, Shapes(policy=shape_of(shape)), CARDS["h200"]).faults == ()


def test_both_sides_read_the_same_prompts_of_one_length(script: ModuleType) -> None:
    load = script.Load()
    tokenizer = load_tokenizer(str(shipped_path("tiny")))
    renderer = PromptRenderer(tokenizer, PromptConfig())
    data = ArithmeticData(size=8, difficulty=(load.numbers, load.numbers))
    for problem in load_problems(data):
        ids = renderer.render(problem).tolist()
        assert len(ids) == load.prompt_tokens
        turns = [{"role": "user", "content": problem.text}]
        rendered = tokenizer.apply_chat_template(turns, add_generation_prompt=True)
        assert rendered["input_ids"] == ids


def test_half_of_a_group_has_the_advantage_of_a_right_answer(script: ModuleType) -> None:
    """All answers are wrong here, as those of a model with random weights."""
    thought = Segment(
        parent=0,
        cut=3,
        kind=Kind.THOUGHT,
        token_ids=np.zeros(2, np.int32),
        logprobs=np.zeros(2, np.float32),
        versions=(0, 0),
    )
    prompt = Segment(parent=NO_PARENT, cut=0, kind=Kind.PROMPT, token_ids=np.zeros(3, np.int32))
    wrong = Episode(
        segments=(prompt, thought),
        scores=np.zeros(1, np.float32),
        answer_segments=np.ones(1, np.int32),
        splits=np.zeros(1, np.int32),
        verdicts=np.zeros(1, np.int8),
    )
    task = Problem(id="p", text="1+1", answer="2")
    group = Group(index=0, task=task, episodes=(wrong,) * 4)
    words = ["algorithm.method=benchmarks.alternating_rewards:AlternatingRewards"]
    config = load_config(
        None, [*words, "environment.budgets=[8]", "environment.answers=1"], RunConfig
    )
    samples = build_samples(group, config)
    # (reward - 1/2) / sqrt(1/3), the deviation of 0, 1, 0, 1 with divisor 3.
    advantages = [advantages_of(sample, 1).tolist() for sample in samples]
    expected = [[-0.8659] * 2, [0.8659] * 2] * 2
    assert_allclose(advantages, expected, atol=1e-4)
