"""A task of the library verifiers as an agent, for `environment.command` of `type: agent`.

    python -m venv verifiers && verifiers/bin/pip install verifiers uv
    environment.command=[verifiers/bin/python, docs/recipes/agent_verifiers.py]

It runs in a Python environment of its own, because verifiers and rlsys need other versions of some
packages. docs/agents.md explains it; tried with verifiers 0.4.0.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import verifiers.v1 as vf


class SumData(vf.TaskData):
    """A problem with its answer."""

    answer: str


class Sum(vf.Task):
    """Scores 1 if the answer stands in the last reply."""

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        """Return the reward of an episode."""
        return float(self.data.answer in trace.last_reply)


async def main() -> None:
    """Run one task with the harness `null`, a chat loop, and print its reward."""
    problem = json.load(sys.stdin)
    config = vf.AgentConfig(
        harness={"id": "null"},
        runtime=vf.SubprocessConfig(),
        model=os.environ["OPENAI_MODEL"],
        client=vf.EvalClientConfig(
            base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY"
        ),
    )
    task = Sum(SumData(prompt=problem["text"], answer=problem["answer"]))
    trace = await vf.make_agent(config).run(task)
    print(json.dumps({"reward": trace.reward}))


if __name__ == "__main__":
    os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # for uv
    asyncio.run(main())
