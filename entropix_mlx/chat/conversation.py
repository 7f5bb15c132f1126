"""A conversation: its questions, the answers to each, the changes to both, and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import limits
from ..errors import SessionError
from ..files import write_whole, writing
from ..step import Step

FORMAT = "entropix conversation"
VERSION = 1


@dataclass
class Answer:
    """One answer to a question; it may be unfinished."""

    seed: int
    """What its tokens were drawn with."""
    steps: list[Step] = field(default_factory=list)
    model: str | None = None
    """The fingerprint of the model that wrote it, if that is known: the ids of its tokens mean
    something for that model only."""

    @property
    def text(self) -> str:
        """The text of all its steps."""
        return "".join(step.text for step in self.steps)

    @property
    def finish_reason(self) -> str | None:
        """``"stop"``, ``"length"``, or None if it was cancelled."""
        return self.steps[-1].finish_reason if self.steps else None

    def before(self, step_index: int) -> list[Step]:
        """Return the steps before one of this answer.

        Raises:
            SessionError: the answer has no such step.
        """
        if not 0 <= step_index < len(self.steps):
            raise SessionError(
                f"the last answer has no step {step_index}: it has {len(self.steps)}, from 0"
            )
        return self.steps[:step_index]


@dataclass
class Turn:
    """A question and its answers, of which one is part of the conversation."""

    question: str
    answers: list[Answer] = field(default_factory=list)
    selected: int = 0
    """Index of the answer that is part of the conversation."""

    @property
    def answer(self) -> Answer:
        """The answer that is part of the conversation."""
        return self.answers[self.selected]

    def add(self, answer: Answer) -> None:
        """Add an answer, and make it part of the conversation."""
        self.answers.append(answer)
        self.selected = len(self.answers) - 1

    def select(self, answer: int) -> None:
        """Make the answer of that index part of the conversation.

        Raises:
            SessionError: there is no such answer.
        """
        if not 0 <= answer < len(self.answers):
            raise SessionError(
                f"the last question has no answer {answer}: it has {len(self.answers)}, from 0"
            )
        self.selected = answer


@dataclass
class Conversation:
    """All turns, the oldest first."""

    system_prompt: str | None = None
    turns: list[Turn] = field(default_factory=list)
    dropped: int = 0
    """How many of the oldest turns the model no longer sees, because its context is full."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The whole conversation, dropped turns too, in the form that chat templates read."""
        messages = []
        if self.system_prompt is not None:
            messages.append({"role": "system", "content": self.system_prompt})
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.question})
            if turn.answers:
                messages.append({"role": "assistant", "content": turn.answer.text})
        return messages

    @property
    def asked(self) -> list[dict[str, str]]:
        """The messages that the model sees when the last question is asked."""
        last = Turn(self.turns[-1].question)  # without its answers
        seen = Conversation(self.system_prompt, [*self.turns[self.dropped : -1], last])
        return seen.messages

    @property
    def last(self) -> Turn:
        """The last turn.

        Raises:
            SessionError: there is none yet.
        """
        if not self.turns:
            raise SessionError("nothing was asked yet: send a question first")
        return self.turns[-1]

    def asking(self, question: str, turn: int | None = None) -> Conversation:
        """Return a conversation that ends with a question; this one stays as it is.

        Args:
            question: what to ask.
            turn: index of the turn whose question it replaces, and after which all turns are left
                out; None adds it after the last turn.

        Raises:
            SessionError: there is no such turn.
        """
        if turn is not None and not 0 <= turn < len(self.turns):
            raise SessionError(f"there is no turn {turn}: there are {len(self.turns)}, from 0")
        kept = self.turns[:turn]
        # If turns were taken away, older ones that had been dropped may fit again.
        dropped = self.dropped if len(kept) + 1 >= len(self.turns) else 0
        return Conversation(self.system_prompt, [*kept, Turn(question)], dropped)

    def turn_of(self, message: int) -> int:
        """Return the index of the turn that a message begins.

        Args:
            message: index in `messages`, of a question; a negative one counts from the end.

        Raises:
            SessionError: there is no message of that index, or it is no question.
        """
        messages = self.messages
        if not -len(messages) <= message < len(messages):
            raise SessionError(f"there is no message {message}: there are {len(messages)}")
        message %= len(messages)
        if messages[message]["role"] != "user":
            raise SessionError(f"message {message} is no question: only questions can be edited")
        return sum(earlier["role"] == "user" for earlier in messages[:message])

    def to_markdown(self) -> str:
        """Return the conversation as Markdown, for people: selected answers only."""
        parts = [f"> {self.system_prompt}"] if self.system_prompt else []
        for turn in self.turns:
            parts.append(f"**{turn.question}**")
            parts += [turn.answer.text] if turn.answers else []
        return "\n\n".join(parts) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the conversation as JSON; if that is interrupted, an existing file stays as it was.

        Raises:
            SessionError: the file cannot be written.
        """
        record = {
            "format": FORMAT,
            "version": VERSION,
            "system_prompt": self.system_prompt,
            "dropped": self.dropped,
            "turns": [_turn_record(turn) for turn in self.turns],
        }
        with writing(path, SessionError):
            write_whole(path, json.dumps(record, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Conversation:
        """Read what `save` wrote.

        Raises:
            SessionError: there is no such file, or it is not a conversation.
        """
        try:
            record = json.loads(limits.read_text(Path(path), limits.CONVERSATION_BYTES))
        except OSError as error:
            raise SessionError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or nested too deeply
            raise SessionError(f"{path} is not a saved conversation: {error}") from error
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise SessionError(f"{path} is not a saved conversation: name one that was saved here")
        if record.get("version") != VERSION:
            raise SessionError(
                f"{path} has version {record.get('version')}, and this program reads version"
                f" {VERSION}: use the program that wrote it"
            )
        try:
            return _from_record(record)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise SessionError(f"{path} is damaged: {error!r}") from error


def _turn_record(turn: Turn) -> dict[str, Any]:
    answers = [
        {
            "seed": answer.seed,
            "model": answer.model,
            "text": answer.text,
            "steps": [step.to_dict() for step in answer.steps],
        }
        for answer in turn.answers
    ]
    return {"question": turn.question, "selected": turn.selected, "answers": answers}


def _from_record(record: dict[str, Any]) -> Conversation:
    turns = []
    for turn in record["turns"]:
        answers = [
            Answer(
                int(answer["seed"]),
                [Step.from_dict(step) for step in answer["steps"]],
                answer.get("model"),
            )
            for answer in turn["answers"]
        ]
        turns.append(Turn(str(turn["question"]), answers, range(len(answers))[turn["selected"]]))
    system_prompt, dropped = record["system_prompt"], int(record["dropped"])
    if dropped < 0:
        raise ValueError(f"dropped must be at least 0, not {dropped}")
    return Conversation(None if system_prompt is None else str(system_prompt), turns, dropped)
