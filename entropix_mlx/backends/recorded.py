"""A recorded conversation in place of a model: what `entropix chat --demo` plays."""

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, NoReturn

from ..chat.conversation import Answer, Conversation, Turn
from ..errors import SessionError
from ..profiles.profile import Profile
from ..profiles.tree import TREE_SAMPLER
from ..records import from_record
from ..settings import Settings
from ..step import Fork, Step
from ..traces.trace import Header
from . import events
from .events import Event, Question, Token
from .local import Chat, ModelThread

if TYPE_CHECKING:
    from ..answer.hooks import OnFork

FILE, PROFILE_FILE = "demo.json.gz", "demo.toml"
MODEL, CONTEXT = "recorded: SmolLM2-135M", 8192
"""What the answers of `FILE` were made with."""
CHARACTERS_A_TOKEN = 4
"""For the status line, which counts the tokens of questions."""


@dataclass
class Recording:
    """A conversation, and how the ways of its forks grew."""

    conversation: Conversation
    """Each question with several answers."""
    races: dict[tuple[int, int, int], list[Fork]] = field(default_factory=dict)
    """By turn, answer and step: the ways at each pass."""
    rivals: dict[str, Conversation] = field(default_factory=dict)
    """By sampler: the same questions, each answered by it, for duels with the first answer of
    `conversation`."""


def demo_recording() -> Recording:
    """Return the recording that comes with the package; `benchmarks/record_demo.py` made it."""
    file = resources.files(__package__) / FILE
    record = json.loads(gzip.decompress(file.read_bytes()))
    races = {
        tuple(race["place"]): [from_record(Fork, fork) for fork in race["grown"]]
        for race in record["races"]
    }
    rivals = {name: _conversation(rival) for name, rival in record["rivals"].items()}
    return Recording(_conversation(record["conversation"]), races, rivals)


def _conversation(record: object) -> Conversation:
    return Conversation.from_json(json.dumps(record), FILE)


def demo_profile() -> Profile:
    """Return the profile that the recording was made with: the demo model's may be newer."""
    with resources.as_file(resources.files(__package__) / PROFILE_FILE) as path:
        return Profile.load(path)


def demo_chat(settings: Settings, pace: float = 1.0) -> Chat:
    """Return a chat that plays the recording of the package.

    Args:
        settings: shown, but not heeded.
        pace: see `RecordedSession`.
    """

    def load() -> NoReturn:
        raise SessionError("the demo has no model")

    def make_thread(chat: Chat, report: Callable[[Event], None]) -> ModelThread:
        return RecordedThread(chat, report, demo_recording(), pace)

    return Chat(MODEL, load, settings, make_thread=make_thread)


class RecordedSession:
    """Answers like a `Session`, as far as it was recorded."""

    def __init__(self, recording: Recording, pace: float = 1.0) -> None:
        """Begin a conversation.

        Args:
            recording: its questions can be asked; their answers are given in their order.
            pace: how many times as fast as they were recorded answers come; 0 is at once.
        """
        self.conversation = Conversation()
        self.settings = Settings()
        self.choose: object = None
        self.on_fork: OnFork | None = None
        """Told how the ways of a fork grow."""
        self._recording = recording
        self._pace = pace

    def send(
        self, text: str, turn: int | None = None, *, cancel: Token | None = None
    ) -> Iterator[Step]:
        """Play the first answer to a question.

        Raises:
            SessionError: it was not recorded.
        """
        recorded = self._recorded(text)
        asked = self.conversation.asking(recorded.question, turn)
        self.conversation.turns = asked.turns
        return self._play(recorded.answers[0], 0, cancel)

    def regenerate(self, *, cancel: Token | None = None) -> Iterator[Step]:
        """Play another answer to the last question; after the last one, the first again."""
        last = self.conversation.last
        answers = self._recorded(last.question).answers
        return self._play(answers[len(last.answers) % len(answers)], 0, cancel)

    def fork(
        self,
        step_index: int,
        token: int | Sequence[int],
        turn: int | None = None,
        *,
        cancel: Token | None = None,
    ) -> Iterator[Step]:
        """Go another way, if it was recorded.

        Raises:
            SessionError: it was not; the message says which ways were.
        """
        tokens = [token] if isinstance(token, int) else list(token)
        index = self.conversation.turn_at(turn)
        old = self.conversation.turns[index]
        kept = [step.token for step in old.answer.before(step_index)]
        answers = self._recorded(old.question).answers
        for answer in answers:
            begins = [step.token for step in answer.steps[: step_index + len(tokens)]]
            if begins == kept + tokens:
                self.conversation.set_aside(index)
                return self._play(answer, step_index, cancel)
        raise SessionError(_ways(old.answer, answers))

    def select(self, answer: int, turn: int | None = None) -> None:
        """Make another answer part of the conversation."""
        self.conversation.select(answer, turn)

    def instruct(self, system_prompt: str | None) -> None:
        """Precede the conversation with instructions, which no recording heeds."""
        self.conversation.system_prompt = system_prompt

    def new(self) -> None:
        """Begin another conversation."""
        self.conversation = Conversation(self.conversation.system_prompt)

    def adopt(self, text: str, turn: int | None, seed: int, steps: Sequence[Step]) -> None:
        """Add a question that was answered in a duel."""
        self.conversation.adopt(text, turn, Answer(seed, list(steps), MODEL))

    def side(self, question: str, sampler: str) -> Answer:
        """Return the answer of a sampler to a question, for one side of a duel.

        Raises:
            SessionError: it was not recorded.
        """
        asked = self._recorded(question)
        if sampler == TREE_SAMPLER:
            return asked.answers[0]
        if sampler not in self._recording.rivals:
            known = " and ".join((TREE_SAMPLER, *self._recording.rivals))
            raise SessionError(f"the demo has no model, only a recording of {known}")
        turn = self._recording.conversation.turns.index(asked)
        return self._recording.rivals[sampler].turns[turn].answer

    def timeline(self, recorded: Answer, begin: int = 0) -> Iterator[tuple[float, Step | Fork]]:
        """Yield the steps of an answer from one on, and before a fork its ways as they grow.

        Each comes with the seconds since the step before the first one.
        """
        races = self._races(recorded)
        start = before = recorded.steps[begin - 1].time if begin else 0.0
        for step in recorded.steps[begin:]:
            grown = races.get(step.index, [])
            pause = (step.time - before) / (len(grown) + 1)
            for number, fork in enumerate(grown, 1):
                yield before - start + number * pause, fork
            yield step.time - start, step
            before = step.time

    def wait(self, seconds: float, cancel: Token) -> bool:
        """Wait at the pace of the demo; return whether the answer was cancelled."""
        return bool(self._pace) and cancel.wait(max(0.0, seconds) / self._pace)

    def load(self, path: object) -> None:
        """Refuse: what comes after that conversation was not recorded."""
        raise SessionError("the demo plays its own recording only: run entropix chat without it")

    def close(self) -> None:
        """Do nothing: an answer ends when nobody reads it."""

    def _recorded(self, question: str) -> Turn:
        wanted = question.strip().casefold()
        for turn in self._recording.conversation.turns:
            if turn.question.casefold() == wanted:
                return turn
        raise SessionError(
            "the demo has no model, only a recording: Ctrl+N, then press 1, 2 or 3, asks what was"
            " recorded"
        )

    def _races(self, recorded: Answer) -> dict[int, list[Fork]]:
        """Return how the ways of an answer's forks grew, by step."""
        for turn, asked in enumerate(self._recording.conversation.turns):
            for number, answer in enumerate(asked.answers):
                if answer is recorded:
                    races = self._recording.races.items()
                    return {p[2]: grown for p, grown in races if p[:2] == (turn, number)}
        return {}

    def _play(self, recorded: Answer, begin: int, cancel: Token | None) -> Iterator[Step]:
        answer = Answer(recorded.seed, list(recorded.steps[:begin]), recorded.model)
        self.conversation.last.add(answer)
        waiting = cancel or Token()

        def steps() -> Iterator[Step]:
            now = 0.0
            for time, item in self.timeline(recorded, begin):
                if self.wait(time - now, waiting):
                    return
                now = time
                if isinstance(item, Step):
                    answer.steps.append(item)
                    yield item
                elif self.on_fork is not None:
                    self.on_fork(len(answer.steps), item)

        return steps()


class RecordedThread(ModelThread):
    """The thread of the terminal UI, with a recording in place of a model."""

    def __init__(
        self, chat: Chat, report: Callable[[Event], None], recording: Recording, pace: float
    ) -> None:
        super().__init__(chat, report)
        self._recording = RecordedSession(recording, pace)

    def _open_session(self) -> None:
        self._session = self._recording  # type: ignore[assignment]
        self._recording.on_fork = lambda *grown: self._report(events.ForkGrew(*grown))
        self._loaded.set()
        self._report(events.Loaded(MODEL, CONTEXT, demo_profile()))

    def _tokens_of(self, conversation: Conversation) -> int:
        texts = "".join(message["content"] for message in conversation.messages)
        return len(texts) // CHARACTERS_A_TOKEN

    def _duel(self, question: Question, sides: tuple[Settings, Settings], cancel: Token) -> None:
        answers = [self._side(question, settings, cancel, n) for n, settings in enumerate(sides)]
        headers = tuple(
            None if answer is None else self._header_of(question, settings, answer)
            for answer, settings in zip(answers, sides, strict=True)
        )
        self._report(events.DuelBegan(cancel, headers))
        self._play_duel(answers, cancel)
        self._report(events.AnswerEnded(cancel))

    def _side(
        self, question: Question, settings: Settings, cancel: Token, side: int
    ) -> Answer | None:
        """Return what a side of a duel answers; None, which is reported, if it was not recorded."""
        try:
            return self._recording.side(question.text, settings.sampler)
        except SessionError as error:
            self._report(events.DuelStepsArrived(cancel, side, [], ended=True, error=str(error)))
            return None

    def _header_of(self, question: Question, settings: Settings, answer: Answer) -> Header:
        """Return how a trace of an answer begins."""
        asked = self._recording.conversation.asking(question.text, question.turn)
        return Header(
            model=MODEL,
            sampler=settings.sampler,
            profile=demo_profile(),
            seed=answer.seed,
            messages=asked.asked,
            context_length=CONTEXT,
            prompt_tokens=self._tokens_of(asked),
        )

    def _play_duel(self, answers: Sequence[Answer | None], cancel: Token) -> None:
        """Report both answers in the order of their times."""
        sides = {side: answer for side, answer in enumerate(answers) if answer is not None}
        lines = [
            [(time, side, item) for time, item in self._recording.timeline(answer)]
            for side, answer in sides.items()
        ]
        now = 0.0
        for time, side, item in heapq.merge(*lines, key=lambda event: event[:2]):
            if self._recording.wait(time - now, cancel):
                return
            now = time
            if isinstance(item, Step):
                ended = item is sides[side].steps[-1]
                self._report(events.DuelStepsArrived(cancel, side, [item], ended))
            else:
                self._report(events.DuelForkGrew(cancel, side, item))

    def _list_models(self) -> None:
        self._report(events.ModelsListed([], "the demo has no models: run entropix chat"))


def _ways(answer: Answer, recorded: Sequence[Answer]) -> str:
    """Say which other ways from an answer were recorded."""
    ways = []
    for other in recorded:
        pairs = zip(answer.steps, other.steps, strict=False)
        part = next((two for one, two in pairs if one.token != two.token), None)
        if part is not None and part.index:
            ways.append(f"{part.text.strip()!r} at token {part.index}")
    known = f"go {' or '.join(ways)}" if ways else "answer again by Ctrl+R"
    return f"the demo has no model to go on with, only what was recorded: {known}"
