"""How answers are shown: their steps and totals, and the progress of many."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

from ...api.answers_file import AnswersFile, Task, records
from ...api.prompt_file import at_line
from ...chat.conversation import Conversation, Turn
from ...palette import SWATCHES, paint, paint_step
from ...profiles.confidence import ADVICE, Verdict
from ...profiles.profile import Profile
from ...settings import Settings
from ...step import Step
from ...summary import Summary
from ...traces.trace import Header
from . import output
from .loading import load_model, open_notes, resolve
from .options import Form, ModelOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...answer.selection import AnswerSelection
    from ...models.base import LanguageModel

Record = dict[str, Any]
TaskT = TypeVar("TaskT", bound=Task)
MOST_FAILURES = 5
"""Failures that are listed at the end; a file of answers has all of them."""


def show_steps(steps: Iterable[Step], form: Form, summary: Summary) -> int:
    """Print steps as they come, and add them up; return the exit code.

    With `form.json`, only the totals are printed, which is left to the caller.
    """
    colour = output.use_colour(form.color, sys.stdout)
    try:
        for step in steps:
            summary.add(step)
            if form.jsonl:
                output.write_json(step.to_dict())
            elif not form.json:
                write_step(step, colour)
    except KeyboardInterrupt:
        summary.finish_reason = "interrupted"
        return output.INTERRUPTED
    return 0


def show_answers(
    several: AnswerSelection,
    steps: Iterable[tuple[int, Step]],
    form: Form,
    summary: Summary,
) -> int:
    """Print the chosen one of several answers, add it up, and return the exit code.

    On a terminal the first one is shown as it comes, and another one that is chosen below it.
    """
    live = not (form.json or form.jsonl) and sys.stdout.isatty()
    first = (step for number, step in steps if number == 0)
    code = show_steps(first, form if live else replace(form, json=True, jsonl=False), Summary())
    chosen, drawn = several.chosen, several.candidates
    if live and chosen is not drawn[0]:
        output.write(f"\n── answer {drawn.index(chosen) + 1} of {len(drawn)} was chosen ──\n")
    shown = live and chosen is drawn[0]
    show_steps(chosen.steps, replace(form, json=form.json or shown), summary)
    summary.finish_reason = summary.finish_reason or "interrupted"
    if form.jsonl:
        output.write_json({"answers": several.to_dict()})
    return code


def write_step(step: Step, colour: bool) -> None:
    step = replace(step, text=output.shown(step.text, sys.stdout))
    output.write(paint_step(step) if colour else step.text)


def print_statistics(summary: Summary, color: str, *lines: str) -> None:
    """Print the strategies and mean uncertainty of an answer to stderr, and more lines below."""
    output.info("─" * 40)
    output.info(shares(summary, output.use_colour(color, sys.stderr)))
    if summary.interventions:
        output.info(summary.interventions)
    means = f"entropy {summary.mean_entropy:.2f} bits, varentropy {summary.mean_varentropy:.2f}"
    output.info("\n".join([f"{means} bits² (means)", *lines]))


def show_totals(
    form: Form,
    seed: int,
    verdict: Verdict | None,
    summary: Summary,
    several: AnswerSelection | None = None,
) -> None:
    """Print what belongs to a whole answer: totals as JSON, statistics to stderr."""
    if form.json:
        more: dict[str, Any] = {"seed": seed}
        more |= {} if verdict is None else {"certainty": verdict.to_dict()}
        more |= {} if several is None else {"answers": several.to_dict()}
        output.write_json(summary.to_dict() | more, indent=2)
    elif not form.jsonl:
        output.write("\n")
    speculation = ""
    if summary.accepted:
        speculation = (
            f", {summary.tokens_per_pass:.2f} tokens/forward pass"
            f" ({summary.accepted}/{summary.proposed} proposed tokens accepted)"
        )
    print_statistics(
        summary,
        form.color,
        f"{summary.prompt_tokens} prompt tokens, first token after"
        f" {summary.time_to_first_token:.1f} s; {summary.completion_tokens} tokens at"
        f" {summary.tokens_per_second:.1f} tokens/s{speculation}",
        f"finished: {summary.ending}; seed {seed}",
        *constrained(summary),
        *([] if several is None else [str(several)]),
    )
    report_if_unsure(verdict)


def trace_header(
    model: LanguageModel,
    name: str,
    settings: Settings,
    tokens: Sequence[int],
    question: str | None,
    system_prompt: str | None = None,
    notes: Path | None = None,
) -> Header:
    """Return the header for the trace of an answer, or of a text that answers nothing."""
    turns = [] if question is None else [Turn(question)]
    return Header(
        model=name,
        sampler=settings.sampler,
        profile=Profile.load(settings.profile),
        seed=settings.seed or 0,
        messages=Conversation(system_prompt, turns).messages,
        context_length=model.config.max_position_embeddings,
        prompt_tokens=len(tokens),
        options=settings.options,
        notes=str(notes.absolute()) if notes else "",
    )


def shares(summary: Summary, colour: bool) -> str:
    labels = []
    for strategy, swatch in SWATCHES.items():
        if number := summary.strategies[strategy]:
            label = f"{swatch.glyph} {strategy} {number / summary.completion_tokens:.0%}"
            labels.append(paint(label, strategy) if colour else label)
    return "  ".join(labels) or "no tokens"


def constrained(summary: Summary) -> Iterator[str]:
    """Yield what a constraint did, and how sure each field of a JSON answer is."""
    if strains := summary.strains:
        yield f"strain {fmean(strains):.2f} bits (mean), {max(strains):.2f} (largest)"
    for field in summary.fields:
        value = output.shortened(json.dumps(field.value, ensure_ascii=False))
        others = ", ".join(f"{o.text} {o.probability:.0%}" for o in field.alternatives[:3])
        yield f"{field.probability:7.1%}  {field.pointer} {value}" + (
            f"  ({others})" if others else ""
        )


def report_if_unsure(verdict: Verdict | None) -> None:
    if verdict is not None and verdict.unsure:
        output.info(f"{verdict.reason}; {ADVICE}")


def answer_prompts(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    tasks: Sequence[Task],
    settings: Settings,
    batch: int,
    *,
    on_token: Callable[[], None],
    bare: bool = False,
    notes: Path | None = None,
    prompts: Path | None = None,
) -> Iterable[tuple[Task, Record]]:
    """Begin a batch; return each task with its record as it ends.

    Args:
        model: from `load_model`.
        tokenizer: from `load_model`.
        tasks: what to answer.
        settings: those that are not a prompt's own.
        batch: answers at once, if the memory allows.
        on_token: called at each token.
        bare: leave the chat template out.
        notes: a folder of texts from which passages are quoted.
        prompts: the file of the prompts, to be named in errors.
    """
    from ...answer.hooks import Hooks
    from ...api.batch import batch_generate

    resolve(settings, model)
    passages = open_notes(notes)
    tokens: dict[int, list[int]] = {}
    for line in {task.prompt.line: task.prompt for task in tasks}.values():
        with at_line(prompts, line.line) if prompts else nullcontext():
            tokens[line.line] = line.tokens(tokenizer, bare=bare)
    begun = batch_generate(
        model,
        tokenizer,
        [tokens[task.prompt.line] for task in tasks],
        [task.settings for task in tasks],
        batch=batch,
        hooks=[
            Hooks(retrieve=passages.about(task.prompt.question) if passages else None)
            for task in tasks
        ],
    )
    most = min(batch, len(tasks))
    fewer = f": the memory does not allow {most}" if begun.size < most else ""
    output.info(f"{begun.size} answers at once{fewer}")
    return records(begun, tasks, on_token)


class Progress:
    """A bar on stderr while it is entered: answers that have ended, tokens per second, time
    left."""

    def __init__(self, answers: int) -> None:
        self._total = answers
        self._bar: Any = None  # of tqdm's
        self._began = time.perf_counter()
        self._tokens = 0

    def __enter__(self) -> Progress:
        self._bar = output.progress_bar(
            total=self._total,
            smoothing=0,  # answers end in bursts
            miniters=0,
            mininterval=0.2,
            bar_format="{n}/{total} answers {bar}{postfix}, {remaining} left",
        )
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def token(self) -> None:
        self._tokens += 1
        self._bar.set_postfix_str(f"{self._speed:.1f} tokens/s", refresh=False)
        self._bar.update(0)

    def answer(self) -> None:
        self._bar.update(1)
        self._bar.refresh()

    @property
    def totals(self) -> str:
        """Tokens in all, and their speed, prefill included."""
        return f"{self._tokens} tokens at {self._speed:.1f} tokens/s"

    @property
    def _speed(self) -> float:
        return self._tokens / (time.perf_counter() - self._began)


def answer_missing(
    model: ModelOptions,
    tasks: Sequence[TaskT],
    answer: Callable[..., Iterable[tuple[TaskT, Record]]],
    file: Path | None,
    keep: Callable[[TaskT, Record], None],
    *,
    resume: bool,
) -> int:
    """Answer the tasks that have no answer in a file yet, below a progress bar.

    Args:
        model: to be loaded, if there is anything to answer.
        tasks: all of them.
        answer: takes the model, its tokenizer, the tasks to answer and `on_token`, a function to
            call at each token; yields each task with its record as it ends.
        file: of the answers; None for none.
        keep: takes each answer where there is no file.
        resume: whether the file may hold answers.

    Returns:
        An exit code.
    """
    answers = AnswersFile(file, tasks, resume=resume) if file else None
    done = answers.done if answers else set()
    missing = [task for task in tasks if task.key not in done]
    if done:
        output.info(f"{len(done)} answers exist, {len(missing)} to go")
    if not missing:
        return 0
    write, progress = answers.write if answers else keep, Progress(len(missing))
    ending = answer(*load_model(model), missing, on_token=progress.token)
    failures, ended = [], 0
    spent: list[tuple[int, int, int]] = []
    with answers or nullcontext(), progress:
        try:
            for task, record in ending:
                write(task, record)
                if "error" in record:
                    failures.append(f"{task.name}: {record['error']}")
                if isinstance(several := record.get("answers"), dict):  # not those of a question
                    spent.append(_spent(several))
                ended += 1
                progress.answer()
        except KeyboardInterrupt:
            again = f"; add --resume to go on with {file}" if file else ""
            output.report(f"\nstopped: {ended} answers complete{again}")
            return output.INTERRUPTED
    output.info(f"{len(missing) - len(failures)} answers, {progress.totals}")
    if spent:
        drawn, alone, together = map(sum, zip(*spent, strict=True))
        output.info(
            f"several answers to {drawn} of {len(spent)} prompts: {together:,} forward tokens,"
            f" {together / max(1, alone):.2f} times those of the first answers"
        )
    for failure in failures[:MOST_FAILURES]:
        output.report_error(failure)
    if len(failures) > MOST_FAILURES:
        output.report_error(f"{len(failures)} answers failed in all")
    return output.USAGE if failures else 0


def _spent(several: Record) -> tuple[int, int, int]:
    """Return whether others were drawn, and the forward tokens of the first answer and of all."""
    drawn = several["answers"]
    return int(len(drawn) > 1), drawn[0]["forward_tokens"], several["forward_tokens"]
