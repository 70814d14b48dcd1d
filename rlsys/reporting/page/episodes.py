"""Episodes of every environment in one form, which the page shows as text.

{"title": "2-5+1", "facts": [["gold", "-2"]],
 "blocks": [{"label": "thought", "pieces": ["2-5=-3;", {"cut": "16"}, "-3+1=-2"]}],
 "head": ["budget", "answer", "verdict", "score"], "rows": [["16", "-2}", "right", "1"]]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rlsys.reporting.page.run_files import RunFiles

EPISODES: Final = 64
"""Episodes of one file that the page shows."""

Shown = dict[str, Any]


def browsable(runs: Sequence[RunFiles]) -> dict[str, dict[str, list[Shown]]]:
    """Return run -> file -> episodes, at most EPISODES of a file. Runs without any are left out."""
    return {
        run.name: {
            name: [shown(episode) for episode in episodes[:EPISODES]]
            for name, episodes in run.samples.items()
            if episodes
        }
        for run in runs
        if any(run.samples.values())
    }


def shown(episode: Mapping[str, Any]) -> Shown:
    """Return one episode in the form of the page; unknown forms show their fields as facts."""
    title = str(episode.get("problem", f"seed {episode.get('seed', '?')}"))
    facts = [["group", _text(episode.get("group"))]]
    if "gold" in episode:
        facts.append(["gold answer", _text(episode["gold"])])
    blocks: list[Shown] = []
    head: list[str] = []
    rows: list[list[str]] = []
    if "answers" in episode:
        facts.append(["thought", f"{episode['thought_tokens']} tokens"])
        blocks = [{"label": "thought", "pieces": thought_pieces(episode)}]
        head = ["budget", "cut at token", "answer", "verdict", "score"]
        rows = [
            [_text(answer.get(key)) for key in ("budget", "cut", "text", "verdict", "score")]
            for answer in episode["answers"]
        ]
    elif "turns" in episode:
        facts.append(["return", _text(episode.get("return"))])
        head = ["turn", "prompt", "reply", "tokens", "verdict", "reward"]
        rows = [
            [str(place), *(_text(turn.get(key)) for key in ("prompt", "reply", *head[3:]))]
            for place, turn in enumerate(episode["turns"], 1)
        ]
    elif "segments" in episode:
        blocks = [{"label": s["kind"], "pieces": [s["text"]]} for s in episode["segments"]]
        head = ["verdict", "score"]
        rows = [
            [_text(verdict), _text(score)]
            for verdict, score in zip(episode["verdicts"], episode["scores"], strict=True)
        ]
    elif "thought" in episode:
        facts.append(["thought", f"{episode.get('thought_tokens')} tokens"])
        blocks = [{"label": "thought", "pieces": [str(episode["thought"])]}]
        kinds = [k for k in ("original", "revision") if isinstance(episode.get(k), dict)]
        head = ["thought", "tokens kept", "answer", "verdict", "reflections"]
        rows = [
            [kind, *(_text(episode[kind].get(k)) for k in ("kept", "text", *head[3:]))]
            for kind in kinds
        ]
    else:
        facts = [[str(key), _text(value)] for key, value in episode.items()]
    return {"title": title, "facts": facts, "blocks": blocks, "head": head, "rows": rows}


def thought_pieces(episode: Mapping[str, Any]) -> list[str | dict[str, str]]:
    """Return the text of a thought with a mark `{"cut": BUDGET}` where each budget ends it.

    Episodes of earlier versions lack `cut_characters`; their marks are placed in proportion to the
    tokens. A thought has no mark for a budget that it did not use up, and one at its end only if it
    used up the largest.
    """
    thought, tokens = str(episode["thought"]), int(episode["thought_tokens"])
    largest = max((int(answer["budget"]) for answer in episode["answers"]), default=0)
    ends: dict[int, list[str]] = {}
    for answer in episode["answers"]:
        budget, cut = str(answer["budget"]), int(answer["cut"])
        if cut < tokens or cut == largest:
            place = answer.get("cut_characters", round(len(thought) * cut / max(tokens, 1)))
            budgets = ends.setdefault(min(int(place), len(thought)), [])
            if budget not in budgets:
                budgets.append(budget)
    pieces: list[str | dict[str, str]] = []
    start = 0
    for end, budgets in sorted(ends.items()):
        pieces += [thought[start:end], {"cut": ", ".join(budgets)}]
        start = end
    return [piece for piece in (*pieces, thought[start:]) if piece]


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
