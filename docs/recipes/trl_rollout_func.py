"""TRL's GRPOTrainer on the economics server through `rollout_func`: every sampled token is charged.

    python docs/recipes/trl_tiny_model.py --output runs/trl_tiny
    rlsys serve-env environment.trusted=true environment.problems=3 "environment.corpus.terms=[2,2]"
    python docs/recipes/trl_rollout_func.py --model runs/trl_tiny

Needs `pip install trl` beside rlsys; docs/trl.md explains it and shows what it printed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

from rlsys.environments.economics import EconomicsClient
from rlsys.environments.economics.models import EconomicsAction

TOTAL_BUDGET = 90
REPLY_TOKENS = 60
GROUP = 8
EPISODES = 16
"""Rollouts at once, hence sessions: no more than `max_sessions` of the server."""


@dataclass
class Episode:
    """One rollout. Its ids are appended, and never tokenised again."""

    client: Any
    prompt_ids: list[int]
    result: Any
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reward: float = 0.0

    @property
    def room(self) -> int:
        """Tokens that the next reply may have."""
        return min(REPLY_TOKENS, int(self.result.observation.remaining_budget))

    def add(self, ids: list[int], logprobs: list[float] | None = None) -> None:
        """Append sampled ids, or ids of the environment, which are masked."""
        self.ids += ids
        self.mask += [int(logprobs is not None)] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs


class Rollouts:
    """The `rollout_func`. Its sessions stay open from one batch to the next."""

    def __init__(self, url: str, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.think_end = tokenizer.convert_tokens_to_ids("</think>")
        self.clients = [EconomicsClient(base_url=url).sync() for _ in range(EPISODES)]

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Play one episode per prompt. A prompt is a seed, which the members of a group share."""
        episodes = [
            self.begin(client, int(prompt))
            for client, prompt in zip(self.clients, prompts, strict=False)
        ]
        while live := [episode for episode in episodes if not episode.result.done]:
            for episode, (ids, logprobs) in zip(live, self.sample(live, trainer), strict=True):
                episode.add(ids, logprobs)
                episode.result = episode.client.step(self.action(ids))
                episode.reward += episode.result.reward
                if not episode.result.done:
                    episode.add(self.next_turn(ids, episode.result.observation.question))
        return {
            "prompt_ids": [episode.prompt_ids for episode in episodes],
            "completion_ids": [episode.ids for episode in episodes],
            "logprobs": [episode.logprobs for episode in episodes],
            "env_mask": [episode.mask for episode in episodes],
            "env_reward": [episode.reward for episode in episodes],
        }

    def begin(self, client: Any, seed: int) -> Episode:
        result = client.reset(seed=seed, total_budget=TOTAL_BUDGET)
        turn = [{"role": "user", "content": result.observation.question}]
        text = self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        return Episode(client, self.tokenizer.encode(text, add_special_tokens=False), result)

    @torch.no_grad()
    def sample(
        self, live: list[Episode], trainer: GRPOTrainer
    ) -> list[tuple[list[int], list[float]]]:
        """Sample one reply per episode, none longer than its budget allows."""
        rows = [{"input_ids": episode.prompt_ids + episode.ids} for episode in live]
        batch = self.tokenizer.pad(rows, padding_side="left", return_tensors="pt")
        # Also turns gradient checkpointing off, under which a model generates nonsense.
        with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
            output = model.generate(
                **batch.to(model.device),
                do_sample=True,
                top_k=0,
                max_new_tokens=max(episode.room for episode in live),
                output_logits=True,
                return_dict_in_generate=True,
            )
        sampled_BL = output.sequences[:, batch["input_ids"].shape[1] :]
        logprobs_BLV = torch.stack(output.logits, dim=1).float().log_softmax(-1)
        logprobs_BL = logprobs_BLV.gather(-1, sampled_BL[..., None])[..., 0]
        replies = []
        for episode, ids, logprobs in zip(
            live, sampled_BL.tolist(), logprobs_BL.tolist(), strict=True
        ):
            ids = ids[: episode.room]
            if self.tokenizer.eos_token_id in ids:
                ids = ids[: ids.index(self.tokenizer.eos_token_id) + 1]
            replies.append((ids, logprobs[: len(ids)]))
        return replies

    def action(self, ids: list[int]) -> EconomicsAction:
        """The visible part of a reply, and how many tokens it took in all."""
        start = ids.index(self.think_end) + 1 if self.think_end in ids else len(ids)
        visible = self.tokenizer.decode(ids[start:], skip_special_tokens=True)
        return EconomicsAction(response=visible, metadata={"sampled_tokens": len(ids)})

    def next_turn(self, reply: list[int], question: str) -> list[int]:
        """What the chat template writes after a reply: only this is tokenised."""
        eos = self.tokenizer.eos_token
        turns = [{"role": "user", "content": "-"}, {"role": "assistant", "content": "-"}]
        before = self.tokenizer.apply_chat_template(turns, tokenize=False)
        turns.append({"role": "user", "content": question})
        after = self.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        )
        kept = before.rindex(eos)
        assert after.startswith(before[:kept])
        if reply[-1] == self.tokenizer.eos_token_id:
            kept += len(eos)
        return self.tokenizer.encode(after[kept:], add_special_tokens=False)


def reward(env_reward: list[float], **_: Any) -> list[float]:
    """The sum of an episode's rewards, as the environment gave them."""
    return env_reward


def main() -> None:
    """Train a model for a few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--output", default="runs/trl_rollout_func")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    trainer = GRPOTrainer(
        model=arguments.model,
        processing_class=tokenizer,
        reward_funcs=reward,
        rollout_func=Rollouts(arguments.url, tokenizer),
        train_dataset=Dataset.from_dict({"prompt": [str(seed) for seed in range(1000)]}),
        args=GRPOConfig(
            output_dir=arguments.output,
            max_steps=arguments.steps,
            per_device_train_batch_size=EPISODES,
            num_generations=GROUP,
            max_completion_length=400,  # TRL does not cut what a rollout_func returns
            learning_rate=3e-4,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
