"""Notes: a folder of texts, of which an answer is told the passage that fits best."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import NotesError
from ..files import expanded
from ..step import Passage, Source
from .index import Found, Index


class Notes:
    """The texts of a folder.

        notes = Notes("~/notes")
        for step in stream_generate(model, tokenizer, prompt, retrieve=notes.about(question)):
            ...

    Any thread may use it.
    """

    def __init__(self, folder: str | Path, *, cache: Path | None = None) -> None:
        """Read what is new in a folder; the first time, all of it.

        Args:
            folder: with Markdown files, plain texts and, where pypdf is installed, PDF files.
            cache: where the index is kept; None is the user's cache folder.

        Raises:
            NotesError: the folder cannot be read, or the index not be kept.
        """
        self.folder = expanded(folder, NotesError)
        self._index = Index(self.folder, cache)
        self.files = self.passages = 0
        """How many files were read, and their passages."""
        self.faults: dict[str, str] = {}
        """The files that could not be read, with the reasons."""
        self.refresh()

    def best(self, *texts: str) -> list[Found]:
        """Return the passages that hold most of what some texts are about, the best first.

        Raises:
            NotesError: the index cannot be read.
        """
        return self._index.best(*texts)

    def about(self, question: str) -> Callable[[str], list[Passage]]:
        """Return what looks things up for an answer to a question: a `Retrieve`.

        It is called with a sentence of the answer, and returns passages about the question or the
        sentence, the best first. It raises a `NotesError` where the index cannot be read.
        """

        def look_up(sentence: str) -> list[Passage]:
            return [_passage(found) for found in self.best(question, sentence)]

        return look_up

    def refresh(self) -> None:
        """Read what changed in the folder.

        Raises:
            NotesError: as for a new one.
        """
        self._index.update()
        self.files, self.passages = self._index.size()
        self.faults = self._index.faults()


def _passage(found: Found) -> Passage:
    source = Source(found.name, found.line, found.page, found.heading)
    return Passage(found.text, source, found.score)
