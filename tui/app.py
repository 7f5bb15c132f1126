"""`entropix chat`: a chat with live gauges, its keys and its commands."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import TextArea

from entropix_mlx.backends.events import AnswerEnded, ConversationChanged, Question
from entropix_mlx.backends.local import Chat
from entropix_mlx.backends.remote import NO_ASKING, NO_DUEL
from entropix_mlx.chat.attachments import with_files
from entropix_mlx.chat.conversation import Conversation, Turn
from entropix_mlx.chat.slash import COMMANDS, parse
from entropix_mlx.chat.store import Store
from entropix_mlx.configuration.reading import OPTIONS, Configuration
from entropix_mlx.errors import SessionError
from entropix_mlx.profiles.profile import Profile

from .backend_link import ModelLink, ModelReported
from .base import WorkspaceApp
from .chat_files import KEEP_SECONDS, Filing, Keeper
from .composer.composer import Composer
from .composer.status import State
from .help_text import Welcome
from .screens.dialogs import LongTextDialog
from .screens.duel import DuelScreen, Kept
from .screens.find import FindBar
from .screens.options import Chosen, OptionsDialog
from .screens.pickers import ModelPicker
from .screens.tuning.tune import Tuned, TuneScreen, kept_settings
from .terminal import end_with_terminal
from .transcript.transcript import Transcript
from .workspace import Workspace

# What opens a dialog has priority, or keys that are typed at once would overtake it.
CHAT_BINDINGS: list[BindingType] = [
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
        "ctrl+n",
        "new",
        "New",
        show=False,
        id="chat.new",
        tooltip="New chat: begin another; this one is kept",
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
    Binding(
        "ctrl+l",
        "chats",
        "Chats",
        id="chat.chats",
        priority=True,
        tooltip="Chats: open, search, rename or delete one",
    ),
    Binding(
        "f5",
        "models",
        "Model",
        show=False,
        id="chat.models",
        priority=True,
        tooltip="Model: choose another",
    ),
    Binding(
        "f6",
        "generation",
        "Options",
        show=False,
        id="chat.generation",
        priority=True,
        tooltip="Options: most tokens, top-p, top-k, min-p",
    ),
    Binding(
        "ctrl+f",
        "find",
        "Find",
        show=False,
        id="chat.find",
        priority=True,
        tooltip="Find: search in this chat",
    ),
    Binding(
        "ctrl+y",
        "code",
        "Copy code",
        show=False,
        id="chat.code",
        priority=True,
        tooltip="Copy code: the last block of the answer",
    ),
]
DIALOGS = ("edit", "save", "open", "chats", "models", "generation", "find", "code")
"""Actions whose keys have priority, and rest while a dialog is open."""
OF_THE_CHAT = (*DIALOGS, "tune", "duel", "new", "regenerate")
"""Actions whose keys rest while a duel lies over the chat."""


def rests(action: str, screens: Sequence[Screen[Any]]) -> bool:
    """Tell whether the key of an action has no meaning because of what lies over the chat.

    Args:
        action: what the key does.
        screens: the stack of screens; the last one is on top.
    """
    under_dialog = any(isinstance(screen, ModalScreen) for screen in screens[-1:])
    under_duel = any(isinstance(screen, DuelScreen) for screen in screens)
    return (under_dialog and action in DIALOGS) or (under_duel and action in OF_THE_CHAT)


def useful_keys(state: State, answers: int | None, chosen: bool, typed: bool) -> dict[str, bool]:
    """Return which of the keys that do not always help would do something now.

    Args:
        state: what the model is doing.
        answers: how many there are to the question in question; None if none was asked.
        chosen: whether the user has selected another way from the token with the cursor.
        typed: whether there is something in the field.
    """
    asked, loaded = answers is not None, state not in (State.LOADING, State.FAILED)
    return {
        "app.escape": state.busy,  # it also leaves the tokens, as Tab does
        "composer.tab": asked,
        "chat.regenerate": asked,
        "chat.edit": asked,
        "chat.duel": not state.refusal and (asked or typed),
        "chat.tune": loaded,
        "transcript.leave": True,
        "transcript.fork": chosen and loaded,
        "transcript.previous": (answers or 0) > 1,
    }


class ChatApp(WorkspaceApp):
    """A chat with live gauges."""

    BINDINGS: ClassVar[list[BindingType]] = CHAT_BINDINGS
    typed_commands = COMMANDS

    def __init__(
        self, chat: Chat, store: Store | None = None, configuration: Configuration | None = None
    ) -> None:
        """Prepare a chat; the model is loaded when the app is on screen.

        Args:
            chat: what it begins with.
            store: where chats are kept; None keeps none.
            configuration: theme and keys; what the user changes is written there.

        Raises:
            ConfigurationError: there is no such theme.
        """
        self.composer = Composer(id="composer")
        # Which profile fits the model is not known before the model is loaded.
        conversation = Conversation(chat.system_prompt)
        super().__init__(
            Workspace(conversation, Profile.load(), self.composer.hints, self.composer),
            configuration,
        )
        self.workspace.transcript.welcome = Welcome()
        self.workspace.transcript.field = self.composer
        self.status = self.workspace.status
        self.status.sampler, self.status.model = chat.settings.sampler, chat.model
        self._settings = chat.settings
        self._ask = chat.ask
        self._remote = chat.server is not None
        self.link = ModelLink(self, chat, self.workspace, self.composer)
        self.keeper = Keeper(self, store)
        self.filing: Filing = Filing(self, self.workspace, self.link, self.keeper)

    @property
    def key_groups(self) -> Mapping[str, Sequence[BindingType]]:
        """The bindings of the help page, under their headings; first those of the field."""
        anywhere, *others = super().key_groups.items()
        return {anywhere[0]: [*Composer.BINDINGS, *anywhere[1]], **dict(others)}

    def on_mount(self) -> None:
        """Begin to load."""
        end_with_terminal(self)
        self.composer.focus()
        self.remember_theme()
        self.link.start()
        self.set_interval(KEEP_SECONDS, self._keep_running)
        self.filing.offer_crashed()

    async def on_unmount(self) -> None:
        """End the model's thread, and save what it wrote last."""
        await self.link.stop()
        self.keeper.keep(self.workspace.conversation)
        await asyncio.to_thread(self.keeper.close)

    async def on_model_reported(self, message: ModelReported) -> None:
        """Show an event of the model's thread."""
        await self.link.receive(message.event)
        if isinstance(message.event, ConversationChanged):
            self.composer.offers_questions = not self._turns
            self.sub_title = self.workspace.conversation.name
        elif isinstance(message.event, AnswerEnded):
            self.keeper.keep(self.workspace.conversation)

    def _keep_running(self) -> None:
        """Save an answer that takes long, so that a crash loses little of it."""
        if self.status.state.busy:
            self.keeper.keep(self.workspace.conversation)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Let keys rest while a dialog or a duel lies over the chat."""
        return not rests(action, self.screen_stack) and super().check_action(action, parameters)

    def on_composer_sent(self, event: Composer.Sent) -> None:
        """Send a question, or an edited one in its old place; or do what a command says."""
        text = event.question.text
        try:
            done = run_command(self, text) or self.link.ask(
                replace(event.question, text=with_files(text))
            )
        except SessionError as error:
            self.notify(str(error), severity="warning", markup=False)
        else:
            if done:
                self.composer.take(text)

    def on_composer_left(self) -> None:
        """Go to the tokens, with the cursor on the last one, if there are any."""
        transcript = self.workspace.transcript
        if transcript.follows:
            transcript.focus()
            if transcript.cursor is None:
                transcript.action_move(-1)

    def on_transcript_left(self) -> None:
        """Go back to the field."""
        self.composer.focus()

    def useful_keys(self) -> dict[str, bool]:
        """Return which of the keys that do not always help would do something now."""
        chosen = self.workspace.transcript.cursor is not None and self.workspace.inspector.chosen
        answers = len(self._turns[self._turn].answers) if self._turns else None
        useful = useful_keys(self.status.state, answers, chosen, bool(self.composer.text))
        useful["chat.chats"] = bool(self.keeper.store)
        useful["chat.duel"] &= not self._remote
        return super().useful_keys() | useful

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
        self.link.interrupt()
        self.link.submit(lambda session, _: session.new())

    def action_tune(self) -> None:
        """Open the settings; which profile they begin at is known when the model is."""
        if not self.link.settings_known():
            return
        settings = replace(self._settings, profile=self.workspace.profile, changes={})
        screen = TuneScreen(settings, self._ask, self.workspace.preview)
        self.push_screen(screen, self._take)

    def action_duel(self) -> None:
        """Let two samplers answer what is in the field, or the last question."""
        if self._remote:
            self.notify(NO_DUEL, severity="warning")
            return
        typed = self.composer.question
        if not self.link.available() or not (typed.text.strip() or self._asked()):
            return
        question = typed if typed.text.strip() else self._last_question()
        seed = secrets.randbits(32) if self._settings.seed is None else self._settings.seed
        profile = self.workspace.profile
        screen = DuelScreen(question, self._settings, seed, self.link.duel, profile)
        self.push_screen(screen, self._keep)

    def _keep(self, kept: Kept | None) -> None:
        """Make a side of a duel the answer."""
        if kept is None:
            return
        asked, seed, steps = kept.question, kept.seed, kept.steps
        self.link.interrupt()
        self.link.submit(lambda session, _: session.adopt(asked.text, asked.turn, seed, steps))
        if asked.turn is None:
            self.composer.take(asked.text)

    async def action_save(self) -> None:
        """Ask where to save."""
        await self.filing.ask_where_to_save()

    async def action_open(self) -> None:
        """Ask what to open."""
        await self.filing.ask_what_to_open()

    def action_chats(self) -> None:
        """List the chats that were kept."""
        self.filing.list_chats()

    def action_models(self) -> None:
        """Let the user choose another model."""

        def take(name: str | None) -> None:
            if name is not None:
                self.link.switch(name)

        if self.link.list_models():
            self.push_screen(ModelPicker(), take)

    def action_generation(self) -> None:
        """Ask for the options that are plain numbers."""

        def take(chosen: Chosen | None) -> None:
            if chosen is not None:
                self._settings = chosen.settings
                self.link.configure(chosen.settings, self._ask)
                kept = (chosen.kept or {}).items()
                self.remember(OPTIONS, {name.replace("_", "-"): value for name, value in kept})

        if self.link.settings_known():
            self.push_screen(OptionsDialog(self._settings), take)

    def action_find(self) -> None:
        """Search in this chat."""
        self.find("")

    def find(self, text: str) -> None:
        """Search for a text in this chat."""
        self.push_screen(FindBar(self.workspace.conversation, self.workspace.show_place, text))

    def action_code(self) -> None:
        """Copy the last block of code of the answer with the cursor, or else of the last one."""
        answer = self.workspace.transcript.answer
        copy_last_block(self, answer.text if answer else "")

    async def action_system_prompt(self) -> None:
        """Ask for instructions that precede the conversation."""

        def take(text: str | None) -> None:
            if text is not None:
                self.link.submit(lambda session, _: session.instruct(text or None))

        prompt = self.workspace.conversation.system_prompt or ""
        dialog = LongTextDialog("System prompt: instructions that precede the chat", prompt)
        await self.push_screen(dialog, take)
        dialog.set_focus(dialog.query_one(TextArea))

    def on_transcript_fork_wanted(self) -> None:
        """Go on from the cursor with the alternative, or the way of a fork, that is selected."""
        transcript, inspector = self.workspace.transcript, self.workspace.inspector
        index, turn, tokens = transcript.cursor, transcript.turn, inspector.tokens
        if index is None:
            return
        if not inspector.chosen:
            self.notify(f"{inspector.hint} first; then f or Enter goes it")
            return
        if turn < len(self._turns) - 1:
            self.notify("the turns that followed stay with the old answer: [ ] brings them back")
        self.link.interrupt()
        self.link.submit(lambda session, cancel: session.fork(index, tokens, turn, cancel=cancel))

    def on_transcript_sibling_wanted(self, event: Transcript.SiblingWanted) -> None:
        """Show another answer to a question, with the turns that followed it."""
        if not self._turns:
            return
        turn = self._turn
        wanted = self._turns[turn].selected + event.by
        if 0 <= wanted < len(self._turns[turn].answers):
            self.link.interrupt()
            self.link.submit(lambda session, _: session.select(wanted, turn))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the palette's commands."""
        yield from super().get_system_commands(screen)
        told = "Instructions for the model"
        yield SystemCommand("System prompt", told, self.action_system_prompt)

    @property
    def _turn(self) -> int:
        """The turn with the cursor, or the last one; there may be fewer than are still shown."""
        return min(self.workspace.transcript.turn, len(self._turns) - 1)

    @property
    def _turns(self) -> list[Turn]:
        return self.workspace.conversation.turns

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
        if tuned.ask and self._remote:
            self.notify(NO_ASKING, severity="warning")
        self.link.configure(tuned.settings, tuned.ask)
        if tuned.keep:
            configured = self.configured_options
            usual = Profile.load(tuned.profile or self.link.profile)
            self.remember(OPTIONS, kept_settings(tuned, usual, configured))
        if tuned.regenerate:
            self.action_regenerate()


Action = Callable[["ChatApp", str], object]


def run_command(app: ChatApp, line: str) -> bool:
    """Do what a line says that begins with a slash; return whether it does.

    Raises:
        SessionError: there is no such command, or it needs something else behind it.
    """
    command = parse(line)
    if command is None:
        return False
    name, argument = command
    ACTIONS[name](app, argument)
    return True


def _edit(app: ChatApp, text: str) -> None:
    if not text:
        app.action_edit()
        return
    turns = app.workspace.conversation.turns
    if not turns:
        raise SessionError("nothing was asked yet: there is no question to edit")
    app.link.ask(Question(with_files(text), len(turns) - 1))


def _steps(app: ChatApp, _: str) -> None:
    app.on_composer_left()


def _fork(app: ChatApp, argument: str) -> None:
    step, _, token = argument.partition(" ")
    index, chosen = _whole(step), _whole(token)
    app.link.submit(lambda session, cancel: session.fork(index, chosen, cancel=cancel))


def _select(app: ChatApp, argument: str) -> None:
    number = _whole(argument)
    app.link.submit(lambda session, _: session.select(number - 1))


def _system(app: ChatApp, text: str) -> None:
    if text:
        app.link.submit(lambda session, _: session.instruct(text))
    else:
        app.call_later(app.action_system_prompt)


def _save(app: ChatApp, path: str) -> None:
    app.filing.save(path) if path else app.call_later(app.action_save)


def _load(app: ChatApp, path: str) -> None:
    app.filing.open(path) if path else app.call_later(app.action_open)


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise SessionError(f"{text!r} is not a number: write /fork STEP TOKEN, or /select N")
    return int(text)


ACTIONS: Mapping[str, Action] = {
    "/regenerate": lambda app, _: app.action_regenerate(),
    "/edit": _edit,
    "/steps": _steps,
    "/fork": _fork,
    "/select": _select,
    "/system": _system,
    "/new": lambda app, _: app.action_new(),
    "/save": _save,
    "/load": _load,
    "/chats": lambda app, _: app.action_chats(),
    "/rename": lambda app, title: app.filing.rename(title),
    "/models": lambda app, _: app.action_models(),
    "/settings": lambda app, _: app.action_generation(),
    "/find": lambda app, words: app.find(words),
    "/code": lambda app, _: app.action_code(),
    "/help": lambda app, _: app.action_help(),
    "/quit": lambda app, _: app.exit(),
}


def code_blocks(text: str) -> list[str]:
    """Return what stands between the fences of a Markdown text, also after one that never ends."""
    from markdown_it import MarkdownIt  # with Textual's Markdown widget; slow to import

    return [token.content for token in MarkdownIt().parse(text) if token.type == "fence"]


def copy_last_block(app: App[None], text: str) -> None:
    """Copy the last block of a text to the clipboard, and say so."""
    blocks = code_blocks(text)
    if not blocks:
        app.notify("this answer has no block of code", severity="warning")
        return
    app.copy_to_clipboard(blocks[-1])
    lines = len(blocks[-1].splitlines())
    app.notify(f"copied the last of {len(blocks)} blocks of code: {lines} lines")


def run_chat(
    chat: Chat, store: Store | None = None, configuration: Configuration | None = None
) -> None:
    """Show a chat until the user leaves it; see `ChatApp`."""
    app = ChatApp(chat, store, configuration)
    app.run()
    if app.link.alive:
        # Nothing interrupts a model that is being loaded, and the interpreter's end would abort in
        # it. The terminal is restored and no file is open, so leave without that end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(app.return_code or 0)
