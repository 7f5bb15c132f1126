"""Many answers on several machines, each of which holds the whole model (data parallelism).

Rank 0 deals prompts, a few at a time, and answers some itself. Whoever is done gets more, so a slow
machine gets fewer. What a rank that is lost had not answered is dealt again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import ceil
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks, Retrieve
from ..engine.speculation.draft_model import DraftModel
from ..errors import EntropixError
from ..models.base import LanguageModel
from ..profiles.profile import Profile
from ..settings import BATCH, Settings
from ..step import Step
from .batch import Batch, BatchAnswer, batch_generate

CHUNKS = 2
"""Batches that a rank is dealt at once: while its slowest answers run, others can begin."""
LOOK_SECONDS = 1.0
"""Between two looks, of a rank that has nothing to do, at whether there is something to do."""


_Event = tuple[int, Step | None]


@dataclass
class Workers:
    """The other ranks, as the one that deals knows them."""

    ranks: list[int]
    """Those that are there."""
    send: Callable[[int, Mapping[str, Any]], None]
    results: Queue[tuple[int, Mapping[str, Any] | None]] = field(default_factory=Queue)
    """What they sent, with their ranks; None where one is lost."""


class Dealt:
    """Answers that are generated on several machines; iterate to get ``(index, step)``.

    The steps come in the order of the prompts: those of an answer that ends early are held back.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        prompts: Sequence[Sequence[int]],
        settings: Sequence[Settings],
        workers: Workers,
        batch: int = BATCH,
    ) -> None:
        """Prepare.

        Args:
            model: this rank's own.
            tokenizer: its.
            prompts: token ids.
            settings: one for each prompt.
            workers: the other ranks, which run `work`.
            batch: answers at once, on each rank.
        """
        self.answers = [BatchAnswer(index, len(one)) for index, one in enumerate(prompts)]
        self.size = batch
        self._model = model
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._settings = _resolved(model, settings)
        self._workers = workers
        self._waiting = deque(range(len(prompts)))
        self._held: dict[int, set[int]] = {rank: set() for rank in workers.ranks}

    def __iter__(self) -> Iterator[tuple[int, Step]]:
        held: dict[int, list[Step]] = {}
        ended: set[int] = set()
        first = 0
        for index, step in self._steps():
            if step is None:
                ended.add(index)
            elif index == first:
                yield index, step
            else:
                held.setdefault(index, []).append(step)
            while first in ended:
                first += 1
                yield from ((first, one) for one in held.pop(first, ()))

    def _steps(self) -> Iterator[_Event]:
        """Yield the steps of all answers as they come, and None for each that has ended."""
        for rank in list(self._workers.ranks):
            self._deal(rank)
        while self._waiting or any(self._held.values()):
            if self._waiting:
                yield from self._own(self._chunk())
            else:
                yield from self._received(LOOK_SECONDS)

    def _chunk(self) -> list[int]:
        """Take the next few prompts, fewer towards the end, so that all ranks end together."""
        fair = ceil(len(self._waiting) / (1 + len(self._workers.ranks)))
        count = min(fair, CHUNKS * self.size, len(self._waiting))
        return [self._waiting.popleft() for _ in range(count)]

    def _deal(self, rank: int) -> None:
        chunk = self._chunk()
        self._held[rank] = set(chunk)
        if chunk:
            tasks = [[n, list(self._prompts[n]), settings_record(self._settings[n])] for n in chunk]
            self._workers.send(rank, {"do": "answer", "tasks": tasks, "batch": self.size})

    def _own(self, chunk: Sequence[int]) -> Iterator[_Event]:
        """Answer some prompts here, and look after the others meanwhile."""
        batch = steady_batch(
            self._model,
            self._tokenizer,
            [self._prompts[n] for n in chunk],
            [self._settings[n] for n in chunk],
            self.size,
        )
        for index, answer in zip(chunk, batch.answers, strict=True):
            self.answers[index].settings = answer.settings
            self.answers[index].steps = answer.steps
        for here, step in batch:
            yield chunk[here], step
            yield from self._received(0)
        for index, answer in zip(chunk, batch.answers, strict=True):
            self.answers[index].error = answer.error
            yield index, None

    def _received(self, seconds: float) -> Iterator[_Event]:
        """Yield what the others have sent, waiting for the first of it."""
        while True:
            try:
                rank, result = self._workers.results.get(seconds > 0, seconds or None)
            except Empty:
                return
            seconds = 0
            if result is None:
                self._waiting.extendleft(sorted(self._held.pop(rank, ()), reverse=True))
                if rank in self._workers.ranks:
                    self._workers.ranks.remove(rank)
                continue
            yield from self._taken(rank, result)

    def _taken(self, rank: int, result: Mapping[str, Any]) -> Iterator[_Event]:
        """Yield the steps of an answer of another rank."""
        index = result["answer"]
        self._held[rank].remove(index)
        answer = self.answers[index]
        answer.settings = self._settings[index] if result["began"] else None
        answer.error = None if result["failed"] is None else EntropixError(result["failed"])
        answer.steps = [Step.from_dict(step) for step in result["steps"]]
        if not self._held[rank]:
            self._deal(rank)
        yield from ((index, step) for step in answer.steps)
        yield index, None


def steady_batch(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[Settings],
    batch: int,
    draft: DraftModel | None = None,
    retrieve: Sequence[Retrieve] | None = None,
) -> Batch:
    """Return a batch that repeats its answers exactly, with settings for each prompt.

    What looks things up is one for each prompt, too.
    """
    hooks = None if retrieve is None else [Hooks(retrieve=one) for one in retrieve]
    return batch_generate(
        model,
        tokenizer,
        prompts,
        settings,
        batch=batch,
        steady=True,
        draft_model=draft,
        hooks=hooks,
    )


def work(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    orders: Iterable[Mapping[str, Any]],
    send: Callable[[Mapping[str, Any]], None],
) -> None:
    """Answer what another rank deals, until there are no more orders.

    Args:
        model: this rank's own.
        tokenizer: its.
        orders: from `Dealt`, waiting for each.
        send: takes each answer as it ends.
    """
    for order in orders:
        indices = [index for index, _, _ in order["tasks"]]
        batch = steady_batch(
            model,
            tokenizer,
            [prompt for _, prompt, _ in order["tasks"]],
            [settings_of(record) for _, _, record in order["tasks"]],
            order["batch"],
        )
        told = set()
        for here, step in batch:
            if step.finish_reason:
                told.add(here)
                send(_record(indices[here], batch.answers[here]))
        for here, answer in enumerate(batch.answers):
            if here not in told:
                send(_record(indices[here], answer))


def _record(index: int, answer: BatchAnswer) -> dict[str, Any]:
    return {
        "answer": index,
        "began": answer.settings is not None,
        "failed": None if answer.error is None else str(answer.error),
        "steps": [step.to_dict() for step in answer.steps],
    }


def _resolved(model: LanguageModel, settings: Sequence[Settings]) -> list[Settings]:
    """Return settings with their profiles, which other machines may not have, and seeds."""
    found: list[tuple[Settings, str | Path | Profile]] = []
    resolved = []
    for one in settings:
        named = Settings(profile=one.profile, changes=one.changes, seed=0)
        profile = next((profile for known, profile in found if known == named), None)
        if profile is None:
            profile = named.resolved(model.config).profile
            found.append((named, profile))
        resolved.append(replace(one, profile=profile, changes={}).resolved(model.config).settings)
    return resolved


def settings_record(settings: Settings) -> dict[str, Any]:
    """Return resolved settings as a record for JSON; `settings_of` reads it."""
    record = {each.name: getattr(settings, each.name) for each in fields(Settings)}
    return record | {
        "profile": asdict(Profile.load(settings.profile)),
        "changes": {},
        "logit_bias": None if settings.logit_bias is None else list(settings.logit_bias.items()),
    }


def settings_of(record: Mapping[str, Any]) -> Settings:
    """Return settings from such a record."""
    bias = record["logit_bias"]
    given = {
        "profile": Profile.load().replace(record["profile"]),
        "logit_bias": None if bias is None else dict(bias),
        "stop": tuple(record["stop"]),
    }
    return Settings(**(dict(record) | given))
