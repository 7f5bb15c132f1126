"""Every bound on what a file, a header, a template or a number may claim, in one place.

A model comes from a stranger. Whatever is read of it, or of a file that the user names, has a kind
(a regular file, nothing that waits or never ends) and a size that is generous for honest files and
harmless for others.
``docs/security.md`` explains what is promised with these numbers, and what is not.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import EntropixError
from .files import expanded, reading, without_waiting

# Sizes of files in bytes, each some ten times that of the largest honest file.
CONFIG_BYTES = 10**7  # `config.json`, `generation_config.json`: some thousand
TOKENIZER_BYTES = 3 * 10**8  # each file of a tokenizer: 33 million for a vocabulary of 262,000
TEMPLATE_BYTES = 10**6  # a chat template: usually some thousand
PROFILE_BYTES = 10**6  # a profile in TOML: some thousand
TRACE_BYTES = 10**9  # a trace, which is read line by line: some thousand bytes a token
ANSWERS_BYTES = 2 * 10**9  # a file of answers, read line by line: some thousand an answer
LINE_BYTES = 2 * 10**7  # a line of either; the longest hold a whole prompt or answer
TEXT_BYTES = 10**8  # a text to be measured; the longest contexts hold some million characters
PROMPTS_BYTES = 3 * 10**7  # a file of prompts or questions
CONVERSATION_BYTES = 2 * 10**8  # a saved conversation, parsed in one piece: some thousand a token
NOTE_BYTES = 10**7  # a file of a folder of notes; a long book has a million characters
ATTACHED_BYTES = 10**6  # a file that a question names: more than any context holds
CONFIGURATION_BYTES = 10**6  # a configuration, a study, a list of hosts, a key: some hundred
GGUF_HEADER_BYTES = 5 * 10**7  # metadata and tensor table: 10 million for large vocabularies

# Counts.
NOTE_FILES = 10**5  # files and folders inside a folder of notes
NOTE_PAGES = 2000  # pages of a PDF file that are read
NOTE_PASSAGE_CHARACTERS = 400  # of a passage of a note; a longer paragraph is cut into several
SIZE = 10**8  # any dimension that a configuration names: width, vocabulary, context
ANSWERS = 10**6  # answers of one command, and prompts of a file
GRADED = 10**5  # answers of an evaluation, which plans all of them before it begins
QUESTIONS = 10**4  # questions of a task, and answers to each
PORT = 65535
CONSTRAINT_CHARACTERS = 5 * 10**5  # a schema, a grammar, a list of choices: usually some thousand
CONSTRAINT_FUEL = 10**6  # steps of llguidance to build the expressions of one: 50,000 a millisecond
CONSTRAINT_SYMBOLS = 5 * 10**4  # in the rules that it makes of one
CONSTRAINT_ROW = 5000  # ways to go on that it follows at once: four for each optional property
MESSAGE_CHARACTERS = 300  # of another library's message about what a user wrote


_OPEN_ALREADY = re.compile(r"/dev/stdin|(/dev|/proc/self)/fd/\d+")


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most so many bytes.

    A FIFO or a device is refused at once: one may wait for ever, or never end. That is decided on
    the opened file, so that nothing can be put in its place meanwhile. What the shell opened, such
    as ``<(command)``, may be any stream that ends.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger than that.
    """
    if _OPEN_ALREADY.fullmatch(str(path)):
        with open(path, "rb") as stream:
            return _read(stream, path, most)
    with open_regular(path, most) as file:
        return _read(file, path, most)


def _read(file: BinaryIO, path: Path, most: int) -> bytes:
    content = file.read(most + 1)
    if len(content) > most:
        raise _too_large(path, most)
    return content


def read_named(path: str | Path, most: int, error: type[EntropixError]) -> str:
    """Return the text of a file that the user names, as for `read_text`; "-" is stdin.

    Raises:
        error: it cannot be read, or is not UTF-8; the message says why.
    """
    if path == "-":
        with reading("stdin", error):
            return read_stdin(error).decode("utf-8-sig")
    with reading(path, error):
        return read_bytes(expanded(path, error), most).decode("utf-8-sig")


def read_stdin(error: type[EntropixError]) -> bytes:
    """Return all of stdin.

    Raises:
        error: there is none, or it is larger than `TEXT_BYTES`.
    """
    if sys.stdin is None:
        raise error("there is no stdin to read: name a text or a file")
    with reading("stdin", error):
        return _read(sys.stdin.buffer, Path("stdin"), TEXT_BYTES)


def read_lines(
    path: str | Path, most: int, error: type[EntropixError], *, whole: bool = True
) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a regular file of at most so many bytes by their numbers, from 1.

    Only line feeds end them. Where they must be `whole`, a last one without, which was cut off, is
    left out.

    Raises:
        error: it cannot be read, or a line is longer than `LINE_BYTES`.
    """
    with reading(path, error), open_regular(Path(path), most) as file:
        for number in itertools.count(1):
            line = file.readline(LINE_BYTES + 1)
            if len(line) > LINE_BYTES:
                raise error(f"cannot read {path}: a line of it is too long for such a file")
            if not line or (whole and not line.endswith(b"\n")):
                return
            yield number, line


@contextmanager
def open_regular(path: Path, most: int) -> Iterator[BinaryIO]:
    """Open a regular file of at most so many bytes, to be read bit by bit.

    Raises:
        OSError: as for `read_bytes`.
    """
    with open(path, "rb", opener=without_waiting) as file:
        status = os.fstat(file.fileno())
        check_regular(status, path)
        if status.st_size > most:
            raise _too_large(path, most)
        yield file


def _too_large(path: Path, most: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {most:,} bytes, as no such file is", str(path))


def read_text(path: Path, most: int) -> str:
    """Return the text of a regular UTF-8 file of at most so many bytes.

    Raises:
        OSError: as for `read_bytes`.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_bytes(path, most).decode("utf-8")


def check_regular(status: os.stat_result, path: Path) -> None:
    """Refuse everything but a regular file.

    Raises:
        OSError: it is a folder, a FIFO, a socket or a device.
    """
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file but a folder, pipe or device", str(path))
