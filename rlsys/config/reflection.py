"""Settings of `rlsys reflection`: whose thoughts, labelled by whom, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from rlsys.config import (
    AnytimeConfig,
    DataConfig,
    GenerationConfig,
    GradingConfig,
    ModelConfig,
)
from rlsys.config.base import NonNegativeInt, Section, Share
from rlsys.config.environments import DetectorConfig
from rlsys.config.models import EndpointSection


class ArithmeticTeacherConfig(Section):
    """The totals of arithmetic thoughts are read from their text."""

    type: Literal["arithmetic"] = "arithmetic"


class CountdownTeacherConfig(Section):
    """The steps of Countdown searches are followed in their text."""

    type: Literal["countdown"] = "countdown"


class ModelTeacherSection(Section):
    """A large model that labels."""

    gold: bool = True
    """False hides the right answer while all chunks are labelled, to measure what the model finds
    by itself; each chunk that it names is still held against it."""


class EndpointTeacher(EndpointSection, ModelTeacherSection):
    """A large model behind an endpoint."""

    type: Literal["endpoint"] = "endpoint"
    base_url: str = "http://127.0.0.1:8000/v1"
    """With the version, for instance https://api.openai.com/v1."""
    timeout_s: PositiveFloat = 600.0
    """Of one attempt."""
    retries: NonNegativeInt = 3
    """Further attempts, after growing pauses, where the network or the server fails."""
    concurrency: PositiveInt = 32
    """Requests in flight at once."""


class EngineTeacher(ModelTeacherSection):
    """A large model in engines of this run."""

    type: Literal["engine"] = "engine"
    model: ModelConfig
    generation: GenerationConfig = GenerationConfig()


TeacherConfig = Annotated[
    ArithmeticTeacherConfig | CountdownTeacherConfig | EndpointTeacher | EngineTeacher,
    Field(discriminator="type"),
]


class RowsConfig(Section):
    """What is made of labelled thoughts."""

    unanswered: bool = False
    """Train the reflection model on thoughts that never state the right answer, too."""
    paths: bool = False
    """Also let the policy answer from the truncated thoughts: rows for sft and pairs for rpo."""
    per_problem: PositiveInt = 4
    """Truncated paths of one problem, at most."""


class MeasureConfig(Section):
    """How the reflection model is measured."""

    problems: PositiveInt = 256
    """Held-out problems."""
    samples: PositiveInt = 1
    """Thoughts per problem."""
    ratios: tuple[Annotated[float, Field(gt=0, le=1)], ...] = (0.5, 0.6, 0.7, 0.8, 0.9)
    """Shares of all thought tokens that the cuts keep which nobody chose."""


class ReflectionConfig(Section):
    """Everything `rlsys reflection` needs."""

    name: str = "reflection"
    run_dir: Path = Path("runs/reflection")
    """Folder of thoughts, labels, rows and results; what is in it is not made again."""
    seed: NonNegativeInt = 0
    policy: ModelConfig = ModelConfig()
    """Whose thoughts are read."""
    data: DataConfig = DataConfig()
    """`train` for labels and rows, `evaluation` for `rlsys reflection eval`."""
    environment: AnytimeConfig = AnytimeConfig()
    """How thoughts end and answers begin; the last budget is the longest thought."""
    problems: PositiveInt = 1024
    """Training problems whose thoughts are sampled."""
    samples: PositiveInt = 1
    """Thoughts per problem."""
    cut_share: Share = 0.0
    """Share of these thoughts that are cut at a random place: a small reflection model must have
    seen thoughts that ran out of tokens."""
    generation: GenerationConfig = GenerationConfig()
    """The policy's engines."""
    teacher: TeacherConfig = ArithmeticTeacherConfig()
    rows: RowsConfig = RowsConfig()
    detector: DetectorConfig = DetectorConfig()
    reflection_model: ModelConfig = ModelConfig()
    """The trained reflection model."""
    reflection_generation: GenerationConfig = GenerationConfig()
    """The reflection model's engines."""
    measure: MeasureConfig = MeasureConfig()
    grading: GradingConfig = GradingConfig()
