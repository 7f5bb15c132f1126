"""`entropix chat`: what the keys do."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import Input

from entropix_mlx.chat.conversation import Conversation, Turn
from entropix_mlx.errors import EntropixError, SessionError
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.serving.events import Question
from entropix_mlx.serving.worker import Chat

from .base import WorkspaceApp
from .commands import COMMANDS, run_command
from .link import ModelLink
from .messages import ModelReported
from .saving import expanded, free_name, save, trace_header
from .screens.dialogs import ConfirmDialog, TextDialog
from .screens.duel import DuelScreen
from .screens.tune import Tuned, TuneScreen
from .widgets.composer import Composer
from .widgets.status import State
from .widgets.transcript import Transcript
from .workspace import Workspace


class ChatApp(WorkspaceApp):
    """A chat with live gauges."""

    # What opens a dialog has priority, or keys that are typed at once would overtake it.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "escape", "Stop", tooltip="Stop; leave the tokens", id="app.escape"),
        Binding(
            "ctrl+r",
            "regenerate",
            "Again",
            id="chat.regenerate",
            tooltip="Answer again: another answer to the last question",
        ),
        Binding(
            "ctrl+g",
            "edit",
            "Edit",
            id="chat.edit",
            priority=True,
            tooltip="Edit question: ask the last one differently",
        ),
        Binding(
            "f3", "tune", "Settings", id="chat.tune", tooltip="Settings: sampler, thresholds, seed"
        ),
        Binding("f4", "duel", "Duel", id="chat.duel", tooltip="Duel: two samplers side by side"),
        Binding(
            "ctrl+n", "new", "New", show=False, id="chat.new", tooltip="New chat: forget this one"
        ),
        Binding(
            "ctrl+s",
            "save",
            "Save",
            show=False,
            id="chat.save",
            priority=True,
            tooltip="Save: chat, Markdown or trace",
        ),
        Binding(
            "ctrl+o",
            "open",
            "Open",
            show=False,
            id="chat.open",
            priority=True,
            tooltip="Open: a saved chat",
        ),
    ]

    typed_commands = tuple(COMMANDS)

    def __init__(self, chat: Chat) -> None:
        """Prepare a chat; the model is loaded when the app is on screen."""
        self.composer = Composer(id="composer")
        # Which profile fits the model is not known before the model is loaded.
        conversation = Conversation(chat.system_prompt)
        super().__init__(Workspace(conversation, Profile.load(), self.composer))
        self.status = self.workspace.status
        self.status.sampler, self.status.model = chat.settings.sampler, chat.model
        self._settings = chat.settings
        self._ask = chat.ask
        self.link = ModelLink(self, chat, self.workspace, self.composer)

    @property
    def key_groups(self) -> Mapping[str, Sequence[BindingType]]:
        """The bindings of the help page, under their headings; first those of the field."""
        anywhere, *others = super().key_groups.items()
        return {anywhere[0]: [*Composer.BINDINGS, *anywhere[1]], **dict(others)}

    def on_mount(self) -> None:
        """Begin to load."""
        self.composer.focus()
        self.link.start()

    async def on_unmount(self) -> None:
        """End the model's thread."""
        await self.link.stop()

    async def on_model_reported(self, message: ModelReported) -> None:
        """Show an event of the model's thread."""
        await self.link.receive(message.event)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Let the keys that have priority rest while a dialog is open."""
        waits = action in ("edit", "save", "open") and isinstance(self.screen, ModalScreen)
        return not waits and super().check_action(action, parameters)

    def on_composer_sent(self, event: Composer.Sent) -> None:
        """Send a question, or an edited one in its old place; or do what a command says."""
        text = event.question.text
        if text.startswith("/"):
            try:
                run_command(self, text)
            except SessionError as error:
                self.notify(str(error), severity="warning", markup=False)
            else:
                self.composer.take(text)
        elif self.link.ask(event.question):
            self.composer.take(text)

    def action_help_quit(self) -> None:
        """Stop the answer where Ctrl+C is pressed; else say how to quit."""
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
        """Answer the last question once more, instead of a running answer."""
        if self._asked():
            self.link.interrupt()
            self.link.submit(lambda session, cancel: session.regenerate(cancel=cancel))

    def action_edit(self) -> None:
        """Put the last question into the field, to be sent in its place."""
        if not self._asked():
            return
        self.composer.write(self._last_question())
        self.composer.focus()
        self.notify("Enter asks this in the place of the last question, Escape leaves it")

    def action_new(self) -> None:
        """Begin another conversation."""
        self.link.submit(lambda session, _: session.new())

    def action_tune(self) -> None:
        """Open the settings; which profile they begin at is known when the model is."""
        if self.status.state in (State.LOADING, State.FAILED):
            self.notify(self.status.state.refusal, severity="warning")
            return
        settings = replace(self._settings, profile=self.workspace.profile, changes={})
        screen = TuneScreen(settings, self._ask, self.workspace.preview)
        self.push_screen(screen, self._take)

    def action_duel(self) -> None:
        """Let two samplers answer what is in the field, or the last question."""
        typed = self.composer.question
        if not self.link.available() or not (typed.text.strip() or self._asked()):
            return
        question = typed if typed.text.strip() else self._last_question()
        seed = secrets.randbits(32) if self._settings.seed is None else self._settings.seed
        self.push_screen(DuelScreen(question, self._settings, seed, self.link.duel))

    async def action_save(self) -> None:
        """Ask where to save."""
        if self._asked():
            title = "Save as (.json: chat, .md: text, .jsonl: trace)"
            await self._ask_text(title, free_name(), lambda path: self.save(path or ""))

    async def action_open(self) -> None:
        """Ask what to open."""

        title = "Open a saved chat"
        await self._ask_text(title, "chat.json", lambda path: self.open(path or ""))

    async def action_system_prompt(self) -> None:
        """Ask for instructions that precede the conversation."""

        def take(text: str | None) -> None:
            if text is not None:
                self.link.submit(lambda session, _: session.instruct(text or None))

        prompt = self.workspace.conversation.system_prompt
        await self._ask_text("System prompt", prompt or "", take)

    def on_transcript_fork_wanted(self) -> None:
        """Go on from the cursor with the alternative that is selected."""
        index = self.workspace.transcript.cursor
        alternative = self.workspace.inspector.alternative
        if index is None or alternative is None:
            return
        token = alternative.token
        if token == self.workspace.last_steps[index].token:
            self.notify("this token stands there already: ↑ ↓ choose another")
            return
        self.link.interrupt()
        self.link.submit(lambda session, cancel: session.fork(index, token, cancel=cancel))

    def on_transcript_sibling_wanted(self, event: Transcript.SiblingWanted) -> None:
        """Show another answer to the last question."""
        if not self._turns:
            return
        wanted = self._turns[-1].selected + event.by
        if 0 <= wanted < len(self._turns[-1].answers):
            self.link.submit(lambda session, _: session.select(wanted))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the palette's commands."""
        yield from super().get_system_commands(screen)
        told = "Instructions for the model"
        yield SystemCommand("System prompt", told, self.action_system_prompt)

    @property
    def _turns(self) -> list[Turn]:
        return self.workspace.conversation.turns

    async def _ask_text(self, title: str, text: str, then: Callable[[str | None], None]) -> None:
        """Ask for a line; return when the field is there, since the keys that follow are for it."""
        dialog = TextDialog(title, text)
        await self.push_screen(dialog, then)
        dialog.set_focus(dialog.query_one(Input))

    def _asked(self) -> bool:
        """Tell whether there is a question, and say so if there is none."""
        if not self._turns:
            self.notify("nothing was asked yet", severity="warning")
        return bool(self._turns)

    def _last_question(self) -> Question:
        """Return the last question, to be asked in its own place."""
        return Question(self._turns[-1].question, len(self._turns) - 1)

    def _take(self, tuned: Tuned | None) -> None:
        """Use the settings that the user settled on."""
        if tuned is None:
            return
        self._settings, self._ask = tuned.settings, tuned.ask
        self.status.sampler = tuned.settings.sampler
        self.workspace.use_profile(Profile.load(tuned.settings.profile))
        self.link.configure(tuned.settings, tuned.ask)
        if tuned.regenerate:
            self.action_regenerate()

    def save(self, path: str) -> None:
        """Save under a path that the user typed; ask before that replaces a file."""
        if not path or not self._asked():
            return
        try:
            exists = expanded(path).is_file()
        except EntropixError as error:
            self.notify(f"cannot save {path}: {error}", severity="error", markup=False)
            return
        if not exists:
            self._write(path)
            return
        question = f"There is a file {path} already."
        self.push_screen(
            ConfirmDialog(question, "replaces it"), lambda yes: self._write(path) if yes else None
        )

    def _write(self, path: str) -> None:
        conversation = self.workspace.conversation
        try:
            save(conversation, expanded(path), trace_header(self.workspace))
        except (EntropixError, OSError) as error:
            self.notify(f"cannot save {path}: {error}", severity="error", markup=False)
        else:
            self.notify(f"saved {path}", markup=False)

    def open(self, path: str) -> None:
        """Open a saved chat in place of this one."""
        if path:
            self.link.submit(lambda session, _: session.load(expanded(path)))


def run_chat(chat: Chat) -> None:
    """Show a chat until the user leaves it."""
    app = ChatApp(chat)
    app.run()
    if app.link.alive:
        # Nothing interrupts a model that is being loaded, and the interpreter's end would abort in
        # it. The terminal is restored and no file is open, so leave without that end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(app.return_code or 0)
