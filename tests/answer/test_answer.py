"""Random courses of an answer, run without a model: no token is lost, doubled or out of order.

What a model would say is made up from the text so far, so that the same text always goes on alike.
"""

import random
from collections import Counter
from itertools import pairwise

import pytest

from entropix_mlx.answer.interventions.base import TAIL
from entropix_mlx.answer.interventions.prose import sentence_end
from entropix_mlx.step import ChosenBy, Origin, Stopped
from tests.answer.test_comparison import found_by_search
from tests.scripted import EOS, PROMPT, PROSE, TOKENIZER, Cancel, Course, Host, make_profile


def make_course(seed):
    chance = random.Random(seed)
    letters = chance.choice([b"abc", b"ab. ", *[PROSE] * 5, bytes(range(97, 123))])
    limit = chance.choice([1, 2, 7, *[90] * 5])
    return Course(
        make_profile(chance),
        Host(chance, (seed % 7, letters)),
        limit,
        chance.choice([*[()] * 6, ("abc",), ("b", "ca"), ("zq", "is b"), (". ",)]),
        Cancel(chance.choice([*[10**9] * 6, 1, 5, 30])),
        tuple(chance.choice(letters) for _ in range(chance.choice([0, 0, 1, 3]))),
        chance.random() < 0.5,
        chance.choice([limit, limit + 3, 500]),
    )


@pytest.mark.parametrize("block", range(4))
def test_no_step_is_lost_or_doubled_in_any_course(block):
    seen = Counter()
    for seed in range(150 * block, 150 * (block + 1)):
        course = make_course(seed)
        steps = course.run()
        check_steps(steps, course.limit, course.cancel.happened)
        check_cache(course.host, steps)
        check_interventions(steps, course.profile, course.forced)
        check_text(steps, course.stops)
        check_room(steps, course.room, course.profile.think.watch)
        check_branches(steps, course)
        seen.update(step.origin for step in steps)
        seen.update(step.dropped.reason for step in steps if step.dropped)
    assert min(seen[Origin.INSERTED], seen[Origin.BRANCH]) > 100
    assert seen["echo"] + seen["loop"] + seen["worse"] + seen["end"] > 5


def check_steps(steps, limit, cancelled):
    assert [step.index for step in steps] == list(range(len(steps)))
    assert len(steps) <= limit
    assert all(step.finish_reason is None for step in steps[:-1])
    if not cancelled:
        last = steps[-1]
        assert last.finish_reason in ("stop", "length")
        assert (last.finish_reason == "length") == (len(steps) == limit and last.token != EOS) or (
            last.finish_reason == "stop"
        )


def check_cache(host, steps):
    """What was followed is the text: the whole of it, or all but its last token."""
    text = PROMPT + [step.token for step in steps]
    assert host.cached in (text, text[:-1])
    assert host.branches is None or not steps or steps[-1].finish_reason is None


def check_room(steps, room, watch):
    """No branch is longer than what the context still holds, nor a thought and what it is tried by.

    Tokens of a thought that follow one another are one thought, perhaps cut off by the end.
    """
    inserted = {step.index for step in steps if step.origin is Origin.INSERTED}
    for step in steps:
        left = room - step.index
        if step.fork is not None:
            assert max(len(branch.tokens) for branch in step.fork.branches) <= max(1, left)
        if step.index in inserted and step.index - 1 not in inserted:
            length = next(n for n in range(1, 99) if step.index + n not in inserted)
            assert length + watch < left


def check_interventions(steps, profile, forced):
    assert [s.token for s in steps[: len(forced)]] == list(forced)[: len(steps)]
    forks = [step.index for step in steps if step.fork]
    assert len(forks) <= profile.branch.max_branches
    for step in steps:
        if step.fork is not None:
            winner = step.fork.branches[step.fork.winner].tokens
            there = steps[step.index : step.index + len(winner)]
            assert [s.token for s in there] == list(winner)[: len(there)]
            by_user = step.fork.chosen_by is ChosenBy.USER
            assert all(s.origin is (Origin.CHOSEN if by_user else Origin.BRANCH) for s in there)
    inserted = [step.index for step in steps if step.origin is Origin.INSERTED]
    begins = [index for index in inserted if index - 1 not in inserted]
    dropped = [step for step in steps if step.dropped]
    tried = [step.index for step in dropped if step.dropped.origin is Origin.INSERTED]
    assert not any(steps[index].rolled_back for index in tried), "the draw was put back"
    assert len(begins) + len(tried) <= profile.think.max_insertions
    for index in begins:
        assert 0 <= index - steps[index].triggered_at <= profile.think.wait
        assert all(step.triggered_at is None for step in steps[index + 1 : index + 3])
    covered = sorted([*inserted, *tried])
    assert all(b - a == 1 or b - a > profile.think.min_gap for a, b in pairwise(covered))
    starts = [s.index for s in steps if s.rolled_back]
    assert set(starts) == set(begins) | set(forks) | ({0} if forced and steps else set())


def check_branches(steps, course):
    """Branches grow to the depth, unless something ends them, and forks have their distance."""
    rule, earliest = course.profile.branch, 0
    text = [*PROMPT, *(step.token for step in steps)]
    for step in steps:
        if step.fork is None:
            continue
        assert step.index >= earliest
        assert 1 < len(step.fork.branches) <= rule.width
        earliest = step.index + len(step.fork.branches[step.fork.winner].tokens) + rule.min_gap
        before, depth = text[: len(PROMPT) + step.index], min(rule.depth, course.room - step.index)
        known = TOKENIZER.decode(before[-TAIL:])
        for branch in step.fork.branches:
            assert sentence_end(known + branch.text, len(known)) is None, "nothing follows it"
            copied = found_by_search(before, list(branch.tokens), rule.copy_length)
            assert branch.copied == sum(copied)
            ends = EOS in branch.tokens or set(branch.text) & set(".!?\n")
            if not (ends or branch.stopped or course.cancel.happened):
                assert len(branch.tokens) == max(1, depth)
        if step.fork.chosen_by is ChosenBy.SCORE:
            assert step.fork.winner == leader(step.fork, rule.margin)


def leader(fork, margin):
    """Return the branch that leads by the margin, unless it was pruned; otherwise the first."""
    leads = {
        number: branch.lead
        for number, branch in enumerate(fork.branches)
        if branch.error is not None and branch.lead > margin * branch.error
    }
    ahead = {n: lead for n, lead in leads.items() if fork.branches[n].stopped != Stopped.BEHIND}
    return max(ahead, key=ahead.get, default=0)


def check_text(steps, stops):
    shown = "".join(step.text for step in steps)
    ends = [step.token for step in steps if step.token != EOS]
    whole = TOKENIZER.decode(ends)
    if steps and steps[-1].finish_reason is not None:
        found = [whole.find(stop) for stop in stops if stop in whole]
        expected = whole[: min(found)] if found else whole
        assert shown.strip() == expected.strip()
        assert bool(found) <= (steps[-1].finish_reason == "stop")
    assert not any(stop in shown for stop in stops)
