"""What a run works with, loaded and checked before Ray starts: model, tokenizer and tasks."""

from __future__ import annotations

from collections.abc import Callable

from rlsys.config import RunConfig
from rlsys.environments.base import InputContext, Inputs
from rlsys.environments.registry import environment_class
from rlsys.errors import RlsysError
from rlsys.grading.compare import self_test, start_process
from rlsys.launch.preflight import check_batch, check_shares
from rlsys.launch.teacher import check_teacher
from rlsys.tokenization.model_folder import check_model
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import load_tokenizer


def checked_inputs(config: RunConfig, tell: Callable[[str], None]) -> Inputs:
    """Return what the run works with, and tell how much it is; errors are those of `check_inputs`.

    Raises RlsysError if the grader grades known answers wrong.
    """
    start_process()  # for the self-test: it imports computer algebra while the inputs are read
    inputs = check_inputs(config)
    tell(inputs.summary)
    wrong = self_test()
    if wrong:
        raise RlsysError(f"the grader fails its self-test: {'; '.join(wrong)}; see rlsys doctor")
    return inputs


def check_inputs(config: RunConfig) -> Inputs:
    """Load model settings, tokenizer and what the environment asks, and fit them to each other.

    Raises:
        ModelError: no such model, a tokenizer without the needed tokens, or sequences longer than
            the model takes.
        DataError: problems are missing, empty or malformed, or every prompt is too long.
    """
    check_shares(config)
    check_batch(config)
    limit = check_model(
        config.model,
        on_cpu=not config.generation.gpus_per_engine,
        trained=True,
        sequence_ranks=config.learner.sequence_ranks,
    )
    tokenizer = load_tokenizer(config.model.path)
    teacher_limit = check_teacher(config, tokenizer)
    if teacher_limit is not None:
        limit = min(limit, teacher_limit)
    context = InputContext(
        config=config,
        tokenizer=tokenizer,
        renderer=PromptRenderer(tokenizer, config.data.prompt),
        limit=limit,
    )
    return environment_class(config).inputs(context)
