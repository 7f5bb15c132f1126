"""Measure what the terminal UI costs: tokens/s, and the response to a key during an answer.

    python benchmarks/tui_cost.py [--model M] [--transcript 2000] [--tokens 60] [--repeats 3]

A conversation with a long answer is made up, and that answer is continued from its end, by the
library alone and in the app, in turns. The app runs in Textual's test driver, which draws
everything but shows it nowhere. The time of a key ends when the app has drawn the result.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from threading import Event

import entropix_mlx
from entropix_mlx import Profile, Session, Settings, Step
from entropix_mlx.chat.conversation import Answer, Conversation, Turn
from entropix_mlx.serving.worker import Chat
from tui.app import ChatApp

PARAGRAPH = "The lighthouse keeper climbed the stairs, counted the ships, and wrote them down.\n"
PROFILE = Profile.load().replace({"think": {"max_insertions": 0}, "branch": {"max_branches": 0}})
KEYS = 50


def long_conversation(loaded: tuple, settings: Settings, length: int) -> Conversation:
    """Return a conversation whose last answer has so many tokens, measured as one real step is."""
    model, tokenizer = loaded
    sample: Step = next(Session(model, tokenizer, settings).send("Hello"))
    tokens = tokenizer.encode(PARAGRAPH * length)[:length]
    steps = [
        replace(sample, index=i, token=token, text=tokenizer.decode([token]), finish_reason=None)
        for i, token in enumerate(tokens)
    ]
    return Conversation(turns=[Turn("What did he do?", [Answer(1, steps)])])


def rate(times: list[float]) -> float:
    return (len(times) - 1) / (times[-1] - times[0])


def by_the_library(
    loaded: tuple, settings: Settings, conversation: Conversation, token: int
) -> float:
    session = Session(*loaded, settings)
    session.conversation = conversation
    last = len(conversation.turns[0].answers[0].steps) - 1
    return rate([step.time for step in session.fork(last, token)])


async def in_the_app(
    loaded: tuple, settings: Settings, conversation: Conversation, token: int, keys: int
) -> tuple[float, list[float]]:
    app = ChatApp(Chat("model", lambda: loaded, settings))
    last = len(conversation.turns[0].answers[0].steps) - 1
    pressed: list[float] = []

    def begin(session: Session, cancel: Event) -> Iterator[Step]:
        session.conversation = conversation
        return session.fork(last, token, cancel=cancel)

    async with app.run_test(size=(120, 40)) as pilot:
        app.link.submit(begin)
        while (
            not app.workspace.transcript.last_answer
            or len(app.workspace.transcript.last_answer.steps) <= last + 1
        ):
            await pilot.pause(0.05)
        for _ in range(keys):
            began = time.perf_counter()
            await pilot.press("x")
            pressed.append(time.perf_counter() - began)
            await asyncio.sleep(0.03)
        while app.status.state.busy:
            await asyncio.sleep(0.05)
        steps = app.workspace.last_steps[last:]
    return rate([step.time for step in steps]), pressed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--transcript", type=int, default=2000, help="tokens")
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    settings = Settings(
        max_tokens=arguments.tokens, seed=1, profile=PROFILE, sampler="min_p", top_logprobs=8
    )
    loaded = entropix_mlx.load(arguments.model)
    loaded[1]._eos_token_ids = set()
    shares, medians = [], []
    for _ in range(arguments.repeats):
        make = lambda: long_conversation(loaded, settings, arguments.transcript)  # noqa: E731
        token = loaded[1].encode("The")[0]
        alone = by_the_library(loaded, settings, make(), token)
        shown, _ = asyncio.run(in_the_app(loaded, settings, make(), token, 0))
        _, pressed = asyncio.run(in_the_app(loaded, settings, make(), token, KEYS))
        shares.append(shown / alone)
        medians.append(statistics.median(pressed))
        print(f"{alone:6.2f} tokens/s alone, {shown:6.2f} in the app;", end=" ")
        print(f"a key in {statistics.median(pressed) * 1000:.0f} ms (longest {max(pressed):.3f} s)")
    print(f"the app reaches {statistics.median(shares):.3f} of the library's tokens/s")
    print(f"median answer to a key: {statistics.median(medians) * 1000:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
