"""TRL's GRPOTrainer on the economics server by `environment_factory`: answers are tool calls.

    python docs/recipes/trl_tiny_model.py --output runs/trl_tiny
    rlsys serve-env environment.problems=3 "environment.corpus.terms=[2,2]"
    python docs/recipes/trl_environment_factory.py --model runs/trl_tiny

Needs `pip install trl` beside rlsys; docs/trl.md explains it and shows what it printed.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from rlsys.environments.economics import EconomicsClient
from rlsys.environments.economics.models import EconomicsAction

QUESTIONS = 3
TOTAL_BUDGET = 60
ROLLOUTS = 16
"""Environments alive at once, hence sessions: no more than `max_sessions` of the server."""
GROUP = 8
PROMPT = [{"role": "user", "content": "Answer each question with the tool.\n"}]


class Economics:
    """One session. TRL makes one per rollout and resets it for every batch."""

    def __init__(self) -> None:
        url = os.environ.get("ECONOMICS_URL", "http://127.0.0.1:8000")
        self._client = EconomicsClient(base_url=url).sync()
        self._reward = 0.0
        self._done = False

    def reset(self, seed: int, total_budget: int, **_: Any) -> str:
        """Begin the episode of a row; rows of a group are the same, so its members share it."""
        self._reward, self._done = 0.0, False
        return self._shown(self._client.reset(seed=seed, total_budget=total_budget))

    def answer(self, response: str) -> str:
        """
        Answer the current question.

        Args:
            response: The answer in boxes, like \\boxed{7}.

        Returns:
            The next question.
        """
        if self._done:
            raise ValueError("The episode is over.")
        result = self._client.step(EconomicsAction(response=response))
        self._reward += result.reward
        self._done = result.done
        return self._shown(result)

    def get_reward(self) -> float:
        """
        The sum of the episode's rewards.

        Questions that the policy left are answered with nothing, so that the server scores them.
        Else leaving at once, which earns 0, is what a policy learns that is wrong most of the time.
        """
        while not self._done:
            self.answer("")
        return self._reward

    def _shown(self, result: Any) -> str:
        if result.done:
            return "No question is left."
        return str(result.observation.question)


def train(
    model: str, steps: int, output: str, seed: int = 0, environment: type[Economics] = Economics
) -> list[dict[str, Any]]:
    """Train a model for a few steps, and return what TRL logged, one dictionary per step.

    Args:
        model: Folder or name of the model.
        steps: Steps of one batch of ROLLOUTS episodes.
        output: Folder for TRL's files.
        seed: Decides the order of the questions and every sampled token.
        environment: The class that plays the episodes.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = [{"prompt": PROMPT, "seed": row, "total_budget": TOTAL_BUDGET} for row in range(1000)]
    trainer = GRPOTrainer(
        model=model,
        environment_factory=environment,
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=output,
            seed=seed,
            max_steps=steps,
            per_device_train_batch_size=ROLLOUTS,
            num_generations=GROUP,
            max_completion_length=400,  # of the whole episode, what the tool says included
            max_tool_calling_iterations=QUESTIONS,
            learning_rate=3e-4,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
        ),
    )
    trainer.train()
    return [entry for entry in trainer.state.log_history if "reward" in entry]


def main() -> None:
    """Train a model for a few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="runs/trl_environment_factory")
    arguments = parser.parse_args()
    train(arguments.model, arguments.steps, arguments.output, arguments.seed)


if __name__ == "__main__":
    main()
