"""A recording as the source of a conversation: what `entropix chat --demo` plays."""

from __future__ import annotations

import gzip
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from threading import Event
from typing import TYPE_CHECKING

from ..errors import SessionError
from ..profiles.profile import Profile
from ..step import Step
from .conversation import Conversation, Reply, Turn
from .session import AnswerSource, Asked

if TYPE_CHECKING:
    from ..checkpoints.local import LocalModel

FILE, PROFILE_FILE = "demo.json.gz", "demo.toml"
MODEL, CONTEXT = "recorded: SmolLM2-135M", 8192  # what the answers of `FILE` were made with


@dataclass
class Recording:
    """A conversation, and the pace at which it is played."""

    conversation: Conversation  # each question with several answers
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    """By question: the tokens of its prompt."""
    pace: float = 1.0  # speed of the answers, as a multiple of the recorded one; 0 is at once

    def turn_of(self, question: str) -> Turn:
        question = question.strip().casefold()
        for turn in self.conversation.turns:
            if turn.question.casefold() == question:
                return turn
        raise SessionError(
            "the demo has no model, only a recording: Ctrl+N, then ↑ and Enter, asks what was"
            " recorded"
        )


def demo_recording(pace: float = 1.0) -> Recording:
    """Return the recording that comes with the package; `benchmarks/record_demo.py` made it."""
    file = resources.files(__package__) / FILE
    record = json.loads(gzip.decompress(file.read_bytes()))
    conversation = Conversation.of_record(record["conversation"], FILE)
    return Recording(conversation, record["prompt_tokens"], pace)


def demo_profile() -> Profile:
    """Return the profile that the recording was made with: the demo model's may be newer."""
    with resources.as_file(resources.files(__package__) / PROFILE_FILE) as path:
        return Profile.load(path)


class RecordedSource(AnswerSource):
    """A recording in place of a model; see `AnswerSource`.

    The settings are shown, but not applied.
    """

    model = MODEL
    context_length = CONTEXT
    refusals: Mapping[str, str] = {
        "open": "the demo plays its own recording only: run entropix chat without it"
    }

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @cached_property
    def auto_profile(self) -> Profile:
        return demo_profile()

    def open(self, model: str | None = None) -> None:
        if model is not None:
            self.models()

    def models(self) -> Sequence[LocalModel]:
        raise SessionError("the demo has no models: run entropix chat")

    def answer(self, asked: Asked) -> Generator[Step, None, None]:
        """See `AnswerSource.answer`; after the last answer to a question comes the first again."""
        turn, reply = asked.conversation.last, asked.reply
        recorded = self._recording.turn_of(turn.question)
        turn.question, answers = recorded.question, recorded.answers
        if asked.forced:
            tokens = [*(step.token for step in reply.steps), *asked.forced]
            same = [a for a in answers if [s.token for s in a.steps[: len(tokens)]] == tokens]
            if not same:
                raise SessionError(_other_branches(turn.answer, answers))
            answer = same[0]
        else:
            answer = answers[len(turn.answers) % len(answers)]
        reply.seed, reply.model = answer.seed, answer.model
        reply.prompt_tokens = self._recording.prompt_tokens.get(turn.question, 0)
        return self._play(answer, len(reply.steps), asked.hooks.cancel or Event())

    def _play(self, answer: Reply, first: int, cancel: Event) -> Generator[Step, None, None]:
        pace, now = self._recording.pace, answer.steps[first - 1].time if first else 0.0
        for step in answer.steps[first:]:
            if pace and cancel.wait(max(0.0, step.time - now) / pace):
                return
            now = step.time
            yield step


def _other_branches(answer: Reply, recorded: Sequence[Reply]) -> str:
    named = []
    for other in recorded:
        pairs = zip(answer.steps, other.steps, strict=False)
        part = next((two for one, two in pairs if one.token != two.token), None)
        if part is not None and part.index:
            named.append(f"{part.text.strip()!r} at token {part.index + 1}")
    known = f"go {' or '.join(named)}" if named else "answer again by Ctrl+R"
    return f"the demo has no model to go on with, only what was recorded: {known}"
