"""What several test files do with the chat."""

from textual.widgets import Input, TextArea

from entropix_mlx.chat.session import Context
from tests.tui.conftest import load_tiny, turns, until
from tui.composer.status import State
from tui.screens.dialogs import LongTextDialog, TextDialog


async def generating(pilot, steps: int = 1) -> None:
    """Wait until an answer runs and some of it is on screen."""
    app = pilot.app
    await until(pilot, lambda: app.status.state is State.GENERATING and shown_steps(app) >= steps)


def answers(app) -> int:
    return len(turns(app)[0].answers)


def shown_steps(app) -> int:
    answer = app.workspace.transcript.last_answer
    return len(answer.steps) if answer else 0


def gated(gate):
    """Return a load that waits until a gate is open."""

    def load():
        gate.wait(10)
        return load_tiny()

    return load


async def fill(pilot, text: str) -> None:
    """Answer a text dialog."""
    await until(pilot, lambda: isinstance(pilot.app.screen, TextDialog))
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await pilot.pause()


async def fill_long(pilot, text: str) -> None:
    """Answer a dialog of several lines."""
    await until(pilot, lambda: isinstance(pilot.app.screen, LongTextDialog))
    pilot.app.screen.query_one(TextArea).text = text
    await pilot.press("ctrl+s")
    await pilot.pause()


def prompts_of(monkeypatch) -> list[str]:
    """Return a list that fills with the prompts of all sessions."""
    prompts = []
    original = Context._encode

    def encode(context, conversation):
        prompt = original(context, conversation)
        prompts.append(context._tokenizer.decode(prompt))
        return prompt

    monkeypatch.setattr(Context, "_encode", encode)
    return prompts
