"""Record docs/demo.svg, the animated picture of the README: `make demo`.

The app plays its own recording (`entropix chat --demo`), without a terminal, a model or a network,
and is driven by its keys. Each row of the screen is written once for every content that it has, and
shown while it has it, so that the text stays text and the file small.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from html import escape
from pathlib import Path

from rich.segment import Segment
from textual.pilot import Pilot
from textual.strip import Strip

from entropix_mlx.backends.recorded import RecordedBackend, demo_recording
from entropix_mlx.settings import Settings
from entropix_mlx.tui.app import ChatApp
from entropix_mlx.tui.composer.status import State

PICTURE = Path(__file__).with_name("demo.svg")
QUESTION = "What should I name my cat?"
COLUMNS, ROWS = 100, 32
WIDTH, HEIGHT, SIZE = 8.8, 17, 14.6  # of a character; GitHub shows pictures 880 pixels wide
BACKGROUND = "#121212"
PERIOD = 0.12
"""Seconds between two frames."""
NO_BREAK = "\N{NO-BREAK SPACE}"  # stays where an ordinary space would be dropped
HIDDEN = ' display="none"'
Frame = tuple[float, list[str]]
"""When it was shown, and its rows in SVG."""


async def scenario(pilot: Pilot[None]) -> None:
    """Ask, watch a fork, look at it, and take another branch."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    for character in QUESTION:
        await pilot.press("space" if character == " " else character)
        await pilot.pause(0.06)
    await pilot.press("enter")
    await until(lambda: bool(app.workspace.conversation.turns))
    await until(lambda: app.status.state is State.READY)
    await pilot.pause(1.5)
    # 1. Back to the fork, token by token: the gauges follow.
    answer = app.workspace.conversation.turns[0].answer
    fork = next(step for step in answer.steps if step.fork)
    app.workspace.transcript.focus()
    app.workspace.transcript.point(fork.index + 8)
    for _ in range(8):
        await pilot.press("left")
        await pilot.pause(0.35)
    await pilot.pause(1.5)
    # 2. Down to a branch that lost, and on with it.
    assert fork.fork is not None
    lost = next(b for n, b in enumerate(fork.fork.branches) if n != fork.fork.winner)
    while app.workspace.inspector.tokens != lost.tokens:
        await pilot.press("down")
        await pilot.pause(0.6)
    await pilot.press("f")
    await until(lambda: len(app.workspace.conversation.turns[0].answers) == 2)
    await until(lambda: app.status.state is State.READY)
    await pilot.pause(3)


async def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Let the app go on until something holds."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.02)


async def record() -> list[Frame]:
    """Run the scenario and return what the screen showed meanwhile."""
    app, frames = ChatApp(RecordedBackend(Settings(), demo_recording())), list[Frame]()
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        await until(lambda: app.status.state is State.READY)
        playing, began = asyncio.create_task(scenario(pilot)), time.monotonic()
        while not playing.done():
            rows = [row(strip) for strip in app.screen._compositor.render_strips()]
            frames.append((time.monotonic() - began, rows))
            await asyncio.sleep(PERIOD)
        await playing
    return frames


def row(strip: Strip) -> str:
    """Return a row of the screen in SVG, at the top."""
    parts, column = [], 0
    for segment in Segment.simplify(strip):
        wide, style = segment.cell_length, segment.style
        x, length = f"{column * WIDTH:g}", f"{wide * WIDTH:g}"
        colour, behind = (
            own.get_truecolor().hex if own else default
            for own, default in (
                (style and style.color, "#e0e0e0"),
                (style and style.bgcolor, BACKGROUND),
            )
        )
        if style and style.reverse:
            colour, behind = behind, colour
        if behind != BACKGROUND:
            parts.append(f'<path fill="{behind}" d="M{x} 0h{length}v{HEIGHT}h-{length}z"/>')
        if segment.text.strip():
            weight = ' font-weight="700"' if style and style.bold else ""
            line = ' text-decoration="underline"' if style and style.underline else ""
            parts.append(
                f'<text x="{x}" y="13.5" textLength="{length}" fill="{colour}"{weight}{line}>'
                f"{escape(segment.text, quote=False).replace(' ', NO_BREAK)}</text>"
            )
        column += wide
    return "".join(parts)


def animation(frames: list[Frame]) -> str:
    """Return the frames as one SVG; what shows no animation shows the last frame."""
    end = frames[-1][0] + PERIOD
    times = [began for began, _ in frames] + [end]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH:g} {ROWS * HEIGHT}"'
        ' font-family="ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace"'
        f' font-size="{SIZE}">',
        f'<rect width="100%" height="100%" fill="{BACKGROUND}"><animate id="a" attributeName="x"'
        f' from="0" to="0" begin="0s;a.end" dur="{end:.2f}s"/></rect>',
    ]
    for number in range(ROWS):
        shown: dict[str, list[tuple[float, float]]] = {}
        for (_, rows), began, ended in zip(frames, times, times[1:], strict=False):
            spans = shown.setdefault(rows[number], [])
            if spans and spans[-1][1] == began:
                spans[-1] = (spans[-1][0], ended)
            else:
                spans.append((began, ended))
        lines.append(f'<g transform="translate(0 {number * HEIGHT})">')
        for content, spans in shown.items():
            last = content == frames[-1][1][number]
            lines.append(one_content(content, spans, last) if len(shown) > 1 else content)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>\n"])


def one_content(content: str, spans: list[tuple[float, float]], last: bool) -> str:
    """Return a row's content with the times at which it is shown."""
    if not content:
        return ""
    hidden = '<set attributeName="display" to="none" begin="a.begin"/>' if last else ""
    sets = "".join(
        f'<set attributeName="display" to="inline" begin="a.begin+{began:.2f}s"'
        f' dur="{ended - began:.2f}s"/>'
        for began, ended in spans
    )
    return f"<g{'' if last else HIDDEN}>{hidden}{sets}{content}</g>"


if __name__ == "__main__":
    PICTURE.write_text(animation(asyncio.run(record())), "utf-8")
