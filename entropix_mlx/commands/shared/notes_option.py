"""The option that names a folder of notes, and what is told of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import arg_types, output

if TYPE_CHECKING:
    from ...answer.hooks import Retrieve
    from ...notes.notes import Notes

MOST_FAULTS = 5
"""Files that are named at most, of those that could not be read."""


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--notes",
        type=arg_types.file,
        metavar="FOLDER",
        help="look things up in the texts of this folder where the model is lost, and quote them",
    )


def opened(arguments: argparse.Namespace) -> Notes | None:
    """Return the notes that the options name, read as far as they are new; None without any.

    Raises:
        NotesError: the folder cannot be read, or its index cannot be kept.
    """
    if arguments.notes is None:
        return None
    from ...notes.notes import Notes

    notes = Notes(arguments.notes)
    if arguments.verbose:
        output.tell(f"notes: passages {notes.passages:,}, files {notes.files:,}")
        for name, fault in list(notes.faults.items())[:MOST_FAULTS]:
            output.tell(f"notes: {output.shortened(name)} is left out: {fault}")
        if (more := len(notes.faults) - MOST_FAULTS) > 0:
            output.tell(f"notes: {more} more files are left out")
    return notes


def about(notes: Notes | None, question: str) -> Retrieve | None:
    """Return what looks things up for an answer to a question; None without notes."""
    return notes.about(question) if notes else None
