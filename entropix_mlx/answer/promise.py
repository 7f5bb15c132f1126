"""A promise that follows its user: at most such a share of the answers that are given is wrong.

A threshold that was set once holds for questions like those of its task. Here the user marks
answers as right or wrong, and the threshold moves with the marks (adaptive conformal inference,
Gibbs and Candès, arXiv 2106.00170):

1. The state is a level in [0, 1]: the share of recent answers that is left out. A wrong answer that
   was given raises it by STEP · (1 − risk), a right one lowers it by STEP · risk, so that over n
   given answers the share of wrong ones differs from the risk by at most 1 / (STEP · n) in the long
   run, whatever the questions are.
2. The threshold is the quantile of that level among the scores of the last `COMPARED` marks: few,
   so that it is soon that of the questions that come now.
3. The level rises at most half of the way to 1 from the most useful one, at which risk · given −
   wrong is largest: beyond, so little is given that a debt is repaid later, not sooner.

All promises are in one file, which is replaced as a whole after every mark.
"""

from __future__ import annotations

import fcntl
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .. import limits
from ..errors import ConfigurationError, PromptError
from ..files import write_whole, writing
from ..profiles.confidence import SCORES, AnswerMetrics, Verdict, score_of
from ..profiles.sections import Abstain
from ..records import from_record, parse_json

ANSWERS = "answers"
"""The kind of what is marked, unless the user says otherwise."""
STEP = 0.2
COMPARED = 30
RECENT = 100
"""Marks that figures are about."""
KEPT = 400
LONGEST_KIND = 100
LEAST_MARKS = 20
"""Before so many, all answers are given: there is nothing to go by."""
SLACK = 0.5


@dataclass(frozen=True)
class Mark:
    """An answer that its user called right or wrong."""

    score: float
    """Higher is surer, as `score_of` returns it."""
    right: bool
    given: bool
    """Whether it was at or above the threshold of its time."""


@dataclass(frozen=True)
class PromiseState:
    """What is known of one model and kind of answers."""

    risk: float = 0.2
    score: str = "max_entropy"
    level: float = 0.0
    total: int = 0
    """Marks there have been; only the last `KEPT` are in `marks`."""
    marks: tuple[Mark, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.risk < 1:
            raise ConfigurationError(f"a risk is a share between 0 and 1, not {self.risk:g}")
        if self.score not in SCORES:
            raise ConfigurationError(f"{self.score} is no score: take one of {', '.join(SCORES)}")
        if not all(math.isfinite(mark.score) for mark in self.marks):
            raise ConfigurationError("a mark has no finite score")

    @property
    def threshold(self) -> float:
        if len(self.marks) < LEAST_MARKS:
            return -math.inf
        ordered = sorted(mark.score for mark in self.marks[-COMPARED:])
        place = self.level * (len(ordered) - 1)
        low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
        return low + (high - low) * (place - math.floor(place))

    def marked(self, right: bool, score: float) -> PromiseState:
        if not math.isfinite(score):
            raise PromptError(f"a score must be a finite number, not {score}")
        given = score >= self.threshold
        marks = (*self.marks, Mark(score, right, given))[-KEPT:]
        step = STEP * ((not right) - self.risk) if given else 0.0
        highest = _highest_level(marks[-RECENT:], self.risk)
        level = min(max(self.level + step, 0.0), highest)
        return replace(self, level=level, total=self.total + 1, marks=marks)

    def report(self) -> dict[str, Any]:
        """Return the figures over the last `RECENT` marks and given answers; None is unknown."""
        recent = self.marks[-RECENT:]
        given = [mark for mark in self.marks if mark.given][-RECENT:]
        wrong = sum(not mark.right for mark in given)
        return {
            "promised_risk": self.risk,
            "score": self.score,
            "threshold": self.threshold if math.isfinite(self.threshold) else None,
            "marks": self.total,
            "rolling_risk": wrong / len(given) if given else None,
            "rolling_coverage": sum(mark.given for mark in recent) / len(recent)
            if recent
            else None,
            "least_left_out": least_left_out(recent, self.risk),
        }


def _by_threshold(marks: Sequence[Mark]) -> Iterator[tuple[int, int]]:
    """Yield how many answers each threshold gives, and how many of these are wrong; equal scores
    are given together."""
    ordered = sorted(marks, key=lambda mark: -mark.score)
    wrong = 0
    for given, mark in enumerate(ordered, 1):
        wrong += not mark.right
        if given == len(ordered) or ordered[given].score < mark.score:
            yield given, wrong


def _highest_level(marks: Sequence[Mark], risk: float) -> float:
    spared, given = max((risk * given - wrong, given) for given, wrong in _by_threshold(marks))
    useful = 1 - given / len(marks) if spared > 0 else 1.0
    return useful + SLACK * (1 - useful)


def least_left_out(marks: Sequence[Mark], risk: float) -> float | None:
    """Return the least share that a threshold must leave out for the rest to keep the risk; 1 where
    none does, None without answers."""
    if not marks:
        return None
    kept = (given for given, wrong in _by_threshold(marks) if wrong <= risk * given)
    return 1 - max(kept, default=0) / len(marks)


class Promise:
    """The promise of one model and kind of answers, and its file."""

    def __init__(self, model: str, kind: str = ANSWERS, path: str | Path | None = None) -> None:
        """Open a promise; one that is not in the file yet begins there with its first mark.

        Raises:
            ConfigurationError: the file cannot be read, or holds something else.
        """
        self._key = f"{model}/{kind}"
        self._path = Path(path) if path else promises_file()
        self.state = read_promises(self._path).get(self._key, PromiseState())

    @property
    def threshold(self) -> float:
        return self.state.threshold

    def verdict(self, tokens: AnswerMetrics) -> Verdict:
        state = self.state
        return Verdict(state.score, score_of(state.score, tokens), state.threshold, state.risk)

    def promise(self, risk: float | None = None, score: str | None = None) -> None:
        """Promise another risk, or go by another score, for which marks begin anew."""
        with self._changing():
            if score not in (None, self.state.score):
                self.state = replace(PromiseState(), risk=self.state.risk, score=str(score))
            self.state = replace(self.state, risk=self.state.risk if risk is None else risk)

    def mark(self, right: bool, score: float | Mapping[str, float] | AnswerMetrics) -> None:
        """Learn that an answer is right or wrong. It is on the disk when this returns.

        Args:
            right: what the user says of the answer.
            score: a number that is higher for surer answers; or the scores of `Summary.scores`, or
                the metrics of the answer, of which the score of the promise is taken.

        Raises:
            PromptError: the score of the promise is not among those.
            ConfigurationError: the file cannot be read or written.
        """
        self.mark_all([(right, score)])

    def mark_all(
        self, marks: list[tuple[bool, float | Mapping[str, float] | AnswerMetrics]]
    ) -> None:
        """Learn of several answers, one after the other, or of none if one cannot be used."""
        with self._changing():
            state = self.state
            for right, score in marks:
                state = state.marked(right, _number(state.score, score))
            self.state = state

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Read the file again and write what becomes of it, one process at a time."""
        with _locked(self._path):
            promises = read_promises(self._path)
            before = self.state = promises.get(self._key, PromiseState())
            try:
                yield
                promises[self._key] = self.state
                if len(promises) > limits.PROMISES:
                    raise ConfigurationError(
                        f"{self._path} has {limits.PROMISES} promises, no more are kept: use fewer"
                        " kinds, or move it away"
                    )
                with writing(self._path, ConfigurationError):
                    write_whole(self._path, to_text(promises))
            except BaseException:
                self.state = before
                raise


def unsure_rule(model: str, otherwise: Abstain) -> Promise | Abstain:
    """Return what calls a model's answers unsure: its promise, or `otherwise` before the first
    mark.

    Raises:
        ConfigurationError: as `Promise`.
    """
    promise = Promise(model)
    return promise if promise.state.marks else otherwise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with ExitStack() as held:
        with writing(path, ConfigurationError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = held.enter_context(open(path.with_suffix(".lock"), "a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def check_kind(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_KIND:
        raise ValueError(f"must be a name of at most {LONGEST_KIND} characters")
    return value


def _number(name: str, score: float | Mapping[str, float] | AnswerMetrics) -> float:
    if isinstance(score, AnswerMetrics):
        return score_of(name, score)
    if not isinstance(score, Mapping):
        return score
    value = score.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PromptError(f"the promise goes by {name}, which is not among the scores")
    return -value if SCORES[name].lower_is_surer else value


def promises_file() -> Path:
    import platformdirs

    return platformdirs.user_data_path("entropix_mlx", appauthor=False) / "promises.json"


def read_promises(path: Path) -> dict[str, PromiseState]:
    """Return the promises of a file by model and kind; none where there is no file.

    Raises:
        ConfigurationError: it cannot be read, or holds something else.
    """
    if not path.exists():
        return {}
    text = limits.read_named(path, limits.PROMISES_BYTES, ConfigurationError)
    found = parse_json(text, str(path), ConfigurationError)
    try:
        if not isinstance(found, dict):
            raise ValueError("it is no object")
        return {key: from_record(PromiseState, state) for key, state in found.items()}
    except (ValueError, TypeError, ConfigurationError) as error:
        message = f"{path} holds no promises: {error}; move it away to begin anew"
        raise ConfigurationError(message) from error


def to_text(promises: Mapping[str, PromiseState]) -> str:
    return json.dumps({key: asdict(state) for key, state in promises.items()}) + "\n"


def read_marks(path: str | Path) -> list[tuple[bool, float | Mapping[str, float] | AnswerMetrics]]:
    """Return the marks of a file in JSON Lines: answers of `entropix eval --output`, or objects
    with ``right`` (true or false) and ``score`` (a number, higher is surer) or ``scores``.

    Raises:
        PromptError: the file cannot be read, or a line is none of these.
    """
    marks: list[tuple[bool, float | Mapping[str, float] | AnswerMetrics]] = []
    for number, line in limits.read_lines(path, limits.ANSWERS_BYTES, PromptError, whole=False):
        where = f"{path}, line {number}"
        content = parse_json(line.decode("utf-8", "replace"), where, PromptError)
        try:
            marks.append(parse_mark(content))
        except (ValueError, TypeError, PromptError) as error:
            raise PromptError(f"{where} marks no answer: {error}") from error
    return marks


def parse_mark(content: Any) -> tuple[bool, float | Mapping[str, float] | AnswerMetrics]:
    """Return the mark of an object, as `read_marks` describes it.

    Raises:
        ValueError, PromptError: it is none.
    """
    if not isinstance(content, dict):
        raise ValueError("it is no object")
    if isinstance(content.get("graded"), dict):
        content = {"right": content["graded"].get("right"), "score": content.get("tokens")}
    right, score = content.get("right"), content.get("score", content.get("scores"))
    if not isinstance(right, bool):
        raise ValueError("right must be true or false")
    if isinstance(score, dict) and isinstance(score.get("logprob"), list):
        return right, from_record(AnswerMetrics, score)
    if isinstance(score, bool) or not isinstance(score, (int, float, dict)):
        raise ValueError("it needs score, a number, or scores, as an answer has them")
    return right, score
