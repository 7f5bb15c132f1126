"""The app's side of a chat's thread: gives it jobs, and shows what it reports."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from textual.app import App
from textual.message import Message

from entropix_mlx.chat import events
from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.chat.events import CancelToken, Event, Prefilled, UserMessage
from entropix_mlx.chat.session import ChatSession
from entropix_mlx.chat.thread import Action, ChatThread
from entropix_mlx.profiles.confidence import ADVICE, AnswerMetrics

from .composer.composer import Composer
from .composer.status import REFUSALS, State
from .screens.choices import models_found, pick_branch
from .screens.picker import Picker
from .workspace import Workspace

LOADS = "Enter loads one; the conversation stays. Esc keeps this one."
SWITCH_SECONDS = 0.0005
"""How long the model's thread waits for the interpreter while the screen is drawn: several times a
token, so that Python's usual 5 ms would add up."""


@dataclass
class BackendReported(Message):
    """An event of the chat's thread; posted there, handled on the app's."""

    event: Event


class BackendLink:
    """Gives jobs to the thread of a chat, and shows in a workspace what it reports."""

    def __init__(
        self,
        app: App[None],
        session: ChatSession,
        workspace: Workspace,
        composer: Composer,
        ask: bool,
    ) -> None:
        """Prepare the thread; the app passes `BackendReported` messages to `receive`."""
        self._app = app
        self._workspace = workspace
        self._composer = composer
        self._status = workspace.status
        self._answering = False
        self._usual_switch = sys.getswitchinterval()
        self._cancel = CancelToken()  # that of the newest job
        self._waiting = False  # a job was given before the model was there
        self._question: UserMessage | None = None  # that of this job

        def report(event: Event) -> None:
            app.post_message(BackendReported(event))

        self.thread = ChatThread(session, report, ask)
        self._status.state = State.LOADING

    def start(self) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self.thread.start()

    async def stop(self) -> None:
        """Let the thread end, and wait for it: it may still report something."""
        self.cancel()
        self.thread.stop()
        await asyncio.to_thread(self.thread.join)
        sys.setswitchinterval(self._usual_switch)

    def submit(self, action: Action) -> None:
        if self._claim():
            self.thread.submit(action, self._cancel)

    def ask(self, question: UserMessage) -> bool:
        """Hand over a question; return whether one can be taken now."""
        if not self._claim():
            return False
        if self._status.state is State.LOADING:
            self._question = question
        self.thread.submit(
            lambda session, cancel: session.send(question.text, question.turn, cancel=cancel),
            self._cancel,
            question,
        )
        return True

    def switch(self, model: str) -> None:
        self._cancel = CancelToken()
        self._status.state = State.LOADING
        self.thread.switch(model, self._cancel)

    def cancel(self) -> None:
        self._cancel.set()

    def interrupt(self) -> None:
        """Stop a running answer to make way for another job, which then waits for its end."""
        if self._status.state.busy:
            self.cancel()
            self._status.state = State.READY

    def available(self, *others: State) -> bool:
        """Return whether the model is free, or in one of some other states; if not, say why."""
        free = self._status.state in (State.READY, *others)
        if not free:
            self._app.notify(REFUSALS[self._status.state], severity="warning")
        return free

    async def receive(self, event: Event) -> None:
        status = self._status
        match event:
            case events.Loaded():
                status.context_length, status.model = event.context_length, event.model
                self._workspace.use_profile(event.profile)
                status.state = State.GENERATING if self._waiting else State.READY
            case events.ThresholdsReady():
                offer = "thresholds for this model are ready: Enter uses them"
                self._composer.offer(offer, self.thread.accept_thresholds)
            case events.LoadFailed():
                self._report_failure(event.reason)
            case events.ModelsListed():
                for screen in self._app.screen_stack:
                    if isinstance(screen, Picker) and screen.id == "models":
                        screen.show(models_found(event.models), event.error or LOADS)
            case events.AnswerEnded():
                self._end(event)
            case events.StepRead():
                self._workspace.show_read(event)
            case _:
                await self._follow(event)

    async def _follow(self, event: events.ChatEvent | Prefilled) -> None:
        status = self._status
        match event:
            case events.Prefilled():
                status.state = State.READING
                status.progress = f"{event.done}/{event.total} tokens"
            case events.ConversationChanged():
                if _questions(event.conversation) != _questions(self._workspace.conversation):
                    self._composer.turn = None  # the edited question may be another one now
                status.context_used = event.conversation.context_used
                await self._workspace.show(event.conversation)
            case events.StepsArrived():
                status.state, self._answering = State.GENERATING, True
                self._workspace.append(event.steps)
            case events.ForkGrew():
                status.state = State.GENERATING
                self._workspace.show_fork(event.fork)
            case events.AnswersDrawn():
                status.progress = event.standing.counts
                status.basis = event.standing.basis
            case events.TurnsDropped():
                message = f"the model no longer sees the first {event.count} turns"
                self._app.notify(f"the context is full: {message}", severity="warning")
            case events.ChoiceNeeded():
                self._ask_user(event)

    def _claim(self) -> bool:
        """Take the thread for a job, with a new cancel token; if it is not free, say so."""
        if self._status.state is State.LOADING and not self._waiting:
            self._waiting = True
            self._app.notify("this will run once the model is loaded")
        elif self.available():
            self._workspace.transcript.point(None)
            self._status.state = State.GENERATING
        else:
            return False
        self._cancel = CancelToken()
        return True

    def _report_failure(self, reason: str) -> None:
        self._status.state = State.FAILED
        self._give_back(self._question)
        self._app.notify(
            f"{reason}\n\nCtrl+L or --model chooses another model, --server another server;"
            " Ctrl+Q quits.",
            title="the model cannot be loaded",
            severity="error",
            timeout=3600,
            markup=False,
        )

    def _ask_user(self, event: events.ChoiceNeeded) -> None:
        def reply(choice: int | None) -> None:
            event.reply(event.fork.winner if choice is None else choice)

        before = "".join(step.text for step in self._workspace.last_steps)
        self._app.push_screen(pick_branch(event.fork, before), reply)

    def _end(self, event: events.AnswerEnded) -> None:
        if event.cancel is self._cancel:  # else another job was given meanwhile
            self._status.state = State.READY
        if event.error:
            self._app.notify(event.error, severity="error", timeout=15, markup=False)
        elif self._answering:
            self._warn_if_unsure()
        self._answering = False
        self._give_back(event.refused)

    def _warn_if_unsure(self) -> None:
        answer = self._workspace.conversation.last.answer
        verdict = self._workspace.profile.abstain.verdict(AnswerMetrics.of(answer.steps))
        if verdict is not None and verdict.unsure:
            self._app.notify(f"{verdict.reason}; {ADVICE}", title="unsure", severity="warning")

    def _give_back(self, question: UserMessage | None) -> None:
        """Put a question that was not asked into the field, unless something else was typed."""
        if question is not None and not self._composer.text.strip():
            self._composer.write(question)


def _questions(conversation: Conversation) -> list[str]:
    return [turn.question for turn in conversation.turns]
