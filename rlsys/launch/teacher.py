"""The teacher of `distillation`: checked before Ray starts, and named by its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rlsys.config import DistillationConfig, RunConfig
from rlsys.errors import ModelError
from rlsys.tokenization.model_folder import check_model, resolve_model_path
from rlsys.tokenization.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEACHER: Final = "distillation.teacher"
"""Configuration key of the teacher."""


def check_teacher(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the longest sequence of the teacher, None for a run without one.

    `tokenizer` is the policy's. Raises ModelError: the learner cannot compute log-probs of the
    teacher, or the two models do not mean the same text by the same ids.
    """
    if config.distillation is None:
        return None
    teacher = config.distillation.teacher
    # The learner runs the teacher, so the limits of engines on the CPU do not concern it.
    limit = check_model(
        teacher,
        on_cpu=False,
        key=TEACHER,
        trained=True,
        sequence_ranks=config.learner.sequence_ranks,
    )
    known = load_tokenizer(teacher.path, f"{TEACHER}.path").get_vocab()
    vocabulary = tokenizer.get_vocab()
    other = sorted(text for text, token in vocabulary.items() if known.get(text) != token)
    if other:
        raise ModelError(
            f"{TEACHER}.path {teacher.path!r} has another tokenizer than model.path "
            f"{config.model.path!r}: {len(other):,} of {len(vocabulary):,} tokens, for instance "
            f"{other[0]!r}, have another id or none, so the teacher would read other text; use a "
            "teacher with the same tokenizer"
        )
    rows, needed = _rows(teacher.path), _rows(config.model.path)
    if rows < needed:
        raise ModelError(
            f"{TEACHER}.path {teacher.path!r} has {rows:,} rows of the embedding and model.path "
            f"{config.model.path!r} {needed:,}, so the teacher has none for some ids that the "
            "policy can sample; call resize_token_embeddings on one of the models and save it"
        )
    return limit


def with_folder(distillation: DistillationConfig | None) -> DistillationConfig | None:
    """Return the settings with the teacher's folder in the place of the name of a shipped model."""
    if distillation is None:
        return None
    path = str(resolve_model_path(distillation.teacher.path, f"{TEACHER}.path"))
    teacher = distillation.teacher.model_copy(update={"path": path})
    return distillation.model_copy(update={"teacher": teacher})


def _rows(path: str) -> int:
    """Return the number of ids that a model has an embedding for."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(resolve_model_path(path), trust_remote_code=False)
    return int(config.get_text_config().vocab_size)
