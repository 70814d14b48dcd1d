"""The questions of an episode: an even mix of the question types, drawn with one seed."""

from __future__ import annotations

import random

from rlsys.environments.economics.questions import Corpus, Question


def sample_questions(corpus: Corpus, problems: int, seed: int) -> tuple[Question, ...]:
    """Return `problems` questions; the same corpus, number and seed give the same questions.

    With N problems and k types, each type gives N // k questions, and N % k types that the seed
    selects give one more. A row is repeated only if its type has too few rows. Two different rows
    may contain the same text, because few different sums of two numbers exist.
    """
    rng = random.Random(seed)
    types = list(corpus.by_type)
    rng.shuffle(types)
    each, more = divmod(problems, len(types))
    chosen: list[Question] = []
    for index, kind in enumerate(types):
        pool, wanted = corpus.by_type[kind], each + (index < more)
        chosen += rng.sample(pool, min(wanted, len(pool)))
        chosen += rng.choices(pool, k=max(0, wanted - len(pool)))
    # Without this shuffle the position in the episode would reveal the type.
    rng.shuffle(chosen)
    return tuple(chosen)
