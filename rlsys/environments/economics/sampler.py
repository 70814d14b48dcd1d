"""Which questions an episode asks: an even mix over the types, decided by one seed."""

from __future__ import annotations

import random

from rlsys.environments.economics.questions import Corpus, Question


def sample_questions(corpus: Corpus, problems: int, seed: int) -> tuple[Question, ...]:
    """Return `problems` questions, the same for the same corpus, number and seed.

    With N problems and k types, every type gives N // k questions, and N % k types that the seed
    chooses give one more. No row of a type comes twice unless it has too few (two rows
    may ask the same: there are only so many sums of two numbers).
    """
    rng = random.Random(seed)
    types = list(corpus.by_type)
    rng.shuffle(types)
    each, more = divmod(problems, len(types))
    chosen: list[Question] = []
    for place, kind in enumerate(types):
        pool, wanted = corpus.by_type[kind], each + (place < more)
        chosen += rng.sample(pool, min(wanted, len(pool)))
        chosen += rng.choices(pool, k=max(0, wanted - len(pool)))
    rng.shuffle(chosen)
    return tuple(chosen)
