"""Many answers on several machines, each of which holds the whole model (data parallelism).

Each rank gets an equal share of the prompts and answers it. What a rank that is lost had not
answered is answered by rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from queue import Queue
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


@dataclass
class Workers:
    """The other ranks, as rank 0 knows them."""

    ranks: list[int]
    """Those that are there."""
    send: Callable[[int, Mapping[str, Any]], None]
    results: Queue[tuple[int, Mapping[str, Any] | None]] = field(default_factory=Queue)
    """What they sent, with their ranks; None where one is lost."""


class DistributedBatch:
    """Answers that are generated on several machines; iterate to get ``(index, step)``."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        prompts: Sequence[Sequence[int]],
        settings: Sequence[Settings],
        workers: Workers,
        batch: int = BATCH,
    ) -> None:
        self.answers = [BatchAnswer(index, len(one)) for index, one in enumerate(prompts)]
        self.size = batch
        self._model = model
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._settings = _resolved(model, settings)
        self._workers = workers
        ranks = [0, *workers.ranks]
        indices = range(len(prompts))
        self._shares = {rank: [*indices[n :: len(ranks)]] for n, rank in enumerate(ranks)}

    def __iter__(self) -> Iterator[tuple[int, Step]]:
        # 1. The others begin with their shares.
        for rank in self._workers.ranks:
            tasks = [self._task(index) for index in self._shares[rank]]
            if tasks:
                self._workers.send(rank, {"do": "answer", "tasks": tasks, "batch": self.size})
        # 2. This rank answers its own, and then what lost ranks leave behind.
        while any(self._shares.values()):
            if own := self._shares[0]:
                self._shares[0] = []
                yield from self._answered_here(own)
            else:
                yield from self._received()

    def _task(self, index: int) -> list[Any]:
        return [index, list(self._prompts[index]), settings_record(self._settings[index])]

    def _answered_here(self, share: Sequence[int]) -> Iterator[tuple[int, Step]]:
        batch = steady_batch(
            self._model,
            self._tokenizer,
            [self._prompts[n] for n in share],
            [self._settings[n] for n in share],
            self.size,
        )
        for index, answer in zip(share, batch.answers, strict=True):
            self.answers[index] = replace(answer, index=index)
        for here, step in batch:
            yield share[here], step
            while not self._workers.results.empty():
                yield from self._received()
        for index, answer in zip(share, batch.answers, strict=True):
            self.answers[index].error = answer.error

    def _received(self) -> Iterator[tuple[int, Step]]:
        rank, result = self._workers.results.get()
        if result is None:
            self._shares[0] += self._shares.pop(rank, [])
            if rank in self._workers.ranks:
                self._workers.ranks.remove(rank)
            return
        index = result["answer"]
        self._shares[rank].remove(index)
        answer = self.answers[index]
        answer.settings = self._settings[index] if result["began"] else None
        answer.error = None if result["failed"] is None else EntropixError(result["failed"])
        answer.steps = [Step.from_dict(step) for step in result["steps"]]
        yield from ((index, step) for step in answer.steps)


def steady_batch(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[Settings],
    batch: int,
    draft: DraftModel | None = None,
    retrieve: Sequence[Retrieve] | None = None,
) -> Batch:
    """Return a batch that repeats its answers exactly; settings and `retrieve` are one a prompt."""
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
    """Answer what rank 0 sends, until it sends no more; `send` takes each answer as it ends."""
    for order in orders:
        indices = [index for index, _, _ in order["tasks"]]
        batch = steady_batch(
            model,
            tokenizer,
            [prompt for _, prompt, _ in order["tasks"]],
            [settings_of(record) for _, _, record in order["tasks"]],
            order["batch"],
        )
        sent = set()
        for here, step in batch:
            if step.finish_reason:
                sent.add(here)
                send(_record(indices[here], batch.answers[here]))
        for here, answer in enumerate(batch.answers):
            if here not in sent:
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
    found: list[tuple[Settings, Profile]] = []
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
    record = {each.name: getattr(settings, each.name) for each in fields(Settings)}
    return record | {
        "profile": asdict(Profile.load(settings.profile)),
        "changes": {},
        "logit_bias": None if settings.logit_bias is None else list(settings.logit_bias.items()),
    }


def settings_of(record: Mapping[str, Any]) -> Settings:
    bias = record["logit_bias"]
    given = {
        "profile": Profile.load().replace(record["profile"]),
        "logit_bias": None if bias is None else dict(bias),
        "stop": tuple(record["stop"]),
    }
    return Settings(**(dict(record) | given))
