"""Play economics episodes where one word is one token."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.environment import EconomicsEnvironment
from rlsys.environments.economics.episode import EconomicsEpisode
from rlsys.environments.economics.models import EconomicsAction, EconomicsObservation
from rlsys.environments.economics.questions import Question


def word_tokenizer(folder: Path) -> str:
    """Save a tokenizer of whitespace-separated words; return the name to load it by."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def environment(folder: Path, **config: Any) -> EconomicsEnvironment:
    """An environment that counts words."""
    name = word_tokenizer(folder)
    return EconomicsEnvironment(EconomicsConfig(tokenizer=name, tokenizers=(name,), **config))


def box(answer: str, words: int = 1) -> str:
    """A response of so many words that ends with the boxed answer."""
    return "so " * (words - 1) + f"\\boxed{{{answer}}}"


def episode_of(env: EconomicsEnvironment) -> EconomicsEpisode:
    """The episode that was begun."""
    assert env.episode is not None
    return env.episode


def question_of(env: EconomicsEnvironment) -> Question:
    """The question that waits for its answer."""
    question = episode_of(env).question
    assert question is not None
    return question


def answer(env: EconomicsEnvironment, correct: bool, words: int) -> EconomicsObservation:
    """Answer the current question right or wrong in so many words."""
    gold = question_of(env).gold
    return env.step(EconomicsAction(response=box(gold if correct else f"{gold}.5", words)))


def play(
    env: EconomicsEnvironment, answers: Iterable[tuple[bool, int]], **reset: Any
) -> list[EconomicsObservation]:
    """Reset, then give (correct, words) answers; return all observations of the steps."""
    env.reset(**reset)
    return [answer(env, correct, words) for correct, words in answers]
