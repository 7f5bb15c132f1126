"""The chat: what the keys do, and what is shown of what the model's thread tells."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.errors import EntropixError
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.settings import Settings
from entropix_mlx.traces.trace import Header, TraceFolder

from . import messages
from .messages import Question
from .saving import expanded, free_name, save
from .screens.dialogs import AskDialog, TextDialog
from .screens.duel import DuelScreen
from .screens.tune import Tuned, TuneScreen
from .viewer import ViewerApp
from .widgets.composer import Composer
from .widgets.gauges import Gauges
from .widgets.transcript import Transcript
from .worker import Action, Load, ModelThread

LOADING, READY, RUNNING, FAILED = "loading the model …", "", "generating", "no model"
NO_MODEL = {LOADING: "the model is still loading", FAILED: "there is no model: Ctrl+Q quits"}


@dataclass(frozen=True)
class Chat:
    """What a chat begins with."""

    model: str
    """Its name, for people."""
    load: Load
    settings: Settings
    system_prompt: str | None = None
    ask: bool = False
    traces: TraceFolder | None = None
    """Where each answer is recorded."""


class ChatApp(ViewerApp):
    """A chat with live gauges."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "regenerate", "Again", id="chat.regenerate"),
        Binding("ctrl+g", "edit", "Edit", id="chat.edit"),
        Binding("f3", "tune", "Settings", id="chat.tune"),
        Binding("f4", "duel", "Duel", id="chat.duel"),
        Binding("ctrl+n", "new", "New", show=False, id="chat.new"),
        Binding("ctrl+s", "save", "Save", show=False, id="chat.save"),
        Binding("ctrl+o", "open", "Open", show=False, id="chat.open"),
    ]

    def __init__(self, chat: Chat) -> None:
        """Prepare a chat; the model is loaded when the app is on screen."""
        # Until the model is there, nobody knows which profile fits it.
        super().__init__(Conversation(chat.system_prompt), Profile.load(), [])
        self._model_name = chat.model
        self._settings = chat.settings
        self._ask = chat.ask
        self._context_length = 0
        self._context_used = 0
        self._editing: int | None = None  # the turn whose question is in the field
        self._waiting = False  # a question was asked before the model was there
        self.activity = LOADING
        self._worker = ModelThread(
            chat.load,
            self.post_message,
            chat.settings,
            chat.system_prompt,
            chat.ask,
            chat.traces,
        )

    def compose_bottom(self) -> Iterable[Widget]:
        """Return the field for questions."""
        yield Composer(id="composer")

    def begin(self) -> None:
        """Begin to load."""
        self.query_one("#composer").focus()
        self._label()
        self._worker.start()

    async def on_unmount(self) -> None:
        """Let the model's thread end, and wait for it: it may still have a word to say here."""
        self._worker.stop()
        await asyncio.to_thread(self._worker.join)

    # What the model's thread tells.

    def on_loaded(self, event: messages.Loaded) -> None:
        """The chat can begin."""
        self._context_length = event.context_length
        self._use_profile(event.profile)
        self._become(RUNNING if self._waiting else READY)

    def on_load_failed(self, event: messages.LoadFailed) -> None:
        """Say what is wrong, and the way out."""
        self._become(FAILED)
        self.notify(
            f"{event.reason}\n\nCtrl+Q quits; --model names another model.",
            title="the model cannot be loaded",
            severity="error",
            timeout=3600,
            markup=False,
        )

    async def on_conversation_changed(self, event: messages.ConversationChanged) -> None:
        """Show a new turn, another answer, or the end of one."""
        self._context_used = event.context_used
        if _questions(event.conversation) != _questions(self.conversation):
            self._editing = None  # that turn may be another one now
        await self.show_conversation(event.conversation)
        self._label()

    def on_steps_arrived(self, event: messages.StepsArrived) -> None:
        """Show what was generated."""
        if self.activity != RUNNING:
            self._become(RUNNING)
        self._context_used += len(event.steps)
        self._describe()
        self.show_steps(event.steps)

    def on_prefilled(self, event: messages.Prefilled) -> None:
        """Show how much of the prompt is computed."""
        self.activity = f"reading the prompt {event.done}/{event.total}"
        self._context_used = max(self._context_used, event.done)
        self._label()

    def on_answer_ended(self, event: messages.AnswerEnded) -> None:
        """Be ready for the next."""
        self._become(READY)
        if event.error:
            self.notify(event.error, severity="error", timeout=15, markup=False)
        if event.refused and self.showing and not self.query_one(Composer).text.strip():
            self._write(event.refused)

    def on_turns_dropped(self, event: messages.TurnsDropped) -> None:
        """Say that the model forgets."""
        self.notify(
            f"the context is full: the model no longer sees the first {event.count} turns",
            severity="warning",
        )

    def on_asked(self, event: messages.Asked) -> None:
        """Ask the user for a way at a fork."""

        def reply(choice: int | None) -> None:
            event.reply(event.branch.winner if choice is None else choice)

        self.push_screen(AskDialog(event.branch), reply)

    def on_duel_steps_arrived(self, event: messages.DuelStepsArrived) -> None:
        """Pass them to the duel, if it is still there."""
        if isinstance(self.screen, DuelScreen):
            self.screen.receive(event.duel, event.side, event.steps, event.ended)

    # What the user wants.

    def on_composer_sent(self, event: Composer.Sent) -> None:
        """Send a question, or an edited one in its old place."""
        if self._claim():
            self._worker.ask(Question(event.text, self._editing))
            self._editing = None
            self.query_one(Composer).take(event.text)

    def action_help_quit(self) -> None:
        """Stop the answer where Ctrl+C is pressed; else say how to quit."""
        if self._busy:
            self._worker.cancel()
        else:
            super().action_help_quit()

    def action_escape(self) -> None:
        """Stop the answer; else leave the tokens, or an edit, for the next question."""
        if self._busy:
            self._worker.cancel()
            return
        self._editing = None
        self.transcript.point(None)
        self.query_one(Composer).focus()

    def action_regenerate(self) -> None:
        """Answer the last question once more, instead of a running answer."""
        if self._asked():
            self._interrupt()
            self._generate(lambda session: session.regenerate())

    def action_edit(self) -> None:
        """Put the last question into the field, to be sent in its place."""
        if not self._asked():
            return
        self._write(self._last_question())
        self.query_one(Composer).focus()
        self.notify("Enter asks this in the place of the last question, Escape leaves it")

    def action_new(self) -> None:
        """Begin another conversation."""
        self._generate(lambda session: session.new())

    def action_tune(self) -> None:
        """Open the settings; which profile they begin at is known when the model is."""
        if self.activity in NO_MODEL:
            self.notify(NO_MODEL[self.activity], severity="warning")
            return
        settings = replace(self._settings, profile=self.profile, changes={})
        self.push_screen(TuneScreen(settings, self._ask, self._preview), self._take)

    def action_duel(self) -> None:
        """Let two samplers answer what is in the field, or the last question."""
        typed = self.query_one(Composer).text
        if not self._available() or not (typed.strip() or self._asked()):
            return
        question = Question(typed, self._editing) if typed.strip() else self._last_question()
        seed = secrets.randbits(32) if self._settings.seed is None else self._settings.seed
        self.push_screen(
            DuelScreen(question, self._settings, seed, self._fight), lambda _: self._worker.cancel()
        )

    def action_save(self) -> None:
        """Ask where to save."""
        if self._asked():
            title = "Save as (.json: chat, .md: text, .jsonl: trace)"
            self.push_screen(TextDialog(title, free_name()), self._save)

    def action_open(self) -> None:
        """Ask what to open."""
        self.push_screen(TextDialog("Open a saved chat", "chat.json"), self._open)

    def action_system_prompt(self) -> None:
        """Ask for instructions that precede the conversation."""

        def take(text: str | None) -> None:
            if text is not None:
                self._generate(lambda session: session.instruct(text or None))

        self.push_screen(TextDialog("System prompt", self.conversation.system_prompt or ""), take)

    def fork(self) -> None:
        """Go on from the cursor with the alternative that is selected."""
        index, alternative = self.transcript.cursor, self.inspector.alternative
        if index is None or alternative is None:
            return
        if alternative.token == self._last_steps()[index].token:
            self.notify("this token stands there already: ↑ ↓ choose another")
            return
        self._interrupt()
        self._generate(lambda session: session.fork(index, alternative.token))

    def on_transcript_sibling_wanted(self, event: Transcript.SiblingWanted) -> None:
        """Show another answer to the last question."""
        if not self.conversation.turns:
            return
        turn = self.conversation.turns[-1]
        wanted = turn.selected + event.by
        if 0 <= wanted < len(turn.answers):
            self._generate(lambda session: session.select(wanted))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the palette's commands."""
        yield from super().get_system_commands(screen)
        commands = (
            ("New chat", "Forget this one", self.action_new),
            ("Answer again", "Another answer to the last question", self.action_regenerate),
            ("Edit question", "Ask the last one differently", self.action_edit),
            ("Settings", "Sampler, thresholds, seed", self.action_tune),
            ("Duel", "Two samplers side by side", self.action_duel),
            ("Save", "Chat, Markdown or trace", self.action_save),
            ("Open", "A saved chat", self.action_open),
            ("System prompt", "Instructions for the model", self.action_system_prompt),
        )
        for title, help_text, action in commands:
            yield SystemCommand(title, help_text, action)

    # How it is done.

    @property
    def _busy(self) -> bool:
        return self.activity not in (READY, LOADING, FAILED)

    def _become(self, activity: str) -> None:
        self.activity = activity
        self._label()

    def _label(self) -> None:
        """Update the status line."""
        self._describe()
        self.show_status()

    def _describe(self) -> None:
        """Say what the status line is to show next."""
        turns = self.conversation.turns
        seeds = [turn.answer.seed for turn in turns if turn.answers]
        self.labels = [f"seed {seeds[-1]}"] if seeds else []
        self.labels += [self._settings.sampler, self.profile.name, self._model_name]
        self.context = f"context {self._context_used}/{self._context_length or '?'}"

    def _available(self) -> bool:
        """Tell whether the model is free, and say so if it is not."""
        if self.activity == READY:
            return True
        told = NO_MODEL.get(self.activity, "an answer is being generated: Escape stops it")
        self.notify(told, severity="warning")
        return False

    def _asked(self) -> bool:
        if not self.conversation.turns:
            self.notify("nothing was asked yet", severity="warning")
        return bool(self.conversation.turns)

    def _last_question(self) -> Question:
        """Return the last question, to be asked in its own place."""
        turns = self.conversation.turns
        return Question(turns[-1].question, len(turns) - 1)

    def _write(self, question: Question) -> None:
        """Put a question into the field."""
        self._editing = question.turn
        composer = self.query_one(Composer)
        composer.text = question.text
        composer.move_cursor(composer.document.end)

    def _generate(self, action: Action) -> None:
        """Hand an action to the model's thread, if it can take one now."""
        if self._claim():
            self._worker.submit(action)

    def _claim(self) -> bool:
        """Take the model's thread for an action; if it is not free, say so and return False."""
        if self.activity == LOADING and not self._waiting:
            self._waiting = True
            self.notify("this is done as soon as the model is loaded")
        elif self._available():
            self.transcript.point(None)
            self._become(RUNNING)
        else:
            return False
        return True

    def _interrupt(self) -> None:
        """Stop a running answer; what is wanted instead comes after it on the model's thread."""
        if self._busy:
            self._worker.cancel()
            self._become(READY)

    def _preview(self, profile: Profile | None) -> tuple[int, int]:
        answer = self.transcript.last_answer
        if answer is None:
            return 0, 0
        return answer.reclassify(profile), len(answer.steps)

    def _take(self, tuned: Tuned | None) -> None:
        if tuned is None:
            return
        self._settings, self._ask = tuned.settings, tuned.ask
        self._use_profile(Profile.load(tuned.settings.profile))
        self._worker.configure(tuned.settings, tuned.ask)
        self._label()
        if tuned.regenerate:
            self.action_regenerate()

    def _use_profile(self, profile: Profile) -> None:
        self.profile = profile
        if self.showing:
            self.query_one("#gauges", Gauges).show(self._last_steps(), profile)

    def _fight(self, number: int, question: Question, sides: tuple[Settings, Settings]) -> None:
        self._worker.cancel()  # a duel that is running already
        self._become(RUNNING)
        self._worker.duel(number, question, sides)

    def _save(self, path: str | None) -> None:
        if not path:
            return
        try:
            save(self.conversation, expanded(path), self._header())
        except (EntropixError, OSError) as error:
            self.notify(f"cannot save {path}: {error}", severity="error", markup=False)
        else:
            self.notify(f"saved {path}", markup=False)

    def _header(self) -> Header:
        """Return what a trace of the last answer begins with."""
        answer = self.conversation.turns[-1].answer
        return Header(
            model=self._model_name,
            sampler=self._settings.sampler,
            profile=self.profile,
            seed=answer.seed,
            messages=self.conversation.asked,
            context_length=self._context_length,
            prompt_tokens=max(0, self._context_used - len(answer.steps) + 1),
        )

    def _open(self, path: str | None) -> None:
        if path:
            self._generate(lambda session: session.load(expanded(path)))


def _questions(conversation: Conversation) -> list[str]:
    return [turn.question for turn in conversation.turns]
