"""Chats in files: under which names, and in which formats."""

from __future__ import annotations

import itertools
from pathlib import Path

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.files import write_whole
from entropix_mlx.traces.trace import Header, TraceWriter

from .workspace import Workspace


def free_name() -> str:
    """Return a name for a chat that no file has here: chat.json, chat-2.json, …"""
    names = itertools.chain(["chat.json"], (f"chat-{n}.json" for n in itertools.count(2)))
    return next(name for name in names if not Path(name).exists())


def save(conversation: Conversation, path: Path, header: Header) -> None:
    """Write the format that a file's name asks for.

    Args:
        conversation: what to save; of a trace, its last answer.
        path: ends with .md for a text to read, .jsonl for a trace, anything else for a chat.
        header: what a trace begins with.

    Raises:
        SessionError, TraceError, OSError: the file cannot be written.
    """
    if path.suffix == ".md":
        write_whole(path, conversation.to_markdown())
    elif path.suffix == ".jsonl":
        with TraceWriter(path, header) as trace:
            for step in conversation.turns[-1].answer.steps:
                trace.add(step)
    else:
        conversation.save(path)


def trace_header(workspace: Workspace) -> Header:
    """Return what a trace of the last answer begins with."""
    conversation, status = workspace.conversation, workspace.status
    answer = conversation.turns[-1].answer
    return Header(
        model=status.model,
        sampler=status.sampler,
        profile=workspace.profile,
        seed=answer.seed,
        messages=conversation.asked,
        context_length=status.context_length,
        prompt_tokens=max(0, status.context_used - len(answer.steps)),
    )
