"""Draw docs/screenshot.svg, the README's picture, from a recorded answer: `python -m docs.picture`.

The cursor is on a fork: what else could stand there, and why this was taken. A test compares the
picture with what the app shows today.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from entropix_mlx.traces.trace import read_trace
from entropix_mlx.tui.viewer import ViewerApp

PICTURE = Path(__file__).with_name("screenshot.svg")
RECORDED = Path(__file__).parents[1] / "tests" / "data" / "readme.jsonl"
"""An answer of the demo model, as `entropix generate --trace` wrote it; its header says how."""
SIZE = 110, 30


async def draw() -> str:
    """Return the picture; the same for the same screen."""
    trace = read_trace(RECORDED)
    fork = next(step.index for step in trace.steps if step.fork)
    app = ViewerApp.of_trace(trace)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        await pilot.press("home", *["right"] * fork)
        await pilot.pause()
        return re.sub(r"terminal-\d+", "terminal", app.export_screenshot())


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(draw()), encoding="utf-8")
