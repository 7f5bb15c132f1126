"""`--mode data`: every rank holds the whole model and answers a share of the prompts.

1. Rank 0 has the others run the same command, and sends the keys of the answers that exist.
2. All ranks load the model and compare fingerprints of what they are about to answer.
3. Rank r answers the r-th part of the missing answers into a file of its own, FILE.rank-r.
4. The others send the lines of their files, and rank 0 writes all of them to FILE, in the order of
   the prompts. Then each rank deletes its own file.

A run that was stopped leaves the ranks' files behind, and `--resume` continues them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...api.answers_file import AnswersFile, Task, written
from ...errors import EntropixError, PromptError
from ..shared import loading, output
from ..shared.options import ModelOptions
from ..shared.output import USAGE

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...models.base import LanguageModel
    from ...models.config import ModelShape

T = TypeVar("T", bound=Task)
Key = tuple[int, int]
"""The key of an answer in its file."""
AnswerTasks = Callable[["LanguageModel", "TokenizerWrapper", Sequence[T], AnswersFile | None], int]
"""Answers tasks, into a file where there is one, and returns an exit code."""


class Ranks(Protocol):
    """The group, as the command on one of its ranks sees it; all ranks call the same methods."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def load(self, **options: Any) -> tuple[LanguageModel, TokenizerWrapper]:
        """Load this rank's share of a model; on rank 0."""

    def begin_shares(self, done: Iterable[Key]) -> set[Key]:
        """Return the keys of the answers that exist, as rank 0 knows them."""

    def check_same(self, fingerprint: str) -> None:
        """Raise a `GroupError` on rank 0 where a rank has another fingerprint."""

    def gather_answers(self, own: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return on rank 0 the records of all ranks; it waits for them."""

    def end_shares(self) -> None:
        """Return when rank 0 has stored all answers."""


def answer(
    options: ModelOptions,
    path: Path | None,
    tasks: Sequence[T],
    run: AnswerTasks[T],
    *,
    resume: bool,
) -> int:
    """Answer the tasks that have no answer in a file yet, this rank's share of them in a group.

    Returns:
        An exit code.

    Raises:
        PromptError: several ranks answer, and there is no file that the answers can go to.
    """
    ranks = options.ranks if options.whole else None
    if ranks is not None and path is None:
        raise PromptError("--mode data collects the answers in a file: name it with --output")
    file = None
    if path is not None and (ranks is None or ranks.rank == 0):
        file = AnswersFile(path, tasks, resume=resume)
    done = file.done if file else set()
    missing = [task for task in tasks if task.key not in done]
    if done:
        output.info(f"{len(done)} answers exist, {len(missing)} to go")
    if not missing:
        return 0
    if ranks is None:
        return run(*loading.load_model(options), missing, file)

    done = ranks.begin_shares(done)
    missing = [task for task in tasks if task.key not in done]
    own_path = Path(f"{path}.rank-{ranks.rank}")
    part = AnswersFile(own_path, tasks, resume=resume)  # FILE may have some of its answers by now
    model, tokenizer = loading.load_model(options)
    ranks.check_same(_fingerprint(tasks, model.config))
    first, end = (len(missing) * rank // ranks.size for rank in (ranks.rank, ranks.rank + 1))
    share = [task for task in missing[first:end] if task.key not in part.done]
    if share:
        run(model, tokenizer, share, part)

    records = ranks.gather_answers(list(written(own_path)))
    code = _join(file, missing, records) if file else 0
    ranks.end_shares()
    own_path.unlink(missing_ok=True)
    return code


def _join(file: AnswersFile, tasks: Sequence[Task], records: Iterable[dict[str, Any]]) -> int:
    by_key = {(record["line"], record["sample"]): record for record in records}
    with file:
        for task in tasks:
            if task.key in by_key:
                file.write(task, by_key[task.key])
    failed = sum("error" in record for record in by_key.values())
    if failed:
        output.report_error(f"{failed} answers failed on all ranks together: see {file.path}")
    return USAGE if failed else 0


def _fingerprint(tasks: Sequence[Task], config: ModelShape) -> str:
    """Return a hash of prompts, options and profiles, which may differ between machines."""
    named = {}
    for task in tasks:
        settings = task.settings
        named[repr((settings.profile, settings.changes, settings.sampler))] = settings
    found = []
    for settings in named.values():
        try:
            found.append(repr(replace(settings, seed=0).resolved(config).settings.profile))
        except EntropixError as error:  # that answer's alone
            found.append(str(error))
    content = json.dumps([[task.header for task in tasks], found])
    return hashlib.sha256(content.encode()).hexdigest()
