"""The app's end of the model's thread: one job at a time, and what is shown of it."""

from __future__ import annotations

import asyncio

from textual.app import App

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.serving import events
from entropix_mlx.serving.events import Event, Question, Token
from entropix_mlx.serving.worker import Action, Chat, ModelThread
from entropix_mlx.settings import Settings

from .messages import ModelReported
from .screens.dialogs import AskDialog
from .screens.duel import DuelScreen
from .widgets.composer import Composer
from .widgets.status import State
from .workspace import Workspace


class ModelLink:
    """Gives jobs to the model's thread, and shows in a workspace what it reports."""

    def __init__(
        self, app: App[None], chat: Chat, workspace: Workspace, composer: Composer
    ) -> None:
        """Prepare the thread; `start` begins to load the model.

        Args:
            app: shows notices and dialogs, and passes `ModelReported` messages to `receive`.
            chat: what the chat begins with.
            workspace: where the conversation is shown.
            composer: takes back a question that was refused.
        """
        self._app = app
        self._workspace = workspace
        self._composer = composer
        self._status = workspace.status
        self._cancel = Token()  # that of the newest job
        self._waiting = False  # a job was given before the model was there
        self._question: Question | None = None  # that of this job
        self._worker = ModelThread(chat, self._post)
        self._status.state = State.LOADING

    def start(self) -> None:
        """Begin to load."""
        self._worker.start()

    async def stop(self) -> None:
        """Let the thread end, and wait for it: it may still report something."""
        self.cancel()
        self._worker.stop()
        await asyncio.to_thread(self._worker.join)

    @property
    def alive(self) -> bool:
        """Whether the thread runs, if so after `stop` because the model is still loading."""
        return self._worker.alive

    def submit(self, action: Action) -> None:
        """Hand over an action, if the thread can take one now."""
        if self._claim():
            self._worker.submit(action, self._cancel)

    def ask(self, question: Question) -> bool:
        """Hand over a question; return whether the thread can take one now."""
        if not self._claim():
            return False
        if self._status.state is State.LOADING:
            self._question = question
        self._worker.ask(question, self._cancel)
        return True

    def duel(self, question: Question, sides: tuple[Settings, Settings], cancel: Token) -> None:
        """Begin a duel; the one before it must have been cancelled."""
        self._cancel = cancel
        self._status.state = State.GENERATING
        self._worker.duel(question, sides, cancel)

    def configure(self, settings: Settings, ask: bool) -> None:
        """Use other settings from the next answer on."""
        self._worker.configure(settings, ask)

    def cancel(self) -> None:
        """Stop the running answer."""
        self._cancel.set()

    def interrupt(self) -> None:
        """Stop a running answer to make way for another job, which then waits for its end."""
        if self._status.state.busy:
            self.cancel()
            self._status.state = State.READY

    def available(self) -> bool:
        """Tell whether the model is free, and say so if it is not."""
        refusal = self._status.state.refusal
        if refusal:
            self._app.notify(refusal, severity="warning")
        return not refusal

    async def receive(self, event: Event) -> None:
        """Show what the thread reports."""
        status = self._status
        match event:
            case events.Loaded():
                status.context_length = event.context_length
                self._workspace.use_profile(event.profile)
                status.state = State.GENERATING if self._waiting else State.READY
            case events.LoadFailed():
                self._tell_failure(event.reason)
            case events.Prefilled():
                status.state = State.READING
                status.progress = f"{event.done}/{event.total}"
            case events.ConversationChanged():
                if _questions(event.conversation) != _questions(self._workspace.conversation):
                    self._composer.turn = None  # the edited question may be another one now
                status.context_used = event.context_used
                await self._workspace.show(event.conversation)
            case events.StepsArrived():
                status.state = State.GENERATING
                self._workspace.append(event.steps)
            case events.TurnsDropped():
                told = f"the model no longer sees the first {event.count} turns"
                self._app.notify(f"the context is full: {told}", severity="warning")
            case events.Asked():
                self._ask_user(event)
            case events.DuelStepsArrived():
                for screen in self._app.screen_stack:  # a dialog may lie over the duel
                    if isinstance(screen, DuelScreen):
                        screen.receive(event)
            case events.AnswerEnded():
                self._end(event)

    def _post(self, event: Event) -> None:
        """Bring an event from the model's thread to the app's."""
        self._app.post_message(ModelReported(event))

    def _claim(self) -> bool:
        """Take the thread for a job, with a new cancel token; if it is not free, say so."""
        if self._status.state is State.LOADING and not self._waiting:
            self._waiting = True
            self._app.notify("this is done as soon as the model is loaded")
        elif self.available():
            self._workspace.transcript.point(None)
            self._status.state = State.GENERATING
        else:
            return False
        self._cancel = Token()
        return True

    def _tell_failure(self, reason: str) -> None:
        """Say why there is no model, and give back a question that waited for it."""
        self._status.state = State.FAILED
        self._give_back(self._question)
        self._app.notify(
            f"{reason}\n\nCtrl+Q quits; --model names another model.",
            title="the model cannot be loaded",
            severity="error",
            timeout=3600,
            markup=False,
        )

    def _ask_user(self, event: events.Asked) -> None:
        def reply(choice: int | None) -> None:
            event.reply(event.branch.winner if choice is None else choice)

        self._app.push_screen(AskDialog(event.branch), reply)

    def _end(self, event: events.AnswerEnded) -> None:
        if event.cancel is self._cancel:  # else another job was given meanwhile
            self._status.state = State.READY
        if event.error:
            self._app.notify(event.error, severity="error", timeout=15, markup=False)
        self._give_back(event.refused)

    def _give_back(self, question: Question | None) -> None:
        """Put a question that was not asked into the field, unless something else was typed."""
        if question is not None and not self._composer.text.strip():
            self._composer.write(question)


def _questions(conversation: Conversation) -> list[str]:
    return [turn.question for turn in conversation.turns]
