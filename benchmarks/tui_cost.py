"""Measure what the terminal UI costs: tokens/s, processor time, and how soon a key is drawn.

    python benchmarks/tui_cost.py [--model M] [--transcript 2000] [--tokens 60] [--pairs 5]

A conversation with a long answer is made up, and that answer is continued from its end: in turns
without being shown, by the model's thread alone, and on the screen. The app runs on a
pseudo-terminal, with its real driver. While another answer runs, letters are typed into the field,
and a key's time ends when its letter comes out of the terminal.

A machine with other work makes tokens/s jump about. The processor's time does not: that of the
app's own thread, divided by that of all threads, is what the app would take from the model if both
had to share one core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from threading import Event
from typing import IO

SIZE = (40, 120)
"""Lines and columns of the terminal."""
LETTERS = "λμξπρστφψω"
"""Typed, since no answer in English contains them."""
KEY_SECONDS = 0.13
"""Between two keys: somebody who types fast."""
BEGUN = 5
"""Tokens after which an answer is measured: by then the prompt is read."""
PARAGRAPH = "The lighthouse keeper climbed the stairs, counted the ships, and wrote them down.\n"


@dataclass
class Run:
    """What an answer took."""

    rate: float
    """Tokens per second."""
    process: float
    """Seconds of processor time for a token, of all threads."""
    thread: float
    """Those of the thread that measured: the app's own where the answer is shown."""


def arguments_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--transcript", type=int, default=2000, help="tokens")
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=5)
    return parser.parse_args(arguments)


class Clock:
    """The time since it was made, on the thread that made it."""

    def __init__(self) -> None:
        self._began = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), time.thread_time()

    def read(self, tokens: int) -> Run:
        wall, process, thread = (a - b for a, b in zip(self._now(), self._began, strict=True))
        return Run(tokens / wall, process / tokens, thread / tokens)


class Measured:
    """The model, and a long conversation to go on with."""

    def __init__(self, given: argparse.Namespace) -> None:
        from entropix_mlx import Profile, Settings

        plain = {"think": {"max_insertions": 0}, "branch": {"max_branches": 0}}
        self.settings = Settings(
            max_tokens=given.tokens,
            seed=1,
            profile=Profile.load().replace(plain),
            sampler="min_p",
            top_logprobs=8,
        )
        self._model = given.model
        self.last = given.transcript - 1

    def load(self):
        """Return the model and its tokenizer, and make the conversation."""
        import entropix_mlx
        from entropix_mlx.chat.conversation import Conversation, Reply, Turn

        loaded = entropix_mlx.load(self._model)
        tokenizer = loaded[1]
        tokenizer._eos_token_ids = set()
        sample = next(entropix_mlx.Session(*loaded, self.settings).send("Hello"))
        tokens = tokenizer.encode(PARAGRAPH * (self.last + 1))[: self.last + 1]
        steps = [
            replace(sample, index=i, token=t, text=tokenizer.decode([t]), finish_reason=None)
            for i, t in enumerate(tokens)
        ]
        self.token = tokenizer.encode("The")[0]
        self.make = lambda: Conversation(turns=[Turn("What did he do?", [Reply(1, list(steps))])])
        return loaded

    def begin(self, session, cancel: Event) -> Iterator[object]:
        """Continue the long answer; what is cached of it is not computed again."""
        session.conversation = self.make()
        return session.fork(self.last, self.token, cancel=cancel)

    def alone(self, session, cancel: Event) -> None:
        """Continue it, and show nothing: a job for the model's thread, whose time it measures."""
        for count, _ in enumerate(self.begin(session, cancel), 1):
            if count == BEGUN:
                clock = Clock()
        self.ran = clock.read(count - BEGUN)


def on_the_terminal(given: argparse.Namespace, out: IO[str]) -> None:
    """Run the app, and tell the process at the other end of the terminal what was measured."""
    from entropix_mlx.backends.local import LocalBackend
    from tui.app import ChatApp
    from tui.composer.status import State

    measured = Measured(given)

    def tell(**what: object) -> None:
        print(json.dumps(what), file=out, flush=True)

    class App(ChatApp):
        def on_ready(self) -> None:
            self.run_worker(self.measure())

        async def measure(self) -> None:
            await self.until(lambda: self.status.state is not State.LOADING)
            await self.alone()  # reads the conversation
            for _ in range(given.pairs):
                alone = await self.alone()
                tell(alone=asdict(alone), shown=asdict(await self.shown()))
                await self.shown(typing=True)
            self.exit()

        async def alone(self) -> Run:
            self.link.submit(measured.alone)
            await self.until(lambda: not self.status.state.busy)
            return measured.ran

        async def shown(self, typing: bool = False) -> Run:
            before = self.workspace.transcript.last_answer
            self.link.submit(measured.begin)
            await self.until(
                lambda: (
                    self.workspace.transcript.last_answer is not before and self.count() >= BEGUN
                )
            )
            clock, first = Clock(), self.count()
            if typing:
                tell(typing=True)
            await self.until(lambda: not self.status.state.busy)
            run = clock.read(self.count() - first)
            if typing:
                tell(typing=False)
            return run

        def count(self) -> int:
            """Return how many new tokens are on the screen."""
            answer = self.workspace.transcript.last_answer
            return len(answer.steps) - measured.last if answer else 0

        async def until(self, condition) -> None:
            while not condition():
                await asyncio.sleep(0.02)

    App(LocalBackend("model", measured.load, measured.settings)).run()


class Typist:
    """Sits at the other end of the terminal: reads what is drawn, and types when told to."""

    def __init__(self, terminal: int) -> None:
        self.keys: list[float] = []
        self._terminal = terminal
        self._typing = False
        self._typed = 0  # keys
        self._waiting: tuple[bytes, float] | None = None  # a letter, and when it was typed
        self._due = 0.0
        self._seen = b""
        self.drawn = b""
        """The last of what came out of the terminal: where the app fails, its reason."""

    def type(self, typing: bool) -> None:
        self._typing, self._waiting, self._due = typing, None, time.perf_counter() + KEY_SECONDS

    def read(self) -> None:
        """Read what was drawn."""
        with contextlib.suppress(OSError):  # the other end was closed
            drawn = os.read(self._terminal, 1 << 16)
            self._look(drawn)

    def _look(self, drawn: bytes) -> None:
        self.drawn = (self.drawn + drawn)[-4000:]
        if self._waiting is not None:
            self._seen += drawn
            letter, began = self._waiting
            if letter in self._seen:
                self.keys.append(time.perf_counter() - began)
                self._waiting = None

    def press(self) -> None:
        """Type the next letter, if it is time."""
        now = time.perf_counter()
        if self._typing and self._waiting is None and now >= self._due:
            letter = LETTERS[self._typed % len(LETTERS)].encode()
            self._typed += 1
            self._seen, self._waiting, self._due = b"", (letter, now), now + KEY_SECONDS
            os.write(self._terminal, letter)


def watch(typist: Typist, terminal: int, told: int) -> list[tuple[Run, Run]]:
    """Let somebody type until the app ends; return the pairs that were measured."""
    pairs, open_, rest = [], True, b""
    while open_:
        ready, _, _ = select.select([terminal, told], [], [], 0.005)
        if terminal in ready:
            typist.read()
        if told in ready:
            heard = os.read(told, 1 << 16)
            open_ = bool(heard)
            *lines, rest = (rest + heard).split(b"\n")
            for event in map(json.loads, lines):
                if "typing" in event:
                    typist.type(event["typing"])
                else:
                    pairs.append((Run(**event["alone"]), Run(**event["shown"])))
                    print(report(*pairs[-1]), flush=True)
        typist.press()
    return pairs


def report(alone: Run, shown: Run) -> str:
    return (
        f"{alone.rate:6.2f} tokens/s alone, {shown.rate:6.2f} in the app; processor ms a token:"
        f" {alone.process * 1000:.1f} alone, {shown.process * 1000:.1f} in the app,"
        f" {shown.thread * 1000:.2f} of them in its own thread"
    )


def main() -> int:
    given = arguments_of()
    told, tell = os.pipe()
    child, terminal = pty.fork()
    if not child:
        os.environ.setdefault("TERM", "xterm-256color")
        with os.fdopen(tell, "w") as out:
            on_the_terminal(given, out)
        return 0
    os.close(tell)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
    typist = Typist(terminal)
    pairs = watch(typist, terminal, told)
    if os.waitpid(child, 0)[1] or not pairs or len(typist.keys) < 2:
        print(f"the app failed:\n{typist.drawn.decode(errors='replace')}", file=sys.stderr)
        return 1
    keys = typist.keys
    speed = statistics.median(shown.rate / alone.rate for alone, shown in pairs)
    process = statistics.median(alone.process / shown.process for alone, shown in pairs)
    own = statistics.median(1 - shown.thread / shown.process for _, shown in pairs)
    print(f"tokens/s in the app ÷ alone: {speed:.3f} (median of {len(pairs)} pairs)")
    print(f"processor time of a token alone ÷ in the app: {process:.3f}")
    print(f"the model's share of the app's processor time: {own:.3f}")
    slow = statistics.quantiles(keys, n=20)[-1]
    print(
        f"{len(keys)} keys typed during answers: median {statistics.median(keys) * 1000:.0f} ms,"
        f" 95th percentile {slow * 1000:.0f} ms, longest {max(keys) * 1000:.0f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
