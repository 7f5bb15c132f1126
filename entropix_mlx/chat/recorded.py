"""A recorded conversation in place of a model, as a backend: what `entropix chat --demo` plays."""

from __future__ import annotations

import gzip
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import TYPE_CHECKING

from ..errors import SessionError
from ..profiles.profile import Profile
from ..settings import Settings
from ..step import Step
from .conversation import Conversation, Reply, Turn
from .events import CancelToken
from .session import ChatSession

if TYPE_CHECKING:
    from ..checkpoints.local import LocalModel

FILE, PROFILE_FILE = "demo.json.gz", "demo.toml"
MODEL, CONTEXT = "recorded: SmolLM2-135M", 8192
"""What the answers of `FILE` were made with."""


@dataclass
class Recording:
    """A conversation, and the pace at which it is played."""

    conversation: Conversation
    """Each question with several answers."""
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
            "the demo has no model, only a recording: Ctrl+N, then ↑ and Enter, asks what was"
            " recorded"
        )


def demo_recording(pace: float = 1.0) -> Recording:
    """Return the recording that comes with the package; `benchmarks/record_demo.py` made it."""
    file = resources.files(__package__) / FILE
    record = json.loads(gzip.decompress(file.read_bytes()))
    conversation = Conversation.from_json(json.dumps(record["conversation"]), FILE)
    return Recording(conversation, record["prompt_tokens"], pace)


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
        pace, now = self._recording.pace, answer.steps[first - 1].time if first else 0.0
        for step in answer.steps[first:]:
            if pace and cancel.wait(max(0.0, step.time - now) / pace):
                return
            now = step.time
            yield step


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


def _other_branches(answer: Reply, recorded: Sequence[Reply]) -> str:
    named = []
    for other in recorded:
        pairs = zip(answer.steps, other.steps, strict=False)
        part = next((two for one, two in pairs if one.token != two.token), None)
        if part is not None and part.index:
            named.append(f"{part.text.strip()!r} at token {part.index + 1}")
    known = f"go {' or '.join(named)}" if named else "answer again by Ctrl+R"
    return f"the demo has no model to go on with, only what was recorded: {known}"
