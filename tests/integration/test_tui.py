"""The chat with the demo model on its thread."""

import pytest

import entropix_mlx
from entropix_mlx import Settings
from entropix_mlx.backends.local import LocalBackend
from tests.tui.conftest import ask, drive, ready, turns, until
from tui.app import ChatApp

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("demo_file")]


def test_a_conversation_with_a_stop_in_mid_answer():
    settings = Settings(max_tokens=12, sampler="greedy", top_logprobs=4)
    app = ChatApp(LocalBackend("demo", entropix_mlx.load, settings))

    async def scenario(pilot):
        await until(pilot, lambda: ready(app), seconds=120)
        await ask(pilot, "Name the capital of France.")
        assert "Paris" in app.workspace.transcript.last_answer.text
        await pilot.press("a", "n", "d", "enter")
        await until(pilot, lambda: len(turns(app)) == 2)
        await until(pilot, lambda: len(app.workspace.transcript.last_answer.steps) >= 2)
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        assert 2 <= len(app.workspace.transcript.last_answer.steps) <= 12
        best = app.workspace.transcript.last_answer.steps[0].top_logprobs
        assert len(best) == 4

    drive(app, scenario)
