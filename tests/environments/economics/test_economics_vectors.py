"""The worked numbers of whole episodes, through reset and step, under both rules."""

from pathlib import Path
from typing import Any

import pytest
from economics_play import box, environment, episode_of, play, question_of

from rlsys.environments.economics.models import EconomicsAction, EconomicsObservation

RULES = pytest.mark.parametrize("rules", ["default", "compat"])


def near(value: float | list[float]) -> Any:
    return pytest.approx(value, abs=1e-9)


def rewards(observations: list[EconomicsObservation]) -> list[float]:
    return [observation.reward for observation in observations]


@RULES
def test_v1_v2_first_answers(tmp_path: Path, rules: str) -> None:
    env = environment(tmp_path, rules=rules)
    expected = {
        (True, 100): 1.05,
        (True, 200): 1.0,
        (True, 300): 0.925,
        (False, 100): -0.1,
        (False, 300): -0.125,
    }
    for (correct, words), reward in expected.items():
        assert rewards(play(env, [(correct, words)], total_budget=2000)) == near([reward])


@RULES
def test_v3_ten_right_answers(tmp_path: Path, rules: str) -> None:
    env = environment(tmp_path, rules=rules)
    seen = play(env, [(True, 180)] * 10, seed=1, total_budget=2000)
    assert rewards(seen) == near([1.01] * 9 + [1.51])
    assert (seen[0].remaining_budget, seen[0].questions_remaining) == (1820.0, 9)
    assert seen[0].budget_per_remaining == pytest.approx(202.2222, abs=1e-4)
    assert [o.done for o in seen] == [False] * 9 + [True]
    assert seen[-1].stop_reason == "answered"
    assert (seen[-1].question, seen[-1].budget_per_remaining) == ("", 0.0)
    assert env.state.spent_budget == 1800
    assert env.state.budget_remaining_ratio == near(0.1)


@RULES
def test_v4_mixed_answers(tmp_path: Path, rules: str) -> None:
    env = environment(tmp_path, rules=rules)
    words = [100, 300, 200, 200, 200, 200, 200, 200, 150, 50]
    right = [letter == "T" for letter in "TFTTFTTTFT"]
    seen = play(env, zip(right, words, strict=True), total_budget=2000)
    assert rewards(seen) == near([1.05, -0.125, 1, 1, -0.1, 1, 1, 1, -0.1, 1.425])
    assert seen[-1].accuracy_so_far == near(0.7)
    assert [entry.tokens_used for entry in seen[-1].history] == words
    assert [entry.was_correct for entry in seen[-1].history] == right


@RULES
@pytest.mark.parametrize("allow_negative", [True, False])
def test_v5_v6_b8_overspend(tmp_path: Path, rules: str, allow_negative: bool) -> None:
    env = environment(tmp_path, rules=rules, mode="soft", allow_negative=allow_negative)
    seen = play(env, [(False, 30)] * 10, total_budget=100)
    cumulative = rules == "compat" and allow_negative
    assert sum(rewards(seen)) == near(-21.25 if cumulative else -7.0)
    if not cumulative:
        assert rewards(seen) == near([-0.2] * 3 + [-0.7] + [-0.95] * 6)
    assert env.state.spent_budget == 300
    assert seen[-1].remaining_budget == (-200.0 if allow_negative else 0.0)
    assert env.state.budget_remaining_ratio == 0.0


def test_v7_a_hard_stop_after_a_long_right_answer(tmp_path: Path) -> None:
    env = environment(tmp_path, rules="compat")
    (seen,) = play(env, [(True, 95)], seed=5, total_budget=100)
    assert seen.reward == near(-0.2275)
    assert (seen.remaining_budget, seen.done, seen.questions_remaining) == (5.0, True, 9)
    assert seen.budget_per_remaining == pytest.approx(0.5556, abs=1e-4)
    assert seen.stop_reason == "exhausted"
    assert seen.question == episode_of(env).questions[1].text


def test_v8_b4_text_past_the_cap_is_not_graded(tmp_path: Path) -> None:
    (seen,) = play(environment(tmp_path), [(True, 500)], total_budget=100)
    assert seen.history[0].model_dump(exclude={"question_summary"}) == {
        "tokens_used": 100,
        "was_correct": False,
    }
    assert seen.done
    parts = seen.reward_parts
    assert parts.correctness + parts.cost + parts.efficiency + parts.overspend == near(-0.55)
    assert parts.unanswered == near(-0.9)
    assert seen.reward == near(-1.45)


def test_v8_as_published_in_compat(tmp_path: Path) -> None:
    env = environment(tmp_path, rules="compat")
    assert rewards(play(env, [(True, 500)], total_budget=100)) == near([-0.305])
    assert rewards(play(env, [(False, 500)], total_budget=100)) == near([-0.55])
    assert env.state.refused_tokens == 400


def test_b4_a_box_within_the_cap_counts(tmp_path: Path) -> None:
    env = environment(tmp_path)
    env.reset(seed=2, total_budget=100)
    gold = question_of(env).gold
    seen = env.step(EconomicsAction(response=box(gold, 100) + " and so on" * 200))
    assert seen.history[0].was_correct


def test_v9_overspend_of_right_answers(tmp_path: Path) -> None:
    env = environment(tmp_path, mode="soft")
    seen = play(env, [(True, w) for w in [1000, 1000, 800] + [100] * 7], total_budget=2000)
    assert rewards(seen) == near([0.4, 0.4, -0.45] + [0.925] * 6 + [1.0])
    assert sum(rewards(seen)) == near(6.90)
    assert env.state.spent_budget == 3500
