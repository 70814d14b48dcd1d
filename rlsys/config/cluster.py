"""Where the processes of a run stand in a Ray cluster, and how long the run waits for room."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from rlsys.config.base import Section


class NodesConfig(Section):
    """The nodes on which processes of one kind may run; with nothing set, every node."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that Ray must know of the node (`ray start --labels`): a value, `!value`, `in(a, b)`
    or `!in(a, b)`."""
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Custom resources that every process takes from its node (`ray start --resources`)."""


class LearnerCluster(Section):
    """The nodes of a run without engines."""

    learner: NodesConfig = NodesConfig()
    wait_s: PositiveFloat = 300.0
    """How long the run waits for nodes and free resources before it ends."""


class ClusterConfig(LearnerCluster):
    """The nodes of a training run. Whether processes share a GPU follows from their shares of one:
    learner.gpus_per_rank and generation.gpus_per_engine."""

    layout: Literal["shared", "split"] = "shared"
    """shared: learner and engines on as few nodes as possible. split: no engine on a node of the
    learner."""
    engines: NodesConfig = NodesConfig()
    """Engines of the policy and of the reflection model."""
    services: NodesConfig = NodesConfig()
    """Environment and grading actors. They are spread, over the nodes without a GPU if these have
    enough cores."""
