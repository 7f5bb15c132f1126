"""A recorded conversation in place of a model, as a backend: what `entropix chat --demo` plays."""

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import TYPE_CHECKING

from ..chat.base import ChatSession
from ..chat.conversation import Conversation, Reply, Turn
from ..errors import SessionError
from ..profiles.profile import Profile
from ..profiles.tree import TREE_SAMPLER
from ..records import from_record
from ..settings import Settings
from ..step import Fork, Step
from ..traces.trace import Header
from .events import CancelToken, Duel, DuelBegan, DuelForkGrew, DuelStepsArrived, Report

if TYPE_CHECKING:
    from ..checkpoints.inventory import LocalModel

FILE, PROFILE_FILE = "demo.json.gz", "demo.toml"
MODEL, CONTEXT = "recorded: SmolLM2-135M", 8192
"""What the answers of `FILE` were made with."""


@dataclass
class Recording:
    """A conversation, and how the branches of its forks grew."""

    conversation: Conversation
    """Each question with several answers."""
    races: dict[tuple[int, int, int], list[Fork]] = field(default_factory=dict)
    """By turn, answer and step: the branches at each pass."""
    rivals: dict[str, Conversation] = field(default_factory=dict)
    """By sampler: the same questions, each answered by it, for duels with the first answer of
    `conversation`."""
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    """By question: the tokens of its prompt."""
    pace: float = 1.0
    """How many times as fast as they were recorded answers come; 0 is at once."""

    def turn_of(self, question: str) -> Turn:
        question = question.strip().casefold()
        for turn in self.conversation.turns:
            if turn.question.casefold() == question:
                return turn
        raise SessionError(
            "the demo has no model, only a recording: Ctrl+N, then press 1, 2 or 3, asks what was"
            " recorded"
        )

    def side(self, question: str, sampler: str) -> Reply:
        turn = self.turn_of(question)
        if sampler == TREE_SAMPLER:
            return turn.answers[0]
        if sampler not in self.rivals:
            known = " and ".join((TREE_SAMPLER, *self.rivals))
            raise SessionError(f"the demo has no model, only a recording of {known}")
        return self.rivals[sampler].turns[self.conversation.turns.index(turn)].answer

    def timeline(self, answer: Reply, first: int = 0) -> Iterator[tuple[float, Step | Fork]]:
        """Yield the steps of an answer from one on, and before a fork its branches as they grow.

        Each comes with the seconds since the step before the first one.
        """
        races = self._races(answer)
        start = before = answer.steps[first - 1].time if first else 0.0
        for step in answer.steps[first:]:
            grown = races.get(step.index, [])
            pause = (step.time - before) / (len(grown) + 1)
            for number, fork in enumerate(grown, 1):
                yield before - start + number * pause, fork
            yield step.time - start, step
            before = step.time

    def play(
        self, answers: Mapping[int, Reply], cancel: CancelToken, first: int = 0
    ) -> Iterator[tuple[int, Step | Fork]]:
        """Yield the timelines of several answers, each at its time and with its key."""
        lines = [
            [(time, key, item) for time, item in self.timeline(answer, first)]
            for key, answer in answers.items()
        ]
        now = 0.0
        for time, key, item in heapq.merge(*lines, key=lambda event: event[:2]):
            if self.pace and cancel.wait(max(0.0, time - now) / self.pace):
                return
            now = time
            yield key, item

    def _races(self, recorded: Reply) -> dict[int, list[Fork]]:
        for turn, asking in enumerate(self.conversation.turns):
            for number, answer in enumerate(asking.answers):
                if answer is recorded:
                    races = self.races.items()
                    return {p[2]: grown for p, grown in races if p[:2] == (turn, number)}
        return {}


def demo_recording(pace: float = 1.0) -> Recording:
    """Return the recording that comes with the package; `benchmarks/record_demo.py` made it."""
    file = resources.files(__package__) / FILE
    record = json.loads(gzip.decompress(file.read_bytes()))
    races = {
        tuple(race["place"]): [from_record(Fork, fork) for fork in race["grown"]]
        for race in record["races"]
    }
    rivals = {name: _conversation(rival) for name, rival in record["rivals"].items()}
    counts = record["prompt_tokens"]
    return Recording(_conversation(record["conversation"]), races, rivals, counts, pace)


def _conversation(record: object) -> Conversation:
    return Conversation.from_json(json.dumps(record), FILE)


def demo_profile() -> Profile:
    """Return the profile that the recording was made with: the demo model's may be newer."""
    with resources.as_file(resources.files(__package__) / PROFILE_FILE) as path:
        return Profile.load(path)


class RecordedSession(ChatSession):
    """A conversation that takes its answers from a recording, in their order."""

    context_length = CONTEXT

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    @property
    def context_used(self) -> int:
        if not self.conversation.turns:
            return 0
        turn = self.conversation.last
        answered = len(turn.answer.steps) if turn.answers else 0
        return self._recording.prompt_tokens.get(turn.question, 0) + answered

    @cached_property
    def profile(self) -> Profile:
        return demo_profile()

    def begin(
        self, conversation: Conversation, reply: Reply, forced: Sequence[int], cancel: CancelToken
    ) -> Generator[Step, None, None]:
        """See `ChatSession.begin`; after the last answer to a question comes the first again."""
        turn = conversation.last
        recorded = self._recording.turn_of(turn.question)
        turn.question, answers = recorded.question, recorded.answers
        if forced:
            tokens = [*(step.token for step in reply.steps), *forced]
            same = [a for a in answers if [s.token for s in a.steps[: len(tokens)]] == tokens]
            if not same:
                raise SessionError(_other_branches(turn.answer, answers))
            answer = same[0]
        else:
            answer = answers[len(turn.answers) % len(answers)]
        reply.seed, reply.model = answer.seed, answer.model
        return self._play(answer, len(reply.steps), cancel)

    def load(self, path: object) -> None:
        """Refuse: what comes after that conversation was not recorded."""
        raise SessionError("the demo plays its own recording only: run entropix chat without it")

    def _play(self, answer: Reply, first: int, cancel: CancelToken) -> Generator[Step, None, None]:
        index = first
        for _, item in self._recording.play({0: answer}, cancel, first):
            if isinstance(item, Step):
                index += 1
                yield item
            elif self.on_fork is not None:
                self.on_fork(index, item)


@dataclass
class RecordedBackend:
    """A recording; see `Backend`."""

    settings: Settings
    """They are shown, but not heeded."""
    recording: Recording
    model: str = MODEL
    system_prompt: str | None = None
    ask: bool = False
    refusals: Mapping[str, str] = field(default_factory=dict, init=False)

    def open(self, model: str | None = None) -> RecordedSession:
        if model is not None:
            self.models()
        return RecordedSession(self.recording)

    def models(self) -> Sequence[LocalModel]:
        raise SessionError("the demo has no models: run entropix chat")

    def duel(self, duel: Duel, report: Report) -> None:
        answers: dict[int, Reply] = {}
        headers: list[Header | None] = [None, None]
        for side, settings in enumerate(duel.sides):
            try:
                answers[side] = self.recording.side(duel.question.text, settings.sampler)
            except SessionError as error:
                report(DuelStepsArrived(duel.cancel, side, [], ended=True, error=str(error)))
            else:
                headers[side] = self._header(
                    duel.with_question, settings.sampler, answers[side].seed
                )
        report(DuelBegan(duel.cancel, tuple(headers)))
        for side, item in self.recording.play(answers, duel.cancel):
            if isinstance(item, Step):
                ended = item is answers[side].steps[-1]
                report(DuelStepsArrived(duel.cancel, side, [item], ended))
            else:
                report(DuelForkGrew(duel.cancel, side, item))

    def _header(self, conversation: Conversation, sampler: str, seed: int) -> Header:
        return Header(
            model=self.model,
            sampler=sampler,
            profile=demo_profile(),
            seed=seed,
            messages=conversation.prompt_messages,
            context_length=CONTEXT,
            prompt_tokens=self.recording.prompt_tokens.get(conversation.last.question, 0),
        )


def _other_branches(answer: Reply, recorded: Sequence[Reply]) -> str:
    named = []
    for other in recorded:
        pairs = zip(answer.steps, other.steps, strict=False)
        part = next((two for one, two in pairs if one.token != two.token), None)
        if part is not None and part.index:
            named.append(f"{part.text.strip()!r} at token {part.index + 1}")
    known = f"go {' or '.join(named)}" if named else "answer again by Ctrl+R"
    return f"the demo has no model to go on with, only what was recorded: {known}"
