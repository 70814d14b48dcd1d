"""The environment in process: what is refused, what is sent, and every defect that is gone."""

from pathlib import Path
from typing import Any

import pytest
from economics_play import answer, box, environment, episode_of, play, question_of, word_tokenizer
from pydantic import ValidationError

from rlsys.environments.economics import EconomicsConfig, EconomicsEnvironment
from rlsys.environments.economics.errors import RequestError
from rlsys.environments.economics.models import EconomicsAction, EconomicsObservation
from rlsys.types import Verdict

RULES = pytest.mark.parametrize("rules", ["default", "compat"])


def near(value: float | list[float]) -> Any:
    return pytest.approx(value, abs=1e-9)


def rewards(observations: list[EconomicsObservation]) -> list[float]:
    return [observation.reward for observation in observations]


def test_v12_budget_and_tokenizer_both_sent(tmp_path: Path) -> None:
    env = environment(tmp_path)
    name = env.config.tokenizers[0]
    first = env.reset(seed=1, total_budget=1000, tokenizer_name=name)
    assert (first.total_budget, first.budget_source) == (1000, "client")
    assert rewards([answer(env, True, 100) for _ in range(10)]) == near([1.0] * 9 + [1.45])


def test_v13_b7_impossible_budgets_are_refused(tmp_path: Path) -> None:
    env = environment(tmp_path)
    before = env.reset(seed=1, total_budget=50)
    bad: Any
    for bad in (0, -5, 5, True, "500", 1.5, 10**12):
        with pytest.raises((ValidationError, RequestError)):
            env.reset(total_budget=bad)
        assert env.state.total_budget == 50
    assert env.step(EconomicsAction(response="x")).seed == before.seed


@RULES
def test_v16_a_step_after_the_end_changes_nothing(tmp_path: Path, rules: str) -> None:
    env = environment(tmp_path, rules=rules, problems=2)
    last = play(env, [(True, 10)] * 2, total_budget=100)[-1]
    state = env.state
    after = env.step(EconomicsAction(response=box("1")))
    assert (after.reward, after.done) == (0.0, True)
    assert after.history == last.history
    assert env.state == state


def test_v17_second_coefficient_set(tmp_path: Path) -> None:
    env = environment(tmp_path, rules="compat", coefficients="D2")
    seen = play(env, [(True, 170)] * 10, total_budget=2000)
    assert sum(rewards(seen)) == near(10.625)


def test_v18_b9_right_pays_more_than_wrong(tmp_path: Path) -> None:
    env = environment(tmp_path, mode="soft")
    right, wrong = (
        rewards(play(env, [(correct, 2800)], total_budget=2000))[0] for correct in (True, False)
    )
    assert right > wrong


def test_v19_b12_only_the_end_of_a_charged_response_is_graded(tmp_path: Path) -> None:
    env = environment(tmp_path)
    env.reset(seed=1, total_budget=2000)
    gold = box(question_of(env).gold)
    for response in ("", f"{gold} no"):
        with pytest.raises(RequestError, match="must be the end of response"):
            env.step(EconomicsAction(response=response, metadata={"grading_response": gold}))
    assert env.state.step_count == 0
    seen = env.step(
        EconomicsAction(
            response=f"<think> is it \\boxed{{0}} ? </think> {gold}\n",
            metadata={"grading_response": gold},
        )
    )
    assert seen.history[0].was_correct
    assert seen.history[0].tokens_used == 7


def test_b12_the_cap_cuts_the_visible_text_too(tmp_path: Path) -> None:
    env = environment(tmp_path)
    env.reset(seed=1, total_budget=50)
    visible = box(question_of(env).gold, 10)
    action = EconomicsAction(response="hm " * 45 + visible, metadata={"grading_response": visible})
    assert not env.step(action).history[0].was_correct


def test_v20_b13_seeds(tmp_path: Path) -> None:
    one, two = environment(tmp_path), environment(tmp_path)
    first, again, other = one.reset(seed=7), one.reset(seed=7), two.reset(seed=7)
    assert first == again == other
    assert first.seed == 7
    assert episode_of(one).questions == episode_of(two).questions
    drawn = [env.reset().seed for env in (one, two) for _ in range(3)]
    assert len({7, *drawn}) == 7
    assert one.reset(seed=drawn[0]).question == one.reset(seed=drawn[0]).question


def test_v21_malformed_resets_are_refused(tmp_path: Path) -> None:
    env = environment(tmp_path)
    env.reset(seed=3, episode_id="kept")
    for options in (
        {"seed": "abc"},
        {"seed": -1},
        {"seed": 1.0},
        {"seed": 2**53},
        {"tokenizer_name": 5},
        {"episode_id": "x" * 256},
        {"budget": 500},
    ):
        (field,) = options
        with pytest.raises(ValidationError, match=field):
            env.reset(**options)
        assert env.state.episode_id == "kept"


def test_v22_malformed_actions_are_refused() -> None:
    for fields in (
        {"answer": "x"},
        {"response": 5},
        {"response": "x", "metadata": {"tokeniser": "y"}},
        {"response": "x", "metadata": {"sampled_tokens": "3"}},
        {"response": "x", "metadata": []},
    ):
        with pytest.raises(ValidationError):
            EconomicsAction(**fields)


def test_v23_b17_before_the_first_reset(tmp_path: Path) -> None:
    env = environment(tmp_path)
    state = env.state
    assert (state.spent_budget, state.questions_answered, state.step_count) == (0, 0, 0)
    assert (state.total_budget, state.budget_remaining_ratio) == (0, 1.0)
    with pytest.raises(RequestError, match="send a reset first"):
        env.step(EconomicsAction(response="x"))


def test_b5_a_tokenizer_off_the_list_is_refused(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with pytest.raises(RequestError, match="'evil/repo' is not allowed here"):
        env.reset(tokenizer_name="evil/repo")


def test_b6_source_and_unit_are_what_was_used(tmp_path: Path) -> None:
    words = EconomicsEnvironment().reset(seed=1)
    assert (words.budget_source, words.counting_unit) == ("config", "words*1.33")
    assert words.total_budget == 16200
    env = environment(tmp_path)
    name = env.config.tokenizers[0]
    native = env.reset(seed=1, tokenizer_name=name)
    assert (native.budget_source, native.counting_unit) == ("tokenizer_native", f"tokens of {name}")
    assert native.total_budget == 40  # ten questions of one word each, times 4
    blank = env.reset(seed=1, tokenizer_name="  ")
    assert blank.budget_source == "config"


def test_b6_the_unit_does_not_change_within_an_episode(tmp_path: Path) -> None:
    env = environment(tmp_path)
    env.reset(seed=1)
    name = env.config.tokenizers[0]
    env.step(EconomicsAction(response="x", metadata={"tokenizer_name": name}))
    with pytest.raises(RequestError, match="'tiny' differs from the episode's unit"):
        env.step(EconomicsAction(response="x", metadata={"tokenizer_name": "tiny"}))


def test_b10_padding_does_not_pay(tmp_path: Path) -> None:
    env = environment(tmp_path)
    right = [True] * 3 + [False] * 7
    returns = [
        sum(rewards(play(env, [(c, 100 if c else w) for c in right], seed=1, total_budget=2000)))
        for w in (50, 200)
    ]
    assert returns[0] == near(returns[1])


def test_b11_stopping_early_costs_what_wrong_answers_cost(tmp_path: Path) -> None:
    env = environment(tmp_path)
    exhausted = play(env, [(False, 100)], seed=1, total_budget=100)
    answered = play(env, [(False, 10)] * 10, seed=1, total_budget=100)
    assert sum(rewards(exhausted)) < sum(rewards(answered)) == near(-1.0)


def test_b15_a_trusted_client_is_charged_its_sampled_ids(tmp_path: Path) -> None:
    env = environment(tmp_path, trusted=True)
    env.reset(seed=1, total_budget=100)
    seen = env.step(EconomicsAction(response="a b", metadata={"sampled_tokens": 3}))
    assert seen.history[0].tokens_used == 3
    with pytest.raises(RequestError, match="98 exceeds the remaining 97"):
        env.step(EconomicsAction(response="a b", metadata={"sampled_tokens": 98}))


def test_b15_an_untrusted_client_is_not(tmp_path: Path) -> None:
    env = environment(tmp_path)
    env.reset(seed=1)
    with pytest.raises(RequestError, match="trusted=true"):
        env.step(EconomicsAction(response="a b", metadata={"sampled_tokens": 0}))


def test_b17_reset_and_step_send_the_same_fields_and_no_type(tmp_path: Path) -> None:
    env = environment(tmp_path)
    first = env.reset(seed=1)
    second = answer(env, True, 5)
    assert first.metadata.keys() == second.metadata.keys()
    assert "problem_type" not in first.metadata
    assert first.problem_type is None
    assert (first.budget_mode, first.num_questions, first.stop_reason) == ("hard", 10, None)


def test_types_are_sent_when_revealed(tmp_path: Path) -> None:
    env = environment(tmp_path, reveal_type=True)
    first = env.reset(seed=1)
    assert first.problem_type == first.metadata["problem_type"] == question_of(env).type


def test_b17_the_number_of_questions_never_shrinks(tmp_path: Path) -> None:
    env = environment(tmp_path, problems=25)
    assert [env.reset().num_questions for _ in range(5)] == [25] * 5


def test_b18_the_data_source_is_always_sent(tmp_path: Path) -> None:
    env = environment(tmp_path)
    assert env.state.data_source is None
    source = "generated arithmetic, seed 0, training side"
    assert env.reset(seed=1).data_source == env.state.data_source == source


def test_oversize_text_is_refused(tmp_path: Path) -> None:
    env = environment(tmp_path, max_response_characters=100)
    env.reset(seed=1)
    with pytest.raises(RequestError, match="101 characters, more than the 100"):
        env.step(EconomicsAction(response="x" * 101))
    assert env.state.step_count == 0


def test_answers_that_cannot_be_graded_are_counted_apart() -> None:
    env = EconomicsEnvironment(EconomicsConfig(), grade=lambda request: Verdict.INVALID)
    env.reset(seed=1)
    seen = env.step(EconomicsAction(response=box("1")))
    assert not seen.history[0].was_correct
    assert env.state.invalid_answers == 1


def test_the_books_balance_after_every_episode(tmp_path: Path) -> None:
    env = environment(tmp_path)
    play(env, [(True, 40), (False, 30), (True, 90)], seed=1, total_budget=100)
    ledger = episode_of(env).ledger
    assert [charge.generated for charge in ledger.charges] == [40, 30, 90]
    assert [charge.charged for charge in ledger.charges] == [40, 30, 30]
    assert env.state.spent_budget == ledger.spent == 100
    ledger.settle([40, 30, 30], [{}] * 3)


def test_a_broken_tokenizer_is_an_error_at_reset(tmp_path: Path) -> None:
    from rlsys.errors import ModelError

    name = word_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    env = EconomicsEnvironment(EconomicsConfig(tokenizers=(name,)))
    with pytest.raises(ModelError, match="cannot be loaded"):
        env.reset(tokenizer_name=name)


def test_settings_may_be_a_mapping_and_are_checked() -> None:
    env = EconomicsEnvironment({"problems": 3, "corpus": {"source": "arithmetic", "terms": [2, 2]}})
    assert env.config.problems == env.reset(seed=1).questions_remaining == 3
    with pytest.raises(ValidationError, match="probems"):
        EconomicsEnvironment({"probems": 3})
