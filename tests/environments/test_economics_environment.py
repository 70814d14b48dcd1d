"""Whole episodes: the worked vectors through reset and step, and every defect that is gone."""

import pytest
from economics_play import answer, box, environment, play, word_tokenizer
from pydantic import ValidationError

from rlsys.environments.economics import EconomicsConfig, EconomicsEnvironment
from rlsys.environments.economics.errors import RequestError
from rlsys.environments.economics.models import EconomicsAction
from rlsys.types import Verdict

RULES = pytest.mark.parametrize("rules", ["default", "compat"])


def near(value):
    return pytest.approx(value, abs=1e-9)


def rewards(observations):
    return [observation.reward for observation in observations]


@RULES
def test_v1_v2_first_answers(tmp_path, rules):
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
def test_v3_ten_right_answers(tmp_path, rules):
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
def test_v4_mixed_answers(tmp_path, rules):
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
def test_v5_v6_b8_overspend(tmp_path, rules, allow_negative):
    env = environment(tmp_path, rules=rules, mode="soft", allow_negative=allow_negative)
    seen = play(env, [(False, 30)] * 10, total_budget=100)
    cumulative = rules == "compat" and allow_negative
    assert sum(rewards(seen)) == near(-21.25 if cumulative else -7.0)
    if not cumulative:
        assert rewards(seen) == near([-0.2] * 3 + [-0.7] + [-0.95] * 6)
    assert env.state.spent_budget == 300
    assert seen[-1].remaining_budget == (-200.0 if allow_negative else 0.0)
    assert env.state.budget_remaining_ratio == 0.0


def test_v7_a_hard_stop_after_a_long_right_answer(tmp_path):
    env = environment(tmp_path, rules="compat")
    (seen,) = play(env, [(True, 95)], seed=5, total_budget=100)
    assert seen.reward == near(-0.2275)
    assert (seen.remaining_budget, seen.done, seen.questions_remaining) == (5.0, True, 9)
    assert seen.budget_per_remaining == pytest.approx(0.5556, abs=1e-4)
    assert seen.stop_reason == "exhausted"
    assert seen.question == env.episode.questions[1].text


def test_v8_b4_text_past_the_cap_is_not_graded(tmp_path):
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


def test_v8_as_published_in_compat(tmp_path):
    env = environment(tmp_path, rules="compat")
    assert rewards(play(env, [(True, 500)], total_budget=100)) == near([-0.305])
    assert rewards(play(env, [(False, 500)], total_budget=100)) == near([-0.55])
    assert env.state.refused_tokens == 400


def test_b4_a_box_within_the_cap_counts(tmp_path):
    env = environment(tmp_path)
    env.reset(seed=2, total_budget=100)
    gold = env.episode.question.gold
    seen = env.step(EconomicsAction(response=box(gold, 100) + " and so on" * 200))
    assert seen.history[0].was_correct


def test_v9_overspend_of_right_answers(tmp_path):
    env = environment(tmp_path, mode="soft")
    seen = play(env, [(True, w) for w in [1000, 1000, 800] + [100] * 7], total_budget=2000)
    assert rewards(seen) == near([0.4, 0.4, -0.45] + [0.925] * 6 + [1.0])
    assert sum(rewards(seen)) == near(6.90)
    assert env.state.spent_budget == 3500


def test_v12_budget_and_tokenizer_both_sent(tmp_path):
    env = environment(tmp_path)
    name = env.config.tokenizers[0]
    first = env.reset(seed=1, total_budget=1000, tokenizer_name=name)
    assert (first.total_budget, first.budget_source) == (1000, "client")
    assert rewards([answer(env, True, 100) for _ in range(10)]) == near([1.0] * 9 + [1.45])


@pytest.mark.parametrize("budget", [0, -5, 5, True, "500", 1.5, 10**12])
def test_v13_b7_impossible_budgets_are_refused(tmp_path, budget):
    env = environment(tmp_path)
    before = env.reset(seed=1, total_budget=50)
    with pytest.raises((ValidationError, RequestError)):
        env.reset(total_budget=budget)
    assert env.state.total_budget == 50
    assert env.step(EconomicsAction(response="x")).seed == before.seed


@RULES
def test_v16_a_step_after_the_end_changes_nothing(tmp_path, rules):
    env = environment(tmp_path, rules=rules, problems=2)
    last = play(env, [(True, 10)] * 2, total_budget=100)[-1]
    state = env.state
    after = env.step(EconomicsAction(response=box("1")))
    assert (after.reward, after.done) == (0.0, True)
    assert after.history == last.history
    assert env.state == state


def test_v17_second_coefficient_set(tmp_path):
    env = environment(tmp_path, rules="compat", coefficients="D2")
    seen = play(env, [(True, 170)] * 10, total_budget=2000)
    assert sum(rewards(seen)) == near(10.625)


def test_v18_b9_right_pays_more_than_wrong(tmp_path):
    env = environment(tmp_path, mode="soft")
    right, wrong = (
        rewards(play(env, [(correct, 2800)], total_budget=2000))[0] for correct in (True, False)
    )
    assert right > wrong


def test_v19_b12_only_the_end_of_a_charged_response_is_graded(tmp_path):
    env = environment(tmp_path)
    env.reset(seed=1, total_budget=2000)
    gold = box(env.episode.question.gold)
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


def test_b12_the_cap_cuts_the_visible_text_too(tmp_path):
    env = environment(tmp_path)
    env.reset(seed=1, total_budget=50)
    visible = box(env.episode.question.gold, 10)
    action = EconomicsAction(response="hm " * 45 + visible, metadata={"grading_response": visible})
    assert not env.step(action).history[0].was_correct


def test_v20_b13_seeds(tmp_path):
    one, two = environment(tmp_path), environment(tmp_path)
    first, again, other = one.reset(seed=7), one.reset(seed=7), two.reset(seed=7)
    assert first == again == other
    assert first.seed == 7
    assert one.episode.questions == two.episode.questions
    drawn = [env.reset().seed for env in (one, two) for _ in range(3)]
    assert len({7, *drawn}) == 7
    assert one.reset(seed=drawn[0]).question == one.reset(seed=drawn[0]).question


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"seed": "abc"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"seed": 2**53}, "seed"),
        ({"tokenizer_name": 5}, "tokenizer_name"),
        ({"episode_id": "x" * 256}, "episode_id"),
        ({"budget": 500}, "budget"),
    ],
)
def test_v21_malformed_resets_are_refused(tmp_path, options, place):
    env = environment(tmp_path)
    env.reset(seed=3, episode_id="kept")
    with pytest.raises(ValidationError, match=place):
        env.reset(**options)
    assert env.state.episode_id == "kept"


def test_v22_malformed_actions_are_refused():
    for fields in (
        {"answer": "x"},
        {"response": 5},
        {"response": "x", "metadata": {"tokeniser": "y"}},
        {"response": "x", "metadata": {"sampled_tokens": "3"}},
        {"response": "x", "metadata": []},
    ):
        with pytest.raises(ValidationError):
            EconomicsAction(**fields)


def test_v23_b17_before_the_first_reset(tmp_path):
    env = environment(tmp_path)
    state = env.state
    assert (state.spent_budget, state.questions_answered, state.step_count) == (0, 0, 0)
    assert (state.total_budget, state.budget_remaining_ratio) == (0, 1.0)
    with pytest.raises(RequestError, match="send a reset first"):
        env.step(EconomicsAction(response="x"))


def test_b5_a_tokenizer_off_the_list_is_refused(tmp_path):
    env = environment(tmp_path)
    with pytest.raises(RequestError, match="'evil/repo' is not allowed here"):
        env.reset(tokenizer_name="evil/repo")


def test_b6_source_and_unit_are_what_was_used(tmp_path):
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


def test_b6_the_unit_does_not_change_within_an_episode(tmp_path):
    env = environment(tmp_path)
    env.reset(seed=1)
    name = env.config.tokenizers[0]
    env.step(EconomicsAction(response="x", metadata={"tokenizer_name": name}))
    with pytest.raises(RequestError, match="'tiny' differs from the episode's unit"):
        env.step(EconomicsAction(response="x", metadata={"tokenizer_name": "tiny"}))


def test_b10_padding_does_not_pay(tmp_path):
    env = environment(tmp_path)
    right = [True] * 3 + [False] * 7
    returns = [
        sum(rewards(play(env, [(c, 100 if c else w) for c in right], seed=1, total_budget=2000)))
        for w in (50, 200)
    ]
    assert returns[0] == near(returns[1])


def test_b11_stopping_early_costs_what_wrong_answers_cost(tmp_path):
    env = environment(tmp_path)
    exhausted = play(env, [(False, 100)], seed=1, total_budget=100)
    answered = play(env, [(False, 10)] * 10, seed=1, total_budget=100)
    assert sum(rewards(exhausted)) < sum(rewards(answered)) == near(-1.0)


def test_b15_a_trusted_client_is_charged_its_sampled_ids(tmp_path):
    env = environment(tmp_path, trusted=True)
    env.reset(seed=1, total_budget=100)
    seen = env.step(EconomicsAction(response="a b", metadata={"sampled_tokens": 3}))
    assert seen.history[0].tokens_used == 3
    with pytest.raises(RequestError, match="98 exceeds the remaining 97"):
        env.step(EconomicsAction(response="a b", metadata={"sampled_tokens": 98}))


def test_b15_an_untrusted_client_is_not(tmp_path):
    env = environment(tmp_path)
    env.reset(seed=1)
    with pytest.raises(RequestError, match="trusted=true"):
        env.step(EconomicsAction(response="a b", metadata={"sampled_tokens": 0}))


def test_b17_reset_and_step_send_the_same_fields_and_no_type(tmp_path):
    env = environment(tmp_path)
    first = env.reset(seed=1)
    second = answer(env, True, 5)
    assert first.metadata.keys() == second.metadata.keys()
    assert "problem_type" not in first.metadata
    assert first.problem_type is None
    assert (first.budget_mode, first.num_questions, first.stop_reason) == ("hard", 10, None)


def test_types_are_sent_when_revealed(tmp_path):
    env = environment(tmp_path, reveal_type=True)
    first = env.reset(seed=1)
    assert first.problem_type == first.metadata["problem_type"] == env.episode.question.type


def test_b17_the_number_of_questions_never_shrinks(tmp_path):
    env = environment(tmp_path, problems=25)
    assert [env.reset().num_questions for _ in range(5)] == [25] * 5


def test_b18_the_data_source_is_always_sent(tmp_path):
    env = environment(tmp_path)
    assert env.state.data_source is None
    source = "generated arithmetic, seed 0, training side"
    assert env.reset(seed=1).data_source == env.state.data_source == source


def test_oversize_text_is_refused(tmp_path):
    env = environment(tmp_path, max_response_characters=100)
    env.reset(seed=1)
    with pytest.raises(RequestError, match="101 characters, more than the 100"):
        env.step(EconomicsAction(response="x" * 101))
    assert env.state.step_count == 0


def test_answers_that_cannot_be_graded_are_counted_apart():
    env = EconomicsEnvironment(EconomicsConfig(), grade=lambda request: Verdict.INVALID)
    env.reset(seed=1)
    seen = env.step(EconomicsAction(response=box("1")))
    assert not seen.history[0].was_correct
    assert env.state.invalid_answers == 1


def test_the_books_balance_after_every_episode(tmp_path):
    env = environment(tmp_path)
    play(env, [(True, 40), (False, 30), (True, 90)], seed=1, total_budget=100)
    ledger = env.episode.ledger
    assert [charge.generated for charge in ledger.charges] == [40, 30, 90]
    assert [charge.charged for charge in ledger.charges] == [40, 30, 30]
    assert env.state.spent_budget == ledger.spent == 100
    ledger.settle([40, 30, 30], [{}] * 3)


def test_a_broken_tokenizer_is_an_error_at_reset(tmp_path):
    from rlsys.errors import ModelError

    name = word_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    env = EconomicsEnvironment(EconomicsConfig(tokenizers=(name,)))
    with pytest.raises(ModelError, match="cannot be loaded"):
        env.reset(tokenizer_name=name)
