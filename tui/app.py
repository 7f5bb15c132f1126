"""`entropix chat`: what the keys do."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import TextArea

from entropix_mlx.backends.base import Backend
from entropix_mlx.backends.events import AnswerEnded, ConversationChanged, UserMessage
from entropix_mlx.chat.attachments import with_files
from entropix_mlx.chat.conversation import Conversation, Turn
from entropix_mlx.chat.slash import COMMANDS
from entropix_mlx.chat.store import Store
from entropix_mlx.configuration import OPTIONS, Configuration
from entropix_mlx.errors import SessionError
from entropix_mlx.profiles.profile import Profile

from .autosave import KEEP_SECONDS, Keeper
from .backend_link import ModelLink
from .base import WorkspaceApp
from .chat_keys import CHAT_BINDINGS, rests, useful_keys
from .code_blocks import copy_last_block
from .commands import run_command
from .composer.composer import Composer
from .defaults import kept_settings
from .file_dialogs import Filing
from .messages import ModelReported
from .screens.dialogs import LongTextDialog
from .screens.duel import DuelScreen, Kept
from .screens.find import FindBar
from .screens.models import ModelPicker
from .screens.options import Chosen, OptionsDialog
from .screens.tuning.tune import Tuned, TuneScreen
from .terminal import end_with_terminal
from .transcript.transcript import Transcript
from .transcript.welcome import Welcome
from .workspace import Workspace


class ChatApp(WorkspaceApp):
    """A chat with live gauges."""

    BINDINGS: ClassVar[list[BindingType]] = CHAT_BINDINGS
    typed_commands = COMMANDS

    def __init__(
        self,
        backend: Backend,
        store: Store | None = None,
        configuration: Configuration | None = None,
    ) -> None:
        """Prepare a chat; the model is loaded when the app is on screen.

        Args:
            backend: answers.
            store: where chats are kept; None keeps none.
            configuration: theme and keys; what the user changes is written there.

        Raises:
            ConfigurationError: there is no such theme.
        """
        self.composer = Composer(id="composer")
        # Which profile fits the model is not known before the model is loaded.
        conversation = Conversation(backend.system_prompt)
        super().__init__(
            Workspace(conversation, Profile.load(), self.composer.hints, self.composer),
            configuration,
        )
        self.workspace.transcript.welcome = Welcome()
        self.workspace.transcript.field = self.composer
        self.status = self.workspace.status
        self.status.sampler, self.status.model = backend.settings.sampler, backend.model
        self._settings = backend.settings
        self._ask = backend.ask
        self.backend = backend
        self.link = ModelLink(self, backend, self.workspace, self.composer)
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
        useful["chat.duel"] &= "duel" not in self.backend.refusals
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
        if reason := self.backend.refusals.get("duel"):
            self.notify(reason, severity="warning")
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

    def _last_question(self) -> UserMessage:
        """Return the last question, to be asked in its own place."""
        return UserMessage(self._turns[-1].question, len(self._turns) - 1)

    def _take(self, tuned: Tuned | None) -> None:
        """Use the settings that the user settled on."""
        if tuned is None:
            return
        self._settings, self._ask = tuned.settings, tuned.ask
        self.status.sampler = tuned.settings.sampler
        self.workspace.use_profile(Profile.load(tuned.settings.profile))
        if tuned.ask and (reason := self.backend.refusals.get("ask")):
            self.notify(reason, severity="warning")
        self.link.configure(tuned.settings, tuned.ask)
        if tuned.keep:
            configured = self.configured_options
            usual = Profile.load(tuned.profile or self.link.profile)
            self.remember(OPTIONS, kept_settings(tuned, usual, configured))
        if tuned.regenerate:
            self.action_regenerate()
