"""`entropix view`: show a recorded trace in the terminal UI, or write a page for a browser."""

from __future__ import annotations

from pathlib import Path

from ..configuration import Configuration
from ..errors import OutputError
from ..files import keep_source, write_whole, writing
from ..traces.trace import read_trace
from .shared import output
from .shared.options import File, command


@command()
def view(trace: Path, /, *, html: File = None, configuration: Configuration) -> int:
    """Look at a recorded trace, here or as a page for a browser.

    Args:
        trace: a trace that --trace or read recorded
        html: write a page for a browser, which needs no server, and show nothing here
    """
    if html is not None:
        keep_source(html, trace)
        from ..traces.page import render

        page = render(read_trace(trace))
        with writing(html, OutputError):
            write_whole(html, page)
        output.report(f"wrote {html}: open it in a browser")
        return 0
    recorded = read_trace(trace)
    output.check_screen("--html FILE writes a page of the trace instead")
    from entropix_mlx.tui.viewer import ViewerApp

    app = ViewerApp.of_trace(recorded, configuration)
    app.run()
    return app.return_code or 0
