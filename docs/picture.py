"""Draw docs/screenshot.svg, the README's picture, from a recorded answer: `python -m docs.picture`.

The cursor is on a place where the model was unsure and compared branches: the picture shows what
else could stand there, and why this branch was taken. A test compares it with what the app shows.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from entropix_mlx.traces.trace import read_trace
from entropix_mlx.tui.viewer import ViewerApp

PICTURE = Path(__file__).with_name("screenshot.svg")
RECORDED = Path(__file__).parents[1] / "tests" / "data" / "readme.jsonl"
"""An answer of the demo model as `entropix generate --trace` wrote it, without its times."""
SIZE = 110, 28


async def draw() -> str:
    """Return the picture; the same for the same screen."""
    trace = read_trace(RECORDED)
    fork = max(step.index for step in trace.steps if step.fork)
    app = ViewerApp.of_trace(trace)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        await pilot.press("home", *["right"] * fork)
        await pilot.pause()
        return re.sub(r"terminal-\d+", "terminal", app.export_screenshot())


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(draw()), encoding="utf-8")
