"""`entropix chat`: a chat with live gauges, its keys and its commands."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from textual.binding import BindingType
from textual.widgets import TextArea

from entropix_mlx.chat.attachments import with_files
from entropix_mlx.chat.conversation import Turn
from entropix_mlx.chat.events import AnswerEnded, ConversationChanged, UserMessage
from entropix_mlx.chat.session import ChatSession
from entropix_mlx.chat.store import Store
from entropix_mlx.chat.thread import StepReading
from entropix_mlx.configuration import Configuration
from entropix_mlx.errors import SessionError
from entropix_mlx.profiles.profile import Profile

from .backend_link import BackendLink, BackendReported
from .base import WorkspaceApp
from .chat_files import SAVE_SECONDS, ChatFiles
from .composer.composer import Composer
from .composer.status import State
from .help_text import Welcome
from .keys import bind
from .screens.choices import pick_answer
from .screens.dialogs import LongTextDialog
from .screens.find import FindBar
from .screens.picker import Picker
from .screens.tuning.tune import TunedSettings, TuneScreen
from .terminal import all_keys, follow_terminal
from .workspace import Workspace


def run_chat(
    session: ChatSession,
    store: Store | None = None,
    configuration: Configuration | None = None,
    restore: Callable[[], None] | None = None,
    ask: bool = False,
) -> int:
    """Show a chat until the user leaves it; return the exit code, which is 1 after a crash.

    Args:
        session, store, configuration, ask: see `ChatApp`.
        restore: restores the terminal, see `all_keys`; by default that is called here.
    """
    restore = restore or all_keys()
    app = ChatApp(session, store, configuration, ask)
    app.run()
    restore()
    code = app.return_code or 0
    if app.link.thread.alive:
        # Nothing interrupts a model that is being loaded, and the interpreter's end would abort in
        # it. The terminal is restored and no file is open, so leave without that end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


class ChatApp(WorkspaceApp):
    """A chat with live gauges."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.escape", "escape", "escape", "Stop or leave", footer=True),
        bind("chat.regenerate", "ctrl+r", "regenerate", "Regenerate",
             "another answer to the last question", footer=True),
        bind("chat.tune", "ctrl+t,f3", "tune", "Settings", "and thresholds", footer=True),
        bind("chat.chats", "ctrl+o", "chats", "Open chat",
             "open, search, rename or delete one", footer=True, priority=True),
        bind("chat.new", "ctrl+n", "new", "New chat", "this one stays in the list"),
        bind("chat.models", "ctrl+l,f5", "models", "Load model",
             "another one of this machine; the chat goes on", priority=True),
        bind("chat.find", "ctrl+f", "find", "Find", "search in this chat", priority=True),
        bind("chat.system", "ctrl+y", "system_prompt", "System prompt",
             "instructions for the model", priority=True),
        bind("chat.answers", "f8", "answers", priority=True),
    ]  # fmt: skip

    def __init__(
        self,
        session: ChatSession,
        store: Store | None = None,
        configuration: Configuration | None = None,
        ask: bool = False,
    ) -> None:
        """Prepare a chat; the model is loaded on screen.

        Args:
            session: with a source that is not open yet.
            store: where the chat is saved; None saves nothing.
            configuration: the user's.
            ask: whether the user chooses the branch at forks that are close.

        Raises:
            ConfigurationError: the configuration's theme or one of its keys does not exist.
        """
        self.composer = Composer(id="composer")
        # Which profile fits the model is not known before the model is loaded.
        conversation = session.conversation.snapshot()
        super().__init__(Workspace(conversation, Profile.load(), self.composer), configuration)
        self.workspace.transcript.welcome = Welcome()
        self.status = self.workspace.status
        self.status.sampler, self.status.model = session.settings.sampler, session.source.model
        self._settings = session.settings
        self._ask = ask
        self._refusals = session.source.refusals
        self.link = BackendLink(self, session, self.workspace, self.composer, ask)
        self.files = ChatFiles(self, self.workspace, self.link, store)

    def on_mount(self) -> None:
        follow_terminal(self)
        self.composer.focus()
        self.link.start()
        self.set_interval(SAVE_SECONDS, self._save_running)
        self.files.offer_crashed()

    async def on_unmount(self) -> None:
        """Save the chat, at first in case that the model's thread takes too long to end."""
        self.files.autosave.save(self.workspace.conversation)
        await self.link.stop()
        self.files.autosave.save(self.workspace.conversation)
        await asyncio.to_thread(self.files.autosave.close, crashed=bool(self.return_code))

    async def on_backend_reported(self, message: BackendReported) -> None:
        if not self.is_running:  # it leaves, and its widgets go one by one
            return
        await self.link.receive(message.event)
        if isinstance(message.event, ConversationChanged):
            self.sub_title = self.workspace.conversation.name
        elif isinstance(message.event, AnswerEnded):
            self.files.autosave.save(self.workspace.conversation)
            if isinstance(self.screen, TuneScreen):
                self.screen.show_answer()

    def _save_running(self) -> None:
        if self.status.state.busy:
            self.files.autosave.save(self.workspace.conversation)

    def on_composer_sent(self, event: Composer.Sent) -> None:
        text = event.question.text
        try:
            taken = self.link.ask(replace(event.question, text=with_files(text)))
        except SessionError as error:
            self.notify(str(error), severity="warning", markup=False)
        else:
            if taken:
                self.composer.clear_sent(text)

    def is_useful(self, action: str) -> bool:
        state, asked = self.status.state, bool(self._turns)
        pointed = self.workspace.transcript.cursor is not None
        several = asked and len(self._turns[self._turn].answers) > 1
        useful = {
            "escape": state.busy or pointed or self.composer.turn is not None,
            "focus": True,
            **dict.fromkeys(("tokens", "regenerate", "edit"), asked),
            **dict.fromkeys(("answers", "sibling"), several),
            **dict.fromkeys(("fork", "distribution", "attention"), pointed),
        }
        return useful[action] if action in useful else super().is_useful(action)

    def action_tokens(self) -> None:
        """Go to the tokens: to the least sure place, or the last token where none is unsure."""
        transcript = self.workspace.transcript
        if not transcript.is_empty:
            transcript.focus()
            if transcript.cursor is None:
                transcript.point_at_least_sure()

    def action_help_quit(self) -> None:
        if self.status.state.busy:
            self.link.cancel()
        else:
            super().action_help_quit()

    def action_escape(self) -> None:
        """Stop the answer; else leave the tokens, or an edit, for the next question."""
        if self.status.state.busy:
            self.link.cancel()
            return
        self.composer.turn = None
        self.workspace.transcript.point(None)
        self.composer.focus()

    def action_regenerate(self) -> None:
        if self.workspace.asked_anything():
            self.link.interrupt()
            self.link.submit(lambda session, cancel: session.regenerate(cancel=cancel))

    def action_edit(self) -> None:
        if self.workspace.asked_anything():
            last = len(self._turns) - 1
            self.composer.write(UserMessage(self._turns[last].question, last))
            self.composer.focus()
            self.notify("Enter replaces the last question, Escape cancels that")

    def action_new(self) -> None:
        self.link.interrupt()
        self.link.submit(lambda session, _: session.new())

    def action_tune(self) -> None:
        """Open the settings, once the model is there: before, its profile is not known."""
        if not self.link.available(State.READING, State.GENERATING):
            return

        def end(tuned: TunedSettings | None) -> None:
            self.workspace.remove_class("-tuning")
            if tuned is not None:
                self._use_tuned(tuned)

        def try_out(tuned: TunedSettings) -> None:
            self._use_tuned(tuned)
            self.action_regenerate()

        settings = replace(self._settings, profile=self.workspace.profile, changes={})
        tuned = TunedSettings(settings, self._ask)
        screen = TuneScreen(tuned, self.workspace.preview, try_out, self.files.save_profile)
        self.workspace.add_class("-tuning")  # nothing of the text is covered
        self.push_screen(screen, end)

    async def action_save(self) -> None:
        await self.files.ask_where_to_save()

    def action_chats(self) -> None:
        self.files.list_chats()

    def action_models(self) -> None:
        def take(name: str | None) -> None:
            if name is not None:
                self.link.switch(name)

        if self.link.available(State.FAILED):
            self.link.thread.list_models()
            title = "Models on this machine"
            self.push_screen(Picker(title, hint="looking for models …", id="models"), take)

    async def action_system_prompt(self) -> None:
        def take(text: str | None) -> None:
            if text is not None:
                self.link.submit(lambda session, _: session.instruct(text or None))

        prompt = self.workspace.conversation.system_prompt or ""
        dialog = LongTextDialog("System prompt: instructions that precede the chat", prompt)
        await self.push_screen(dialog, take)
        for field in dialog.query(TextArea):
            dialog.set_focus(field)

    def action_fork(self) -> None:
        """Continue from the cursor with the alternative, or branch of a fork, that is selected."""
        transcript, inspector = self.workspace.transcript, self.workspace.inspector
        index, turn, tokens = transcript.cursor, transcript.turn, inspector.tokens
        if index is None:
            return
        if not inspector.chosen:
            self.notify("↑ ↓ choose an alternative first; then Enter continues with it")
            return
        if turn < len(self._turns) - 1:
            self.notify("the turns that followed stay with the old answer: [ brings them back")
        self.link.interrupt()
        self.link.submit(lambda session, cancel: session.fork(index, tokens, turn, cancel=cancel))

    def action_distribution(self) -> None:
        self._read_pointed(lambda session, step, turn: session.distribution(step, turn))

    def action_attention(self) -> None:
        self._read_pointed(lambda session, step, turn: session.attention(step, turn))

    def _read_pointed(self, read: Callable[[ChatSession, int, int], StepReading]) -> None:
        transcript = self.workspace.transcript
        if transcript.cursor is not None:
            turn, step = transcript.turn, transcript.steps[transcript.cursor]
            if self.link.available():
                self.link.thread.read_step(step, lambda session: read(session, step.index, turn))

    def _take_answer(self, answer: int | None, turn: int) -> None:
        """Show another answer to a question, with the turns that followed it."""
        if answer is not None and 0 <= answer < len(self._turns[turn].answers):
            self.link.interrupt()
            self.link.submit(lambda session, _: session.select(answer, turn))

    def action_answers(self) -> None:
        turn = self._turn
        if turn >= 0 and self._turns[turn].answers:
            picker = pick_answer(self._turns[turn])
            self.push_screen(picker, lambda answer: self._take_answer(answer, turn))

    def action_sibling(self, by: int) -> None:
        turn = self._turn
        if turn >= 0:
            self._take_answer(self._turns[turn].selected + by, turn)

    @property
    def _turn(self) -> int:
        """The turn with the cursor, or the last one, −1 without any; more may still be shown."""
        return min(self.workspace.transcript.turn, len(self._turns) - 1)

    @property
    def _turns(self) -> list[Turn]:
        return self.workspace.conversation.turns

    def action_find(self) -> None:
        self.push_screen(FindBar(self.workspace.conversation, self.workspace.show_place))

    def _use_tuned(self, tuned: TunedSettings) -> None:
        self._settings, self._ask = tuned.settings, tuned.ask
        self.status.sampler = tuned.settings.sampler
        self.workspace.use_profile(Profile.load(tuned.settings.profile))
        if tuned.ask and (reason := self._refusals.get("ask")):
            self.notify(reason, severity="warning")
        self.link.thread.configure(tuned.settings, tuned.ask)
