"""Ends of thoughts that are several tokens, one token or none, without an engine."""

import asyncio
from dataclasses import replace

import numpy as np
import scripted
from families import END, FAMILIES, family_tokenizer
from scripted import CLOSING, EOS, HEADER, RIGHT, THINK, RightIfItSaysSo, ScriptedGenerator

from rlsys.config import AnytimeConfig
from rlsys.environments.thoughts import AnswerRequest, ThoughtSampler
from rlsys.reflection.labelling.responses import Policy, Thought
from rlsys.tokenization.think import ThinkTokens, ThoughtEnd
from rlsys.tokenization.tokenizer import encode
from rlsys.types import Completion, Problem


def ids(tokenizer: object, *texts: str) -> np.ndarray:
    """The ids of texts that are encoded one by one, so that a text is cut where we want it."""
    return np.array([t for text in texts for t in encode(tokenizer, text)], np.int32)


def completion(token_ids: np.ndarray, *, stopped: bool) -> Completion:
    logprobs = -np.ones(len(token_ids), np.float32)
    return Completion(
        token_ids=token_ids, logprobs=logprobs, stopped=stopped, versions=(0, 0), engine=0
    )


def sampler(think: ThinkTokens) -> ThoughtSampler:
    return ThoughtSampler(
        think=think,
        decode=think.end.decode,
        temperature=1.0,
        generator=ScriptedGenerator([], lambda _: []),
        grader=RightIfItSaysSo(),
    )


def test_an_end_of_several_tokens_is_found_by_its_text() -> None:
    for family in FAMILIES:
        tokenizer = family_tokenizer(family)
        think = ThinkTokens.resolve(tokenizer, AnytimeConfig())
        end = think.end
        assert (end.stop_token_ids, end.stop_text) == ((), END)
        assert end.token_ids.tolist() == encode(tokenizer, END)
        assert think.cut_ids.tolist() == [*think.closing_ids, *end.token_ids, *think.header_ids]
        assert tokenizer.decode(think.cut_ids) == f"...\n\n...\n\n{END}\n\n**Final Answer**\n"
        letters = ids(tokenizer, *END)
        cases = [
            # Tokens of the thought, tokens of its end.
            (ids(tokenizer, "so it is"), 0),
            (ids(tokenizer, "so it is", END), len(end.token_ids)),
            (ids(tokenizer, "so it is", ".</", "think", ">\n\n"), 5),
            (np.concatenate([ids(tokenizer, "so"), letters]), len(letters)),
            (ids(tokenizer, "so it is", "</", "think"), 0),
            (ids(tokenizer, END), len(end.token_ids)),
            (np.zeros(0, np.int32), 0),
        ]
        for thought, tokens in cases:
            assert end.closing_tokens(thought) == tokens, tokenizer.decode(thought)
            assert think.closes(thought) == (tokens > 0)
            assert end.count(thought.tolist()) == (tokens > 0)
            found = sampler(think)
            whole = completion(thought, stopped=tokens > 0)
            assert len(found.reasoning(whole)) == len(thought) - tokens
            assert found.ending(whole).tolist() == thought[len(thought) - tokens :].tolist()


def test_text_after_the_last_end() -> None:
    tokenizer = family_tokenizer("llama-3")
    end = ThoughtEnd.resolve(tokenizer, END)
    shown = [
        end.text_after(ids(tokenizer, *texts).tolist(), tokenizer.decode)
        for texts in (("so", END, "it is"), ("a", END, "b", ".</", "think", ">\n\n", "9"), ("so",))
    ]
    assert shown == ["it is", "\n\n9", ""]
    one = THINK.end
    assert one.text_after([20, scripted.END, 21, scripted.END, 22], scripted.decode) == "22"
    assert one.text_after([20], scripted.decode) == ""


def test_answers_count_ends_over_forced_text_and_answer() -> None:
    tokenizer = family_tokenizer("qwen2.5")
    think = ThinkTokens.resolve(tokenizer, AnytimeConfig())
    found = sampler(think)
    thought = ids(tokenizer, "so it is", ".</", "think", ">\n\n")
    none, eos = ids(tokenizer, "9"), ids(tokenizer, "9", "<|im_end|>")
    again = ids(tokenizer, "9", "</", "think", ">")
    for kept, truncated, answer, well in (
        (thought, False, none, True),
        (thought[:3], True, none, True),
        # The cut is inside the end, whose beginning stays in the thought.
        (thought[:-1], True, none, True),
        (thought, False, again, False),
        (thought[:3], True, again, False),
        (thought, True, none, False),  # a second end is forced
        (thought[:3], False, none, False),  # no end at all
        (eos, True, none, False),
    ):
        request = AnswerRequest(
            prompt=none,
            kept=kept,
            forced=found.forced(truncated=truncated),
            gold="9",
            n=1,
            max_tokens=5,
            seed=0,
            engine=None,
        )
        missing = found._missing_ends(request)
        ends = think.end.count([*request.forced.tolist(), *answer.tolist()])
        assert (missing == ends) == well, (kept.tolist(), truncated)


def test_without_an_end_eos_ends_a_thought_and_stays_out_of_answers() -> None:
    tokenizer = family_tokenizer("llama-3")
    think = ThinkTokens.resolve(tokenizer, AnytimeConfig(think_end=None))
    assert (think.end.stop_token_ids, think.end.stop_text) == ((), None)
    assert think.cut_ids.tolist() == [*think.closing_ids, *think.header_ids]
    ended = completion(ids(tokenizer, "so it is", "<|eot_id|>"), stopped=True)
    length = len(ended.token_ids)
    found = sampler(think)
    assert found.is_closed(ended)
    assert [found.kept_tokens(ended, cut) for cut in (2, length)] == [2, length - 1]
    endless = completion(ids(tokenizer, "so it is"), stopped=False)
    assert not found.is_closed(endless)
    assert found.kept_tokens(endless, len(endless.token_ids)) == len(endless.token_ids)


def test_labelled_thoughts_keep_the_tokens_that_ended_them() -> None:
    tokenizer = family_tokenizer("qwen2.5")
    think = ThinkTokens.resolve(tokenizer, AnytimeConfig())
    problem = Problem(id="p", text="3+8", answer="11")
    end = ids(tokenizer, ".</", "think", ">\n\n")
    thought = Thought(
        id="p/0", problem=problem, token_ids=ids(tokenizer, "so"), closed=True, end_ids=end
    )
    again = Thought.from_row(thought.to_row())
    assert again.end_ids is not None
    assert again.end_ids.tolist() == end.tolist()
    old = Thought.from_row({k: v for k, v in thought.to_row().items() if k != "end_ids"})
    policy = Policy(
        sampler=sampler(think),
        renderer=scripted.FixedPrompt(),  # type: ignore[arg-type]
        thought_tokens=9,
        answer_tokens=9,
        seed=0,
    )
    for row, kept in ((again, end), (old, think.end.token_ids)):
        request = policy._request(row, len(row.token_ids))
        assert request.kept.tolist() == [*thought.token_ids, *kept]
        assert request.forced.tolist() == think.header_ids.tolist()


def test_an_episode_without_an_end_trains_its_eos() -> None:
    from rlsys.environments.anytime import AnytimeEnvironment

    think = replace(
        THINK,
        end=ThoughtEnd(text=None, token_ids=np.zeros(0, np.int32), decode=scripted.decode),
    )
    script = ScriptedGenerator([[20, 21, EOS]], lambda _: [RIGHT, EOS])
    environment = AnytimeEnvironment(
        sampler=replace(sampler(think), generator=script),
        renderer=scripted.FixedPrompt(),  # type: ignore[arg-type]
        budgets=(1, 2, 4),
        answers=1,
        answer_tokens=5,
        group_size=1,
        seed=7,
    )
    (episode,) = asyncio.run(environment.rollout(0, Problem(id="p", text="t", answer="g"))).episodes
    assert episode.segments[1].token_ids.tolist() == [20, 21, EOS]
    assert [request.token_ids[3:].tolist() for request in script.requests[1:]] == [
        [20, CLOSING, HEADER],
        [20, 21, CLOSING, HEADER],
        [20, 21, HEADER],
    ]
    assert episode.scores.tolist() == [1, 1, 1]
