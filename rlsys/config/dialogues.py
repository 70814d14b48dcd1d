"""Environments of several turns: one growing sequence, a reply per turn."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rlsys.config.base import Section
from rlsys.config.economics import ArithmeticCorpus, Corpus, EconomicsConfig
from rlsys.config.environments import EnvironmentConfig


class DialogueSection(EnvironmentConfig):
    """What all environments of several turns share: one growing sequence, a reply per turn."""

    methods = ("turn_grpo", "distill")
    length_keys = "environment.reply_tokens"

    reply_tokens: PositiveInt = 512
    """Most sampled tokens of one reply, thought included."""
    think_end: str | None = None
    """The text that ends a thought; the environment sees the text of a reply after it. None for a
    model that does not think."""
    attempts: PositiveInt = 3
    """How often an episode is started in all when its environment is lost in the middle of it."""

    @property
    def most_turns(self) -> int:
        """Most replies of an episode."""
        raise NotImplementedError

    @property
    def scores_per_episode(self) -> int:
        """One per reply."""
        return self.most_turns

    @property
    def size_origins(self) -> tuple[str, str]:
        """See EnvironmentConfig."""
        turns = self.most_turns
        return (
            f"x {turns} replies per episode, at most",
            f"{self.longest_episode} per episode: its budget, or {turns} x {self.reply_tokens}",
        )


class ConnectionConfig(Section):
    """How an environment behind a URL is talked to."""

    max_sessions: PositiveInt = 64
    """Sessions at once, of each environment actor; together no more than the server serves."""
    patience_s: PositiveFloat = 300.0
    """How long to try while the server does not answer; then the episode is lost."""
    message_timeout_s: PositiveFloat = 60.0
    """How long the answer to one message may take."""


class EconomicsDialogue(DialogueSection):
    """Problems that share one token budget (rlsys.environments.economics).

    `data.prompt.template` may show {remaining}, {questions_remaining}, {per_question}, {number} and
    {problems} beside {problem}.
    """

    type: Literal["economics"] = "economics"
    episode: EconomicsConfig = EconomicsConfig()
    """The environment that runs inside the environment actors."""
    evaluation_corpus: Corpus = ArithmeticCorpus(held_out=True)
    """Questions of the evaluation, in the place of episode.corpus."""
    url: str | None = None
    """A server of the environment (`rlsys serve-env`), used in place of one inside the actors. Of
    `episode`, only problems, mode and total_budget are then used, and should be the server's."""
    evaluation_url: str | None = None
    """The server of the evaluation, with held-out questions; None takes `url`."""
    tokenizer_name: Annotated[str, Field(min_length=1)] | None = None
    """For a server that does not trust its clients: the tokenizer it counts tokens with, which
    should be the policy's. Without `episode.total_budget` the server also computes the budget with
    it. A server that trusts its clients charges sampled ids and needs no tokenizer."""
    connection: ConnectionConfig = ConnectionConfig()

    @model_validator(mode="after")
    def _counts_where_it_is_played(self) -> EconomicsDialogue:
        given = {"tokenizer": self.episode.tokenizer, "trusted": self.episode.trusted}
        for name, value in given.items():
            if value:
                raise ValueError(
                    f"environment.episode.{name} {value!r} has no effect: training charges sampled "
                    "ids, and a server counts as it was started; leave it out"
                )
        if self.tokenizer_name is not None and self.url is None:
            raise ValueError(
                f"environment.tokenizer_name {self.tokenizer_name!r} is for a server; in the "
                "actors sampled ids are charged: leave it out, or give a url"
            )
        return self

    @property
    def most_turns(self) -> int:
        """Most replies of an episode."""
        return self.episode.problems

    @property
    def longest_episode(self) -> int:
        """Most sampled tokens of an episode."""
        replies = self.most_turns * self.reply_tokens
        if self.episode.mode == "soft" or self.episode.total_budget is None:
            return replies
        return min(replies, self.episode.total_budget)

    @property
    def evaluation_warning(self) -> str | None:
        """A sentence if the evaluation plays on the training server."""
        return _training_server_warning(self.url, self.evaluation_url)


class OpenEnvDialogue(DialogueSection):
    """Anybody's OpenEnv environment that shows a text and takes a text."""

    type: Literal["openenv"] = "openenv"
    url: str
    """Where it is served, for instance http://127.0.0.1:8000."""
    evaluation_url: str | None = None
    """The server of the evaluation; None takes `url`."""
    observation_field: str
    """Field of an observation that becomes the user turn."""
    action_field: str
    """Field of an action that takes the visible part of a reply."""
    remaining_field: str | None = None
    """Field with the tokens that may still be sampled, where there is a shared budget."""
    reset_options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Sent with every reset beside the seed."""
    max_turns: PositiveInt = 10
    """Replies after which an episode that has not ended is left."""
    connection: ConnectionConfig = ConnectionConfig()

    @property
    def most_turns(self) -> int:
        """Most replies of an episode."""
        return self.max_turns

    @property
    def longest_episode(self) -> int:
        """Most sampled tokens of an episode."""
        return self.most_turns * self.reply_tokens

    @property
    def evaluation_warning(self) -> str | None:
        """A sentence if the evaluation plays on the training server."""
        return _training_server_warning(self.url, self.evaluation_url)


def _training_server_warning(url: str | None, evaluation_url: str | None) -> str | None:
    """Tell of an evaluation on the training server, unless `evaluation_url` names it on purpose."""
    if url is None or evaluation_url is not None:
        return None
    return (
        f"evaluations play on the training server {url}, so on questions of training; set "
        "environment.evaluation_url to a server with held-out questions"
    )
