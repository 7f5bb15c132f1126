"""Check an installed wheel, in the environment that holds nothing else.

It brings one package, with every file that is read at run time; the command and the terminal UI
start.
"""

import asyncio
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from entropix_mlx import __version__
from entropix_mlx.chat.recorded import RecordedSource, demo_recording
from entropix_mlx.chat.session import ChatSession
from entropix_mlx.tui.app import ChatApp

names = ZipFile(sys.argv[1]).namelist()
tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
assert tops == {"entropix_mlx"}, tops
assert f"entropix_mlx-{__version__}" in sys.argv[1], __version__


async def show() -> None:
    """Show the demo on a screen of its own."""
    async with ChatApp(ChatSession(RecordedSource(demo_recording()))).run_test() as pilot:
        await pilot.pause()


asyncio.run(show())
subprocess.run([Path(sys.executable).parent / "entropix", "--help"], check=True)
