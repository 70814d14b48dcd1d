"""The reflection model on its own: does it find the result, and what do its cuts cost and save?

Revision alone, without any training: thoughts are cut as a strength says, the policy answers from
there, and accuracy and tokens are compared with those of the whole thoughts. Cuts that nobody chose
are the baseline: at fixed shares of all thought tokens, and at the share that a strength kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, get_args

import numpy as np

from rlsys.algorithms.reflection import ChunkedThought, Strength, fixed_ratio_cuts
from rlsys.algorithms.reflection.detection import SURE
from rlsys.reflection.detector import (
    Detection,
    Detector,
    SampledThought,
    detection_counts,
    first_result,
)
from rlsys.reflection.labelling.responses import AnswerFrom, Policy, Thought
from rlsys.reflection.labelling.rows import LabelledThought
from rlsys.types import Verdict

STRENGTHS: Final[tuple[Strength, ...]] = get_args(Strength)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionScores:
    """How often the reflection model says what the teacher says; thoughts without chunks aside."""

    thoughts: int
    chunks: int
    accuracy: float
    """Chunks labelled as the teacher does."""
    all_think: float
    """The same for a model that calls every chunk `Think`."""
    first_accuracy: float
    """Thoughts of which the first result chunk is the teacher's, or neither finds one."""
    first_of_answered: float
    """The same of those thoughts that state the right answer: the others have no right cut."""
    precision: float
    """Of the chunks called `Result`, those that are; 0 if there are none."""
    recall: float
    """Of the chunks that are results, those called so; 0 if there are none."""


def detection_scores(
    detections: Sequence[Detection], results: Sequence[Sequence[int]]
) -> DetectionScores:
    """Compare detections with the teacher's result chunks. What was not read counts as `Think`."""
    said: list[bool] = []
    true: list[bool] = []
    firsts: list[bool] = []
    answered: list[bool] = []
    for detection, chunks in zip(detections, results, strict=True):
        count = len(detection.thought.chunks)
        if not count:
            continue
        reading = detection.reading
        probabilities_N = np.zeros(count) if reading is None else reading.probabilities_N
        said += (probabilities_N >= SURE).tolist()
        true += [chunk in chunks for chunk in range(count)]
        firsts.append(first_result(probabilities_N) == (min(chunks) if chunks else None))
        if chunks:
            answered.append(firsts[-1])
    pairs = list(zip(said, true, strict=True))
    both = sum(s and t for s, t in pairs)
    return DetectionScores(
        thoughts=len(firsts),
        chunks=len(pairs),
        accuracy=_share(sum(s == t for s, t in pairs), len(pairs)),
        all_think=_share(len(pairs) - sum(true), len(pairs)),
        first_accuracy=_share(sum(firsts), len(firsts)),
        first_of_answered=_share(sum(answered), len(answered)),
        precision=_share(both, sum(said)),
        recall=_share(both, sum(true)),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionScores:
    """One way to cut: what the policy answers from there."""

    cut: str
    """`original`, a strength, `teacher`, `ratio 0.5`, or `as normal` (its share, blindly)."""
    accuracy: float
    tokens: float
    """Mean of a response: kept thought, forced tokens and answer."""
    token_ratio: float
    """In percent of the original's tokens."""
    thought_ratio: float
    """Kept thought tokens in percent."""


class DetectorEvaluation(NamedTuple):
    """The reflection model on its own."""

    detection: DetectionScores
    counts: Mapping[str, int]
    """See `detection_counts`."""
    revisions: tuple[RevisionScores, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "detection": asdict(self.detection),
            "counts": dict(self.counts),
            "revisions": [asdict(r) for r in self.revisions],
        }


async def evaluate_detector(
    policy: Policy,
    detector: Detector,
    labelled: Sequence[LabelledThought],
    ratios: Sequence[float],
) -> DetectorEvaluation:
    """Detect and revise thoughts whose result chunks are known.

    Args:
        policy: whose thoughts they are, and who answers from the cuts.
        detector: the reflection model.
        labelled: the thoughts.
        ratios: shares of all thought tokens that blind cuts keep.
    """
    thoughts = [item.thought for item in labelled]
    detections = await detector.detect(
        [SampledThought(t.problem.text, t.token_ids) for t in thoughts]
    )
    cuts = revision_cuts(labelled, detections, ratios)
    answers = await _answers(policy, thoughts, cuts)
    originals = answers["original"]
    revisions = tuple(
        _revision_scores(name, cuts[name], answers[name], originals, thoughts) for name in cuts
    )
    return DetectorEvaluation(
        detection_scores(detections, [item.results for item in labelled]),
        detection_counts(detections),
        revisions,
    )


def revision_cuts(
    labelled: Sequence[LabelledThought], detections: Sequence[Detection], ratios: Sequence[float]
) -> dict[str, list[int]]:
    """Return the kept tokens of every thought under every way to cut, by its name."""
    whole = [len(item.thought.token_ids) for item in labelled]
    cuts = {"original": whole, "teacher": [item.known_tokens for item in labelled]}
    for strength in STRENGTHS:
        cuts[strength] = [
            _kept(detection, length, strength)
            for detection, length in zip(detections, whole, strict=True)
        ]
    shares = {f"ratio {ratio:g}": ratio for ratio in ratios}
    shares |= {f"as {strength}": _share(sum(cuts[strength]), sum(whole)) for strength in STRENGTHS}
    written = [i for i, length in enumerate(whole) if length]
    places = [boundaries(labelled[i].chunked, whole[i]) for i in written]
    for name, share in shares.items():
        blind = dict(zip(written, fixed_ratio_cuts(places, share), strict=True))
        cuts[name] = [blind.get(i, 0) for i in range(len(whole))]
    return cuts


def _kept(detection: Detection, length: int, strength: Strength) -> int:
    """Tokens kept of a thought of `length`: all where nothing follows the chunk to cut after.

    A training step drops the last piece there, to have a revision at all; if that was the answer,
    the original takes the revision's place. Here there is no second try.
    """
    cut = detection.cut(strength)
    if cut is None or cut == len(detection.thought.chunks) - 1:
        return length
    return detection.thought.kept_tokens(cut)


def boundaries(chunked: ChunkedThought, length: int) -> list[int]:
    """Token counts at which a thought may be cut blindly: the ends of its pieces, and its own."""
    inner = {piece.token_end for piece in chunked.pieces[:-1]}
    return sorted({*inner, length})


async def _answers(
    policy: Policy, thoughts: Sequence[Thought], cuts: Mapping[str, Sequence[int]]
) -> dict[str, list[AnswerFrom]]:
    """The answer of every thought from every cut; equal cuts are answered once."""
    places = sorted({(i, kept) for row in cuts.values() for i, kept in enumerate(row)})
    answers = await policy.answer([thoughts[i] for i, _ in places], [kept for _, kept in places])
    known = dict(zip(places, answers, strict=True))
    return {name: [known[place] for place in enumerate(row)] for name, row in cuts.items()}


def _revision_scores(
    name: str,
    cuts: Sequence[int],
    answers: Sequence[AnswerFrom],
    originals: Sequence[AnswerFrom],
    thoughts: Sequence[Thought],
) -> RevisionScores:
    tokens, before = sum(a.tokens for a in answers), sum(a.tokens for a in originals)
    thought_tokens = sum(len(t.token_ids) for t in thoughts)
    return RevisionScores(
        cut=name,
        accuracy=_share(sum(a.verdict is Verdict.RIGHT for a in answers), len(answers)),
        tokens=_share(tokens, len(answers)),
        token_ratio=100.0 * _share(tokens, before),
        thought_ratio=100.0 * _share(sum(cuts), thought_tokens),
    )
