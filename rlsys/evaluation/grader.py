"""A grader for commands without grading actors: hard comparisons go to processes of its own."""

from __future__ import annotations

import asyncio
from queue import LifoQueue

from rlsys.config import GradingConfig
from rlsys.grading.answers import extract_answer
from rlsys.grading.compare import CachedGrader, compare_hard
from rlsys.grading.process import GradingProcess
from rlsys.types import GradingRequest, Verdict


def local_grader(config: GradingConfig) -> CachedGrader:
    """Return a grader with `config.actors` killable processes, which start when first needed."""
    idle: LifoQueue[GradingProcess] = LifoQueue()
    for _ in range(config.actors):
        idle.put(GradingProcess(config.timeout_s))

    def compare(request: GradingRequest) -> Verdict:
        process = idle.get()
        try:
            answer = extract_answer(request.response) or ""
            return compare_hard(process, answer, request.gold, config.policy)
        finally:
            idle.put(process)

    async def grade_hard(requests: list[GradingRequest]) -> list[Verdict]:
        return list(await asyncio.gather(*(asyncio.to_thread(compare, r) for r in requests)))

    return CachedGrader(grade_hard, max_characters=config.max_characters, policy=config.policy)
