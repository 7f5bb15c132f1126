"""Runs the chat, and leaves the process cleanly also while a model is loading."""

from __future__ import annotations

import os
import sys

from entropix_mlx.backends.base import Backend
from entropix_mlx.chat.store import Store
from entropix_mlx.configuration import Configuration

from .app import ChatApp


def run_chat(
    backend: Backend, store: Store | None = None, configuration: Configuration | None = None
) -> None:
    """Show a chat until the user leaves it; see `ChatApp`."""
    app = ChatApp(backend, store, configuration)
    app.run()
    if app.link.alive:
        # Nothing interrupts a model that is being loaded, and the interpreter's end would abort in
        # it. The terminal is restored and no file is open, so leave without that end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(app.return_code or 0)
