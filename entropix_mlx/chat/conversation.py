"""A conversation as a record: questions, the answers to each, and how they are kept in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import SessionError
from ..files import write_whole, writing
from ..step import Step

FORMAT = "entropix conversation"
VERSION = 1


@dataclass
class Answer:
    """One answer to a question, as far as it came."""

    seed: int
    steps: list[Step] = field(default_factory=list)
    model: str | None = None
    """The fingerprint of the model whose tokens these are, if it is known."""

    @property
    def text(self) -> str:
        """What is printed of it."""
        return "".join(step.text for step in self.steps)

    @property
    def finish_reason(self) -> str | None:
        """``"stop"``, ``"length"``, or None if it was cancelled."""
        return self.steps[-1].finish_reason if self.steps else None


@dataclass
class Turn:
    """A question and its answers, of which one is part of the conversation."""

    question: str
    answers: list[Answer] = field(default_factory=list)
    selected: int = 0

    @property
    def answer(self) -> Answer:
        """The answer that is part of the conversation."""
        return self.answers[self.selected]


@dataclass
class Conversation:
    """All turns, the oldest first."""

    system_prompt: str | None = None
    turns: list[Turn] = field(default_factory=list)
    dropped: int = 0
    """How many of the oldest turns no longer fit into the model's context."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The whole conversation, also what was dropped, as chat templates read it."""
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
        """What the model was asked last: the messages it sees, without its answer."""
        seen = Conversation(self.system_prompt, self.turns[self.dropped :])
        return seen.messages[:-1]

    def to_markdown(self) -> str:
        """Return the conversation as a text to read."""
        parts = [f"> {self.system_prompt}"] if self.system_prompt else []
        for turn in self.turns:
            parts.append(f"**{turn.question}**")
            parts += [turn.answer.text] if turn.answers else []
        return "\n\n".join(parts) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the conversation as JSON; an interrupted write leaves an older file as it was.

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
            record = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise SessionError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
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
        except (KeyError, TypeError, ValueError, IndexError) as error:
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
    system_prompt = record["system_prompt"]
    return Conversation(
        None if system_prompt is None else str(system_prompt), turns, int(record["dropped"])
    )
