"""`entropix chat`: a chat with live gauges, its keys and its commands."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import TextArea

from entropix_mlx.answer.promise import Promise
from entropix_mlx.backends.base import Backend, StepReading
from entropix_mlx.backends.events import AnswerEnded, ConversationChanged, UserMessage
from entropix_mlx.chat.attachments import with_files
from entropix_mlx.chat.base import ChatSession
from entropix_mlx.chat.conversation import Conversation, Turn
from entropix_mlx.chat.slash import COMMANDS, parse
from entropix_mlx.chat.store import Store
from entropix_mlx.configuration import OPTIONS, Configuration
from entropix_mlx.constraints.fields import fields_of
from entropix_mlx.errors import EntropixError, SessionError
from entropix_mlx.profiles.confidence import AnswerMetrics
from entropix_mlx.profiles.profile import Profile

from .backend_link import BackendLink, BackendReported
from .base import WorkspaceApp
from .chat_files import SAVE_SECONDS, ChatFiles
from .composer.composer import Composer
from .composer.status import State
from .help_text import Welcome
from .screens.answers import AnswerList, FieldList, TakenAlternative
from .screens.dialogs import LongTextDialog
from .screens.duel import DuelChoice, DuelScreen
from .screens.find import FindBar
from .screens.options import ChosenOptions, OptionsDialog
from .screens.pickers import ChatPane, ModelPicker
from .screens.tree import Path, TreeScreen
from .screens.tuning.tune import TunedSettings, TuneScreen, default_options
from .terminal import end_with_terminal
from .transcript.form import is_structured
from .workspace import Workspace

DIALOGS = (
    "edit",
    "save",
    "open",
    "chats",
    "models",
    "generation",
    "find",
    "code",
    "answers",
    "fields",
)
"""Actions whose keys have priority, and are off while a dialog is open."""
OF_THE_CHAT = (*DIALOGS, "tune", "duel", "new", "regenerate", "mark")
"""Actions whose keys are off while a duel covers the chat."""


def run_chat(
    backend: Backend, store: Store | None = None, configuration: Configuration | None = None
) -> int:
    """Show a chat until the user leaves it; return the exit code, which is 1 after a crash."""
    app = ChatApp(backend, store, configuration)
    app.run()
    code = app.return_code or 0
    if app.link.alive:
        # Nothing interrupts a model that is being loaded, and the interpreter's end would abort in
        # it. The terminal is restored and no file is open, so leave without that end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


class ChatApp(WorkspaceApp):
    """A chat with live gauges."""

    # Keys that open a dialog have priority, or keys that are typed at once would overtake them.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "escape", "Stop", id="app.escape", tooltip="Stop; leave the tokens"),
        Binding(
            "ctrl+r", "regenerate", "Regenerate", id="chat.regenerate",
            tooltip="Regenerate: another answer to the last question",
        ),
        Binding(
            "ctrl+g", "edit", "Edit question", id="chat.edit", priority=True,
            tooltip="Edit question: change and resend the last one",
        ),
        Binding(
            "f3", "tune", "Change settings", id="chat.tune",
            tooltip="Settings: sampler, thresholds, seed",
        ),
        Binding(
            "f4", "duel", "Compare samplers", id="chat.duel",
            tooltip="Duel: two samplers side by side",
        ),
        Binding(
            "f8", "answers", "List answers", id="chat.answers", priority=True,
            tooltip="Answers: all to this question, with their scores",
        ),
        Binding(
            "f10", "fields", "Show fields", id="chat.fields", priority=True,
            tooltip="Fields: how sure each value of a JSON answer is, and its alternatives",
        ),
        Binding(
            "plus,equals_sign", "mark(True)", "Mark right", id="chat.right", key_display="+ -",
            show=False, tooltip="Mark the answer as right or wrong: what is called unsure follows",
        ),
        Binding("minus", "mark(False)", "Mark wrong", id="chat.wrong", show=False),
        Binding(
            "ctrl+n", "new", "New", id="chat.new", show=False,
            tooltip="New chat: start another; this one stays in the list",
        ),
        Binding(
            "ctrl+o", "open", "Open", id="chat.open", show=False, priority=True,
            tooltip="Open: a saved chat",
        ),
        Binding(
            "ctrl+l", "chats", "Open chat", id="chat.chats", priority=True,
            tooltip="Chats: open, search, rename or delete one",
        ),
        Binding(
            "f5", "models", "Model", id="chat.models", show=False, priority=True,
            tooltip="Model: choose another",
        ),
        Binding(
            "f6", "generation", "Options", id="chat.generation", show=False, priority=True,
            tooltip="Options: max tokens, top-p, top-k, min-p",
        ),
        Binding(
            "ctrl+f", "find", "Find", id="chat.find", show=False, priority=True,
            tooltip="Find: search in this chat",
        ),
        Binding(
            "ctrl+y", "code", "Copy code", id="chat.code", show=False, priority=True,
            tooltip="Copy code: the last block of the answer",
        ),
    ]  # fmt: skip
    typed_commands = COMMANDS

    def __init__(
        self,
        backend: Backend,
        store: Store | None = None,
        configuration: Configuration | None = None,
    ) -> None:
        """Prepare a chat, which is not saved without a store; the model is loaded on screen.

        Raises:
            ConfigurationError: the configuration's theme or one of its keys does not exist.
        """
        self.composer = Composer(id="composer")
        self.pane = None if store is None else ChatPane(id="chats")
        # Which profile fits the model is not known before the model is loaded.
        conversation = Conversation(backend.system_prompt)
        super().__init__(
            Workspace(
                conversation, Profile.load(), self.composer.hints, self.composer, beside=self.pane
            ),
            configuration,
        )
        self.workspace.transcript.welcome = Welcome()
        self.workspace.transcript.field = self.composer
        self.status = self.workspace.status
        self.status.sampler, self.status.model = backend.settings.sampler, backend.model
        self._settings = backend.settings
        self._ask = backend.ask
        self._marked: set[tuple[str, int, int]] = set()
        self.backend = backend
        self.link = BackendLink(self, backend, self.workspace, self.composer)
        self.files = ChatFiles(self, self.workspace, self.link, store)

    @property
    def key_groups(self) -> Mapping[str, Sequence[BindingType]]:
        """The bindings of the help page, under their headings; first those of the field."""
        anywhere, *others = super().key_groups.items()
        return {anywhere[0]: [*Composer.BINDINGS, *anywhere[1]], **dict(others)}

    def on_mount(self) -> None:
        end_with_terminal(self)
        self.composer.focus()
        self.remember_screen()
        self.link.start()
        self.set_interval(SAVE_SECONDS, self._save_running)
        self.files.offer_crashed()

    async def on_unmount(self) -> None:
        """Stop the backend, then save the chat."""
        await self.link.stop()
        self.files.autosave.save(self.workspace.conversation)
        await asyncio.to_thread(self.files.autosave.close, crashed=bool(self.return_code))

    async def on_backend_reported(self, message: BackendReported) -> None:
        await self.link.receive(message.event)
        if isinstance(message.event, ConversationChanged):
            self.composer.offers_questions = not self._turns
            self.sub_title = self.workspace.conversation.name
        elif isinstance(message.event, AnswerEnded):
            self.files.autosave.save(self.workspace.conversation)
            match self.screen_stack:  # empty once the app leaves, while the backend still reports
                case [*_, TuneScreen() as tune]:
                    tune.show_answer()
        if isinstance(message.event, ConversationChanged | AnswerEnded):
            self.files.fill(self.pane)

    def on_chat_pane_opened(self, event: ChatPane.Opened) -> None:
        self.files.open_saved(event.chat)
        self.composer.focus()

    def on_chat_pane_shown(self) -> None:
        self.files.fill(self.pane)

    def _save_running(self) -> None:
        """Save a running answer, so that a crash loses little of it."""
        if self.status.state.busy:
            self.files.autosave.save(self.workspace.conversation)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable keys while a dialog or a duel covers the chat."""
        under_dialog = any(isinstance(screen, ModalScreen) for screen in self.screen_stack[-1:])
        under_duel = any(isinstance(screen, DuelScreen) for screen in self.screen_stack)
        if (under_dialog and action in DIALOGS) or (under_duel and action in OF_THE_CHAT):
            return False
        return super().check_action(action, parameters)

    def on_composer_sent(self, event: Composer.Sent) -> None:
        """Send a question, or an edited one in its old place; or run a command."""
        text = event.question.text
        try:
            done = self._run_command(text) or self.link.ask(
                replace(event.question, text=with_files(text))
            )
        except SessionError as error:
            self.notify(str(error), severity="warning", markup=False)
        else:
            if done:
                self.composer.clear_sent(text)

    def on_composer_tokens_requested(self) -> None:
        """Go to the tokens, with the cursor on the last one, if there are any."""
        transcript = self.workspace.transcript
        if transcript.follows_end:
            transcript.focus()
            if transcript.cursor is None:
                transcript.action_move(-1)

    def useful_keys(self) -> dict[str, bool]:
        """Return, by id, whether keys that are not always of use would do something now."""
        state, asked = self.status.state, bool(self._turns)
        loaded = state not in (State.LOADING, State.FAILED)
        answers = len(self._turns[self._turn].answers) if asked else 0
        pointed = self.workspace.transcript.cursor is not None
        duel = not state.refusal and (asked or bool(self.composer.text))
        return super().useful_keys() | {
            "app.escape": state.busy,  # it also leaves the tokens, as Tab does
            "composer.tab": asked,
            "chat.regenerate": asked,
            "chat.edit": asked,
            "chat.duel": duel and "duel" not in self.backend.refusals,
            "chat.tune": loaded,
            "chat.chats": self.files.autosave.store is not None,
            "transcript.leave": True,
            "transcript.fork": pointed and self.workspace.inspector.chosen and loaded,
            "transcript.previous": answers > 1,
            "chat.right": bool(self.workspace.transcript.steps),
            "chat.answers": answers > 1,
            "app.tree": asked,
            "chat.fields": is_structured(self.workspace.transcript.steps),
            "transcript.distribution": pointed and not state.refusal,
            "transcript.attention": pointed and not state.refusal,
        }

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

    def action_leave_tokens(self) -> None:
        self.composer.focus()

    def action_regenerate(self) -> None:
        """Answer the last question again, in place of a running answer."""
        if self.workspace.asked_anything():
            self.link.interrupt()
            self.link.submit(lambda session, cancel: session.regenerate(cancel=cancel))

    def action_edit(self) -> None:
        """Put the last question into the field, to be sent in its place."""
        if self.workspace.asked_anything():
            self.composer.write(self._last_question())
            self.composer.focus()
            self.notify("Enter replaces the last question, Escape cancels that")

    def action_new(self) -> None:
        self.link.interrupt()
        self.link.submit(lambda session, _: session.new())

    def action_tune(self) -> None:
        """Open the settings, once the model is there: before, its profile is not known."""
        if not self.link.settings_known():
            return
        settings = replace(self._settings, profile=self.workspace.profile, changes={})
        screen = TuneScreen(settings, self._ask, self.workspace.preview, self._try_out)
        self.workspace.begin_tuning()
        self.push_screen(screen, self._end_tuning)

    def action_duel(self) -> None:
        """Let two samplers answer the text in the field, or the last question."""
        if reason := self.backend.refusals.get("duel"):
            self.notify(reason, severity="warning")
            return
        typed = self.composer.question
        if not self.link.available() or not (typed.text.strip() or self.workspace.asked_anything()):
            return
        question = typed if typed.text.strip() else self._last_question()
        seed = secrets.randbits(32) if self._settings.seed is None else self._settings.seed
        profile = self.workspace.profile
        screen = DuelScreen(question, self._settings, seed, self.link.duel, profile)
        self.push_screen(screen, self._adopt)

    async def action_save(self) -> None:
        await self.files.ask_where_to_save()

    async def action_open(self) -> None:
        await self.files.ask_what_to_open()

    def action_chats(self) -> None:
        self.files.list_chats()

    def action_models(self) -> None:
        def take(name: str | None) -> None:
            if name is not None:
                self.link.switch(name)

        if self.link.list_models():
            self.push_screen(ModelPicker(), take)

    def action_generation(self) -> None:
        if self.link.settings_known():
            self.push_screen(OptionsDialog(self._settings), self._use_options)

    def action_code(self) -> None:
        """Copy the last block of code of the answer with the cursor, or else of the last one."""
        answer = self.workspace.transcript.answer
        blocks = code_blocks(answer.text if answer else "")
        if not blocks:
            self.notify("this answer has no code block", severity="warning")
            return
        self.copy_to_clipboard(blocks[-1])
        lines = len(blocks[-1].splitlines())
        self.notify(f"copied the last of {len(blocks)} code blocks ({lines} lines)")

    async def action_system_prompt(self) -> None:
        def take(text: str | None) -> None:
            if text is not None:
                self.link.submit(lambda session, _: session.instruct(text or None))

        prompt = self.workspace.conversation.system_prompt or ""
        dialog = LongTextDialog("System prompt: instructions that precede the chat", prompt)
        await self.push_screen(dialog, take)
        dialog.set_focus(dialog.query_one(TextArea))

    def action_fork(self) -> None:
        """Continue from the cursor with the alternative, or branch of a fork, that is selected."""
        transcript, inspector = self.workspace.transcript, self.workspace.inspector
        index, turn, tokens = transcript.cursor, transcript.turn, inspector.tokens
        if index is None:
            return
        if not inspector.chosen:
            self.notify("↑ ↓ choose an alternative first; then f or Enter continues from here")
            return
        self._continue_from(index, tokens, turn)

    def _continue_from(self, index: int, tokens: Sequence[int], turn: int) -> None:
        if turn < len(self._turns) - 1:
            self.notify("the turns that followed stay with the old answer: [ brings them back")
        self.link.interrupt()
        self.link.submit(lambda session, cancel: session.fork(index, tokens, turn, cancel=cancel))

    def action_distribution(self) -> None:
        """Show what the token under the cursor was drawn from."""
        self._read_pointed(lambda session, step, turn: session.distribution(step, turn))

    def action_attention(self) -> None:
        """Show what the token under the cursor looked at."""
        self._read_pointed(lambda session, step, turn: session.attention(step, turn))

    def _read_pointed(self, read: Callable[[ChatSession, int, int], StepReading]) -> None:
        transcript = self.workspace.transcript
        if transcript.cursor is not None:
            turn, step = transcript.turn, transcript.steps[transcript.cursor]
            self.link.read_step(step, lambda session: read(session, step.index, turn))

    def action_fields(self) -> None:
        """Show the fields of a structured answer; an alternative that is taken begins another."""
        turn, fields = self._turn, fields_of(self.workspace.transcript.steps)
        if not fields:
            self.notify("this answer is no complete JSON; chat --schema FILE asks for some")
            return

        def take(taken: TakenAlternative | None) -> None:
            if taken is not None:
                self._continue_from(taken.step, [taken.token], turn)

        self.push_screen(FieldList(fields), take)

    def action_tree(self) -> None:
        """Show what could have been said; a path that is taken begins another answer."""
        if not (self._turns and self._turns[self._turn].answers):
            return
        turn = self._turn

        def expand(path: Path) -> None:
            self.link.read_continuations(path.step, path.tokens, turn)

        def take(path: Path | int | None) -> None:
            if isinstance(path, Path):
                self._continue_from(path.step, path.tokens, turn)
            elif path is not None:
                self._take_answer(path, turn)

        cursor = self.workspace.transcript.cursor
        self.push_screen(TreeScreen(self._turns[turn], cursor, expand), take)

    def _take_answer(self, answer: int, turn: int) -> None:
        self.link.interrupt()
        self.link.submit(lambda session, _: session.select(answer, turn))

    def action_mark(self, right: bool) -> None:
        """Learn from the user whether an answer is right; each is marked once."""
        steps = self.workspace.transcript.steps
        if not steps or self.status.state.busy:
            return
        answer = (self.workspace.conversation.id, self._turn, self._turns[self._turn].selected)
        if answer in self._marked:
            self.notify("this answer is marked already")
            return
        try:
            promise = Promise(self.status.model)
            promise.mark(right, AnswerMetrics.of(steps))
        except EntropixError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self._marked.add(answer)
        count = promise.state.total
        self.notify(f"marked {'right' if right else 'wrong'}; {count} marks (entropix promise)")

    def action_answers(self) -> None:
        if not self._turns or not self._turns[self._turn].answers:
            return
        turn = self._turn

        def take(answer: int | None) -> None:
            if answer is not None:
                self._take_answer(answer, turn)

        self.push_screen(AnswerList(self._turns[turn]), take)

    def action_sibling(self, by: int) -> None:
        """Show another answer to a question, with the turns that followed it."""
        if not self._turns:
            return
        turn = self._turn
        answer = self._turns[turn].selected + by
        if 0 <= answer < len(self._turns[turn].answers):
            self._take_answer(answer, turn)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)
        yield SystemCommand(
            "System prompt", "Instructions for the model", self.action_system_prompt
        )

    @property
    def _turn(self) -> int:
        """The turn with the cursor, or the last one; there may be fewer than are still shown."""
        return min(self.workspace.transcript.turn, len(self._turns) - 1)

    @property
    def _turns(self) -> list[Turn]:
        return self.workspace.conversation.turns

    def _last_question(self) -> UserMessage:
        return UserMessage(self._turns[-1].question, len(self._turns) - 1)

    def action_find(self, text: str = "") -> None:
        self.push_screen(FindBar(self.workspace.conversation, self.workspace.show_place, text))

    def _adopt(self, choice: DuelChoice | None) -> None:
        if choice is None:
            return
        question, seed, steps = choice.question, choice.seed, choice.steps
        self.link.interrupt()
        self.link.submit(
            lambda session, _: session.adopt(question.text, question.turn, seed, steps)
        )
        if question.turn is None:
            self.composer.clear_sent(question.text)

    def _use_options(self, chosen: ChosenOptions | None) -> None:
        if chosen is None:
            return
        self._settings = chosen.settings
        self.link.configure(chosen.settings, self._ask)
        defaults = (chosen.defaults or {}).items()
        self.remember(OPTIONS, {name.replace("_", "-"): value for name, value in defaults})

    def _end_tuning(self, tuned: TunedSettings | None) -> None:
        self.workspace.end_tuning()
        if tuned is not None:
            self._use_tuned(tuned)

    def _try_out(self, tuned: TunedSettings) -> None:
        self._use_tuned(tuned)
        self.action_regenerate()

    def _use_tuned(self, tuned: TunedSettings) -> None:
        self._settings, self._ask = tuned.settings, tuned.ask
        self.status.sampler = tuned.settings.sampler
        self.workspace.use_profile(Profile.load(tuned.settings.profile))
        if tuned.ask and (reason := self.backend.refusals.get("ask")):
            self.notify(reason, severity="warning")
        self.link.configure(tuned.settings, tuned.ask)
        if tuned.save:
            configured = self.configured_options
            usual = Profile.load(tuned.profile or self.link.profile)
            self.remember(OPTIONS, default_options(tuned, usual, configured))

    def _run_command(self, line: str) -> bool:
        """Run a line that begins with a slash; return whether it does.

        Raises:
            SessionError: there is no such command, or its argument is wrong.
        """
        command = parse(line)
        if command is not None:
            name, argument = command
            self._command_actions[name](argument)
        return command is not None

    @property
    def _command_actions(self) -> Mapping[str, Callable[[str], object]]:
        return {
            "/regenerate": lambda _: self.action_regenerate(),
            "/edit": self._edit,
            "/steps": lambda _: self.on_composer_tokens_requested(),
            "/fork": self._fork,
            "/select": self._select,
            "/system": self._instruct,
            "/new": lambda _: self.action_new(),
            "/save": lambda path: (
                self.files.save(path) if path else self.call_later(self.action_save)
            ),
            "/load": lambda path: (
                self.files.open(path) if path else self.call_later(self.action_open)
            ),
            "/chats": lambda _: self.action_chats(),
            "/rename": self.files.rename,
            "/models": lambda _: self.action_models(),
            "/settings": lambda _: self.action_generation(),
            "/find": self.action_find,
            "/code": lambda _: self.action_code(),
            "/help": lambda _: self.action_help(),
            "/quit": lambda _: self.exit(),
        }

    def _edit(self, text: str) -> None:
        if not text:
            self.action_edit()
        elif not self._turns:
            raise SessionError("nothing was asked yet: there is no question to edit")
        else:
            self.link.ask(replace(self._last_question(), text=with_files(text)))

    def _fork(self, argument: str) -> None:
        step, _, token = argument.partition(" ")
        index, chosen = _whole_number(step) - 1, _whole_number(token)
        self.link.submit(lambda session, cancel: session.fork(index, chosen, cancel=cancel))

    def _select(self, argument: str) -> None:
        number = _whole_number(argument)
        self.link.submit(lambda session, _: session.select(number - 1))

    def _instruct(self, text: str) -> None:
        if text:
            self.link.submit(lambda session, _: session.instruct(text))
        else:
            self.call_later(self.action_system_prompt)


def _whole_number(text: str) -> int:
    if not text.strip().isdecimal():
        raise SessionError(f"{text!r} is not a number: write /fork STEP TOKEN, or /select N")
    return int(text)


def code_blocks(text: str) -> list[str]:
    """Return the code between the fences of a Markdown text, also after one that never ends."""
    from markdown_it import MarkdownIt  # with Textual's Markdown widget; slow to import

    return [token.content for token in MarkdownIt().parse(text) if token.type == "fence"]
