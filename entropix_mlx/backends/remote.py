"""A chat with a model behind `entropix serve`, as `Session` and `ModelThread` have it here."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..chat.conversation import Answer, Conversation
from ..chat.running import Running
from ..errors import PromptError, SessionError
from ..profiles.fields import spell_infinities
from ..profiles.profile import Profile, differences
from ..profiles.sampler_specs import parameters
from ..profiles.selection import AUTO
from ..samplers.registry import find_sampler
from ..settings import SEED_BITS, Settings
from ..step import Step
from . import events
from .address import Address, Reply, ServerError
from .events import Question, Token
from .local import Chat, ModelThread

MOST_ALTERNATIVES = 20

NO_DUEL = "a duel needs the model in this process: leave --server out"
NO_ASKING = "a server does not ask at forks: leave --ask or --server out"
NO_MODELS = "the model is the server's: leave --server out to choose one here"
NO_TRACE = "the server's answers are not recorded here: leave --trace or --server out"


class RemoteSession:
    """A conversation with a model behind a server; the methods are those of `Session`."""

    def __init__(self, address: Address, settings: Settings, system_prompt: str | None) -> None:
        """Ask the server what it serves.

        Raises:
            ServerError: it cannot be reached, or is of another kind.
        """
        self.settings = settings
        self.conversation = Conversation(system_prompt)
        self.context_used = 0
        """Tokens of the last prompt and its answer."""
        self._address = address
        self._running: Running | None = None
        try:
            (model,) = address.get("/v1/models")["data"]
            told = model["entropix"]
            self.context_length = int(told["context_length"])
            self.profile = Profile.load().replace(told["profile"], address.url)
            self._fingerprint = str(told["fingerprint"])
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(f"{address.url} is no entropix server: {error!r}") from error

    def send(
        self, text: str, turn: int | None = None, *, cancel: Token | None = None
    ) -> Iterator[Step]:
        """Ask a question; see `Session.send`."""
        self.close()
        if not text.strip():
            raise PromptError("the message is empty: write a question")
        return self._answer(self.conversation.asking(text, turn), cancel or Token())

    def regenerate(self, *, cancel: Token | None = None) -> Iterator[Step]:
        """Answer the last question once more; see `Session.regenerate`."""
        self.close()
        return self._answer(replace(self.conversation), cancel or Token())

    def fork(
        self,
        step_index: int,
        token: int | Sequence[int],
        turn: int | None = None,
        *,
        cancel: Token | None = None,
    ) -> Iterator[Step]:
        """Put another token in the place of one of an answer; see `Session.fork`."""
        self.close()
        cancel = cancel or Token()
        index = self.conversation.turn_at(turn)
        old = self.conversation.turns[index].answer
        kept = old.before(step_index)
        if old.model not in (None, self._fingerprint):
            raise SessionError("another model wrote that answer: ask the question again first")
        begin = [token] if isinstance(token, int) else list(token)
        answer = Answer(old.seed, kept, self._fingerprint)
        # Turns that follow are set aside only after the server has taken the question.
        asked = self.conversation.until(index)
        reply = self._open(answer, asked, begin, cancel)
        self.conversation.set_aside(index)
        return self._begin(reply, answer, cancel)

    def select(self, answer: int, turn: int | None = None) -> None:
        """Make another of a question's answers part of the conversation; see `Session.select`."""
        self.close()
        self.conversation.select(answer, turn)

    def instruct(self, system_prompt: str | None) -> None:
        """Precede the conversation with other instructions."""
        self.close()
        self.conversation.system_prompt = system_prompt

    def new(self) -> None:
        """Begin another conversation."""
        self.close()
        self.conversation = Conversation(self.conversation.system_prompt)

    def load(self, path: str | Path) -> None:
        """Go on with a saved conversation."""
        self.resume(Conversation.load(path))

    def resume(self, conversation: Conversation) -> None:
        """Go on with a conversation in place of this one."""
        self.close()
        self.conversation = conversation

    def close(self) -> None:
        """Stop the running answer at once."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def _answer(self, asked: Conversation, cancel: Token) -> Iterator[Step]:
        seed = self.settings.seed
        own = secrets.randbits(SEED_BITS) if seed is None else seed + len(asked.last.answers)
        return self._start(Answer(own, [], self._fingerprint), asked, [], cancel)

    def _start(
        self, answer: Answer, asked: Conversation, begin: list[int], cancel: Token
    ) -> Iterator[Step]:
        """Ask the server; a conversation that it refuses changes nothing here."""
        reply = self._open(answer, asked, begin, cancel)
        self.conversation.turns, self.conversation.dropped = asked.turns, asked.dropped
        return self._begin(reply, answer, cancel)

    def _begin(self, reply: Reply | None, answer: Answer, cancel: Token) -> Iterator[Step]:
        """Add an answer to the last question, and return its steps."""
        selected, kept = self.conversation.last.selected, len(answer.steps)
        steps = self._stream(reply, answer, cancel)
        self._running = Running(steps, cancel, self.conversation, selected, kept)
        self.conversation.last.add(answer)
        return steps

    def _open(
        self, answer: Answer, asked: Conversation, begin: list[int], cancel: Token
    ) -> Reply | None:
        """Ask, without the oldest turns where the context does not hold them; None if cancelled."""
        last = len(asked.turns) - 1
        while not cancel.is_set():
            body = self._body(answer, asked, begin)
            try:
                return self._address.post("/v1/chat/completions", body, cancel)
            except ServerError as error:
                if cancel.is_set():
                    break
                if error.code != "context_length_exceeded" or asked.dropped >= last:
                    raise
                asked.dropped += (last - asked.dropped + 1) // 2
        return None

    def _body(self, answer: Answer, asked: Conversation, begin: list[int]) -> dict[str, Any]:
        settings = self.settings
        alternatives = min(settings.top_logprobs, MOST_ALTERNATIVES)
        own = {"seed": answer.seed, "max_tokens": settings.max_tokens, "stop": settings.stop}
        given = {name: getattr(settings, name) for name in parameters()}
        return {
            **{"messages": asked.asked, "sampler": settings.sampler, "stream": True},
            **{"stream_options": {"include_usage": True}, "set": self._changes()},
            **{"logprobs": alternatives > 0, "top_logprobs": alternatives, "begin": begin},
            "prefix": [step.token for step in answer.steps],
            **own,
            **{name: value for name, value in given.items() if value is not None},
        }

    def _changes(self) -> Mapping[str, Any]:
        """Return in what the settings' profile differs from the server's."""
        named = self.settings.profile
        wanted = self.profile if named == AUTO else Profile.load(named)
        wanted = wanted.replace(self.settings.changes)
        changed = {name: value for name, (_, value) in differences(self.profile, wanted).items()}
        return dict(spell_infinities(changed))

    def _stream(
        self, reply: Reply | None, answer: Answer, cancel: Token
    ) -> Generator[Step, None, None]:
        """Yield the steps that come, and add them to the answer."""
        if reply is None:
            return
        kept = len(answer.steps)
        try:
            with contextlib.closing(reply):
                for event in reply.events():
                    if step := self._read(event):
                        answer.steps.append(replace(step, index=step.index + kept))
                        yield answer.steps[-1]
        except ServerError:
            if not cancel.is_set():
                raise

    def _read(self, event: dict[str, Any]) -> Step | None:
        """Return the step that an event tells, or None."""
        try:
            if "error" in event:
                raise ServerError(str(event["error"]["message"]))
            if usage := event.get("usage"):
                self.context_used = int(usage["total_tokens"])
            told = event["choices"][0].get("entropix", {}) if event["choices"] else {}
            return Step.from_dict(told) if "token" in told else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServerError(f"the server sent what is no answer: {error!r}") from error


class RemoteThread(ModelThread):
    """Runs the jobs of a chat on a server's model; nothing of MLX is touched here."""

    _session: RemoteSession  # type: ignore[assignment]

    def _open_session(self) -> None:
        chat = self._chat
        if chat.server is None:
            raise TypeError("this chat has no server")
        find_sampler(chat.settings.sampler)
        self._session = RemoteSession(chat.server, chat.settings, chat.system_prompt)
        self._loaded.set()
        session = self._session
        self._report(events.Loaded(chat.model, session.context_length, session.profile))

    def _tokens_of(self, conversation: Conversation) -> int:
        return self._session.context_used if conversation.turns else 0

    def _list_models(self) -> None:
        self._report(events.ModelsListed([], NO_MODELS))

    def _duel(self, question: Question, sides: tuple[Settings, Settings], cancel: Token) -> None:
        self._report(events.AnswerEnded(cancel, NO_DUEL))


def model_thread(chat: Chat, report: Callable[[events.Event], None]) -> ModelThread:
    """Return the thread that a chat needs: one with the model, or one that asks a server."""
    if chat.make_thread is not None:
        return chat.make_thread(chat, report)
    return (ModelThread if chat.server is None else RemoteThread)(chat, report)
