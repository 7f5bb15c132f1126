"""Commands under ``mlx.launch``: each of its processes runs the same one, and rank 0 prints."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import EntropixError

SPLIT = ("generate", "serve")
"""Subcommands that several ranks run together."""


def join(command: str, given: dict[str, Any]) -> None:
    """Change what is `given` to a command to what all ranks share, or rank 0 alone does.

    Raises:
        EntropixError: the command or an option needs one process.
    """
    if not {"MLX_RANK", "OMPI_COMM_WORLD_SIZE"} & os.environ.keys():
        return
    from ...models.ranks import launched, share
    from ...settings import draw_seed

    group = launched()
    if group is None:
        return
    if command not in SPLIT:
        raise EntropixError(f"several ranks run {' and '.join(SPLIT)} only: start it without them")
    batch: Any = given.get("batch")
    alone = {
        "resume": getattr(batch, "resume", False),
        "adapter-path": getattr(given.get("model"), "adapter_path", None),
    }
    for name, value in alone.items():
        if value:
            raise EntropixError(f"several ranks cannot have --{name}: leave it out")
    if given.get("prompt") == "-":
        raise EntropixError("several ranks cannot read stdin: give --prompt TEXT or --prompts FILE")
    if command == "generate" and given.get("seed") is None:
        given["seed"] = share(draw_seed(), group)
    if group.rank():
        given["quiet"] = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        folder = Path(tempfile.mkdtemp(prefix="entropix-rank-"))
        if given.get("trace"):
            given["trace"] = folder / "trace.jsonl"
        if getattr(batch, "output", None):
            given["batch"] = replace(batch, output=folder / "answers.jsonl")
