"""Blocks of code in an answer, to be copied."""

from __future__ import annotations

from textual.app import App


def code_blocks(text: str) -> list[str]:
    """Return what stands between the fences of a Markdown text, also after one that never ends."""
    from markdown_it import MarkdownIt  # with Textual's Markdown widget; slow to import

    return [token.content for token in MarkdownIt().parse(text) if token.type == "fence"]


def copy_last_block(app: App[None], text: str) -> None:
    """Copy the last block of a text to the clipboard, and say so."""
    blocks = code_blocks(text)
    if not blocks:
        app.notify("this answer has no block of code", severity="warning")
        return
    app.copy_to_clipboard(blocks[-1])
    lines = len(blocks[-1].splitlines())
    app.notify(f"copied the last of {len(blocks)} blocks of code: {lines} lines")
