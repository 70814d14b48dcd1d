"""Play economics episodes where one word is one token."""

from tokenizers import Tokenizer, models, pre_tokenizers

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.environment import EconomicsEnvironment
from rlsys.environments.economics.models import EconomicsAction


def word_tokenizer(folder):
    """Save a tokenizer of whitespace-separated words; return the name to load it by."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def environment(folder, **config):
    """An environment that counts words."""
    name = word_tokenizer(folder)
    return EconomicsEnvironment(EconomicsConfig(tokenizer=name, tokenizers=(name,), **config))


def box(answer, words=1):
    """A response of so many words that ends with the boxed answer."""
    return "so " * (words - 1) + f"\\boxed{{{answer}}}"


def answer(env, correct, words):
    """Answer the current question right or wrong in so many words."""
    gold = env.episode.question.gold
    return env.step(EconomicsAction(response=box(gold if correct else f"{gold}.5", words)))


def play(env, answers, **reset):
    """Reset, then give (correct, words) answers; return all observations of the steps."""
    env.reset(**reset)
    return [answer(env, correct, words) for correct, words in answers]
