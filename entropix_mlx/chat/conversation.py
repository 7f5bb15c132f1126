"""A conversation: questions, the answers to each of them, and the file that holds both."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import limits
from ..errors import SessionError
from ..files import write_whole, writing
from ..records import from_record, parse_json
from ..step import Step

FORMAT = "entropix conversation"
VERSION = 1


def new_id() -> str:
    """Return the id of a conversation that begins now; later ones sort after it."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


@dataclass
class Reply:
    """One answer to a question; it may be unfinished."""

    seed: int
    steps: list[Step] = field(default_factory=list)
    model: str | None = None
    """The fingerprint of the model that wrote it, or None if it is unknown: token ids mean
    something for that model only."""
    following: list[Turn] = field(default_factory=list)
    """The turns that came after it, while another answer to its question is selected."""
    prompt_tokens: int = 0  # tokens that the model saw before the answer; 0 if that is unknown

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    @property
    def finish_reason(self) -> str | None:
        """``"stop"``, ``"length"``, or None if it was cancelled."""
        return self.steps[-1].finish_reason if self.steps else None


@dataclass
class Turn:
    """A question and its answers, of which one is part of the conversation."""

    question: str
    answers: list[Reply] = field(default_factory=list)
    selected: int = 0  # index of the answer that is part of the conversation

    def __post_init__(self) -> None:
        if not 0 <= self.selected <= max(0, len(self.answers) - 1):
            raise ValueError(f"there is no answer {self.selected} to {self.question!r:.60}")

    @property
    def answer(self) -> Reply:
        """The answer that is part of the conversation. Raises `SessionError` if the question has
        none yet."""
        if not self.answers:
            raise SessionError("the question has no answer yet: answer it first")
        return self.answers[self.selected]

    def to_record(self) -> dict[str, Any]:
        """Return the turn as a JSON object."""
        answers = [
            {
                "seed": answer.seed,
                "model": answer.model,
                "prompt_tokens": answer.prompt_tokens,
                "text": answer.text,
                "steps": [step.to_dict() for step in answer.steps],
                "following": [later.to_record() for later in answer.following],
            }
            for answer in self.answers
        ]
        return {"question": self.question, "selected": self.selected, "answers": answers}

    def add(self, answer: Reply) -> None:
        self.answers.append(answer)
        self.selected = len(self.answers) - 1

    @property
    def messages(self) -> list[dict[str, str]]:
        """The question and the selected answer, in the form that chat templates read."""
        asked = [{"role": "user", "content": self.question}]
        if not self.answers:
            return asked
        return [*asked, {"role": "assistant", "content": self.answer.text}]

    @property
    def heading(self) -> str:
        return next(iter(self.question.strip().splitlines()), "")


@dataclass
class Conversation:
    """All turns, the oldest first."""

    system_prompt: str | None = None
    turns: list[Turn] = field(default_factory=list)
    dropped: int = 0
    """The number of oldest turns that the model no longer sees, because its context is full."""
    title: str | None = None  # given by the user; see `name`
    id: str = field(default_factory=new_id, compare=False)  # its key in a `Store`

    def __post_init__(self) -> None:
        if self.dropped < 0:
            raise ValueError(f"dropped must be at least 0, not {self.dropped}")

    @property
    def name(self) -> str:
        return self.title or (self.turns[0].heading if self.turns else "")

    @property
    def messages(self) -> list[dict[str, str]]:
        """The whole conversation, dropped turns too, in the form that chat templates read."""
        messages = [message for turn in self.turns for message in turn.messages]
        if self.system_prompt is None:
            return messages
        return [{"role": "system", "content": self.system_prompt}, *messages]

    @property
    def context_used(self) -> int:
        """Tokens that the model sees: the prompt of the last question and the answer to it."""
        if not self.turns or not self.last.answers:
            return 0
        return self.last.answer.prompt_tokens + len(self.last.answer.steps)

    @property
    def prompt_messages(self) -> list[dict[str, str]]:
        """The messages that the model sees when the last question is asked."""
        last = Turn(self.turns[-1].question)  # without its answers
        seen = Conversation(self.system_prompt, [*self.turns[self.dropped : -1], last])
        return seen.messages

    @property
    def last(self) -> Turn:
        return self.turns[self.turn_at(None)]

    def turn_at(self, turn: int | None) -> int:
        """Return the index of a turn, the last one for None, if it exists."""
        if turn is None:
            if not self.turns:
                raise SessionError("nothing was asked yet: send a question first")
            return len(self.turns) - 1
        if not 0 <= turn < len(self.turns):
            raise SessionError(f"there is no turn {turn}: there are {len(self.turns)}, from 0")
        return turn

    def snapshot(self) -> Conversation:
        """Return a copy that another thread can keep; steps never change, so they are shared."""
        turns = [
            replace(turn, answers=[replace(a, steps=list(a.steps)) for a in turn.answers])
            for turn in self.turns
        ]
        return replace(self, turns=turns)

    def until(self, turn: int) -> Conversation:
        """Return a conversation that shares the turns of this one up to one of them."""
        dropped = self.dropped if turn + 1 == len(self.turns) else 0
        return replace(self, turns=self.turns[: turn + 1], dropped=min(dropped, turn))

    def select(self, answer: int, turn: int | None = None) -> None:
        """Make another answer part of the conversation.

        The turns after it stay with the answer that was selected before; the turns that once
        followed the other answer come back.
        """
        index = self.turn_at(turn)
        answers = self.turns[index].answers
        if not 0 <= answer < len(answers):
            raise SessionError(
                f"the question has no answer {answer}: it has {len(answers)}, from 0"
            )
        if answer != self.turns[index].selected:
            self.set_aside(index)
            self.turns[index].selected = answer
            self.bring_back(index)

    def set_aside(self, turn: int) -> None:
        if turn + 1 < len(self.turns):
            self.turns[turn].answer.following = self.turns[turn + 1 :]
            self.turns, self.dropped = self.turns[: turn + 1], 0

    def bring_back(self, turn: int) -> None:
        """Move the turns back that were set aside with the answer of the last turn."""
        answer = self.turns[turn].answer
        if answer.following:
            self.turns = self.turns + answer.following
            answer.following, self.dropped = [], 0

    def asking(self, question: str, turn: int | None = None) -> Conversation:
        """Return a copy that ends with a question, without changing this conversation.

        With the index of a turn, the question replaces that turn and all that follow it.
        """
        earlier = self.turns if turn is None else self.turns[: self.turn_at(turn)]
        # Where turns are replaced, older ones that had been dropped may fit again.
        dropped = self.dropped if len(earlier) + 1 >= len(self.turns) else 0
        return replace(self, turns=[*earlier, Turn(question)], dropped=dropped)

    def to_markdown(self) -> str:
        """Return the questions and the selected answers as Markdown."""
        parts = [f"> {self.system_prompt}"] if self.system_prompt else []
        for turn in self.turns:
            parts.append(f"**{turn.question}**")
            parts += [turn.answer.text] if turn.answers else []
        return "\n\n".join(parts) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the conversation as JSON; if that fails, an existing file is not changed."""
        with writing(path, SessionError):
            write_whole(path, self.to_json() + "\n")

    def to_json(self) -> str:
        record = {
            "format": FORMAT,
            "version": VERSION,
            "title": self.title,
            "system_prompt": self.system_prompt,
            "dropped": self.dropped,
            "turns": [turn.to_record() for turn in self.turns],
        }
        return json.dumps(record, ensure_ascii=False)

    @classmethod
    def load(cls, path: str | Path) -> Conversation:
        """Read a file that `save` wrote. Raises `SessionError` if it cannot be read, or is not a
        conversation of this version."""
        text = limits.read_named(path, limits.CONVERSATION_BYTES, SessionError)
        return cls.of_record(parse_json(text, f"{path}", SessionError), path)

    @classmethod
    def of_record(cls, record: Any, path: str | Path) -> Conversation:
        """Return the conversation of a JSON object that `save` wrote; errors name the path. Raises
        `SessionError` if it is no conversation of this version."""
        if not isinstance(record, dict) or record.get("format") != FORMAT or "turns" not in record:
            raise SessionError(f"{path} is not a saved conversation: name one that was saved here")
        if record.get("version") != VERSION:
            raise SessionError(
                f"{path} has version {record.get('version')}, and this program reads version"
                f" {VERSION}: use the program that wrote it"
            )
        try:
            return from_record(cls, record | {"id": new_id()})
        except (ValueError, RecursionError) as error:
            raise SessionError(f"{path} is damaged: {error}") from error
