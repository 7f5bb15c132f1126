"""`entropix generate`: answer one prompt; or several prompts, or one several times."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..answer.promise import unsure_rule
from ..api.answers_file import AnswersFile, Task, all_tasks, records
from ..api.prompt_file import PromptLine, at_line, read_prompt_file
from ..errors import PromptError
from ..files import check_target
from ..settings import BATCH, Settings
from ..summary import Summary
from ..traces.trace import make_folder, recorded
from .ranks import shares
from .shared import answers, loading, options, output, prompts
from .shared.loading import with_model
from .shared.options import ModelOptions, OutputOptions
from .shared.prompts import PromptOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..answer.selection import AnswerSelection
    from ..api.batch import BatchAnswer
    from ..models.base import LanguageModel
    from ..notes.notes import Notes
    from ..profiles.confidence import Verdict

MANY_ONLY = ("output", "resume", "batch")
ONE_ONLY = ("jsonl", "ask", "prefill_response", "prompt_cache_file", "attention_map")

Write = Callable[[Task, dict[str, Any]], None]


@dataclass(frozen=True)
class GenerateRequest:
    """What is answered, how, and where the answers go."""

    model: ModelOptions
    prompt: PromptOptions
    settings: Settings
    output: OutputOptions
    notes: Path | None
    """A folder of texts to quote from."""
    ask: bool
    trace: Path | None
    """A file; of several answers, a folder."""
    attention_map: bool
    n: int
    """Answers to each prompt."""
    file: Path | None
    """Where answers are kept."""
    resume: bool
    batch: int

    @property
    def many(self) -> bool:
        """Whether there may be more than one answer, or there is a file of answers."""
        return bool(self.prompt.file or self.n > 1 or self.file)


@dataclass(frozen=True)
class TracedTask(Task):
    """An answer that is written to a trace of its own when it ends."""

    write: Callable[[Task, BatchAnswer], None]

    def record(self, answer: BatchAnswer, batch: int) -> dict[str, Any]:
        if answer.error is None:
            self.write(self, answer)
        return super().record(answer, batch)


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    options.add_model(parser)
    options.add_yes(parser)
    prompts.add_prompt(parser, many=True)
    add("--n", type=options.questions, default=1, help="answers per prompt (default: 1)")
    options.add_answers(parser)
    what = "write each answer as a line of this file as soon as it ends (JSON Lines)"
    options.add_answers_file(parser, what, batch=None)
    options.add_mode(parser)
    options.add_settings(parser)
    options.add_constraint(parser)
    options.add_notes(parser)
    options.add_draft_model(parser)
    options.add_top_logprobs(parser, "with --jsonl or --trace")
    steps = "record every step in a file (JSON Lines); of several answers, in a folder of files"
    add("--trace", type=options.file, metavar="PATH", help=steps)
    options.add_attention_map(parser, "--trace")
    options.add_output(
        parser,
        totals="print one JSON object with text and totals",
        steps="print each step with its metrics as a line of JSON",
    )


def parse_request(arguments: argparse.Namespace) -> GenerateRequest:
    request = GenerateRequest(
        model=options.model_options(arguments),
        prompt=prompts.prompt_options(arguments),
        settings=options.to_settings(arguments),
        output=options.output_options(arguments),
        notes=arguments.notes,
        ask=arguments.ask,
        trace=arguments.trace,
        attention_map=arguments.attention_map,
        n=arguments.n,
        file=arguments.output,
        resume=arguments.resume,
        batch=arguments.batch or BATCH,
    )
    for name in ONE_ONLY if request.many else MANY_ONLY:
        if getattr(arguments, name):
            why = "is for one answer" if request.many else "needs --prompts, --n or --output"
            raise PromptError(f"--{name.replace('_', '-')} {why}: leave it out")
    if request.attention_map and not request.trace:
        raise PromptError("--attention-map is recorded in a trace: name its file by --trace")
    if request.attention_map and arguments.prompt_cache_file:
        raise PromptError(
            "--attention-map reads the whole text again, and a prompt cache does not hold it: leave"
            " --prompt-cache-file out"
        )
    if request.trace and request.settings.answers != 1:
        raise PromptError("--trace records one answer, and --answers draws several: leave one out")
    options.check_answers_file(arguments)
    return request


def run(arguments: argparse.Namespace) -> int:
    request = parse_request(arguments)
    request = replace(request, model=with_model(request.model, yes=arguments.yes))
    return answer_many(request) if request.many else answer_one(request)


def answer_one(request: GenerateRequest) -> int:
    if request.trace:
        check_target(request.trace)
    prompt = request.prompt.read()
    notes = loading.open_notes(request.notes)
    model, tokenizer = loading.load_model(request.model)
    draft = loading.load_draft(request.model, model, tokenizer)
    resolved = loading.resolve(request.settings, model)
    rule = unsure_rule(request.model.name, resolved.profile.abstain)
    cache, tokens = request.prompt.load_cache(), request.prompt.encode(tokenizer, prompt)
    from ..api.attention import attention_to
    from ..api.generate import stream_answers, stream_generate

    summary = Summary(prompt_tokens=len(tokens))
    asked = (model, tokenizer, tokens, resolved.settings)
    hooks: dict[str, Any] = {
        "on_prefill": output.prefill_progress(),
        "choose": answers.choose_branch if request.ask else None,
        "retrieve": notes.about(prompt) if notes else None,
        "draft_model": draft,
    }
    if resolved.settings.answers != 1:
        several, stream = stream_answers(*asked, prompt_cache=cache, **hooks)
        code = answers.show_answers(several, stream, request.output, summary)
        _show_totals(request.output, resolved.seed, rule.verdict(summary.metrics), summary, several)
        return code
    steps = stream_generate(*asked, prompt_cache=cache, **hooks)
    if request.trace:
        system = request.prompt.system_prompt
        header = prompts.trace_header(
            model, request.model.name, resolved.settings, tokens, prompt, system, request.notes
        )
        looked = attention_to(model, tokens) if request.attention_map else None
        steps = recorded(steps, request.trace, header, attention=looked)
    code = answers.show_steps(steps, request.output, summary)
    _show_totals(request.output, resolved.seed, rule.verdict(summary.metrics), summary)
    return code


def _show_totals(
    form: OutputOptions,
    seed: int,
    verdict: Verdict | None,
    summary: Summary,
    several: AnswerSelection | None = None,
) -> None:
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
    answers.print_statistics(
        summary,
        form.color,
        f"{summary.prompt_tokens} prompt tokens, first token after"
        f" {summary.time_to_first_token:.1f} s; {summary.completion_tokens} tokens at"
        f" {summary.tokens_per_second:.1f} tokens/s{speculation}",
        f"finished: {summary.ending}; seed {seed}",
        *answers.constrained(summary),
        *([] if several is None else [str(several)]),
    )
    answers.report_if_unsure(verdict)


def answer_many(request: GenerateRequest) -> int:
    tasks = all_tasks(_read_prompts(request), request.n)
    run = partial(_answer_tasks, request, loading.open_notes(request.notes))
    return shares.answer(request.model, request.file, tasks, run, resume=request.resume)


def _answer_tasks(
    request: GenerateRequest,
    notes: Notes | None,
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    tasks: Sequence[Task],
    file: AnswersFile | None,
) -> int:
    from ..answer.hooks import Hooks
    from ..api.batch import batch_generate

    loading.resolve(request.settings, model)
    if request.trace:
        make_folder(request.trace)
        write_trace = partial(_write_trace, request, model)
        tasks = [TracedTask(task.prompt, task.sample, write_trace) for task in tasks]
    draft = loading.load_draft(request.model, model, tokenizer)
    batch = batch_generate(
        model,
        tokenizer,
        _encode(request.prompt, tokenizer, tasks),
        [task.settings for task in tasks],
        batch=request.batch,
        steady=True,
        hooks=[
            Hooks(retrieve=notes.about(task.prompt.question) if notes else None, draft_model=draft)
            for task in tasks
        ],
    )
    most = min(request.batch, len(tasks))
    fewer = f": the memory does not allow {most}" if batch.size < most else ""
    output.info(f"{batch.size} answers at once{fewer}")
    write = file.write if file else _printing(request)
    with file or nullcontext():
        return answers.write_answers(
            partial(records, batch, tasks), len(tasks), write, request.file
        )


def _write_trace(
    request: GenerateRequest, model: LanguageModel, task: Task, answer: BatchAnswer
) -> None:
    line, settings = task.prompt, answer.settings or task.settings
    header = prompts.trace_header(
        model, request.model.name, settings, [], line.prompt, line.system_prompt, request.notes
    )
    turns = [dict(message) for message in line.messages] or header.messages
    header = replace(header, messages=turns, prompt_tokens=answer.prompt_tokens)
    path = Path(request.trace or "") / f"{line.line:03}-{task.sample + 1}.jsonl"
    for _ in recorded(answer.steps, path, header):
        pass


def _read_prompts(request: GenerateRequest) -> list[PromptLine]:
    prompt = request.prompt
    if prompt.file:
        return read_prompt_file(prompt.file, request.settings, prompt.system_prompt)
    return [PromptLine(1, request.settings, prompt.read(), system_prompt=prompt.system_prompt)]


def _encode(
    prompt: PromptOptions, tokenizer: TokenizerWrapper, tasks: Sequence[Task]
) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for line in {task.prompt.line: task.prompt for task in tasks}.values():
        with at_line(prompt.file, line.line) if prompt.file else nullcontext():
            found[line.line] = line.tokens(tokenizer, bare=prompt.bare)
    return [found[task.prompt.line] for task in tasks]


def _printing(request: GenerateRequest) -> Write:
    """Return a function that prints an answer: an object a line, or a text below a heading."""

    def write_text(task: Task, record: dict[str, Any]) -> None:
        prompt = f"prompt {task.prompt.line}, " if request.prompt.file else ""
        output.write(f"── {prompt}answer {task.sample + 1}, seed {record['seed']} ──\n")
        output.write_text(record.get("text", "") + "\n")

    def write_json(task: Task, record: dict[str, Any]) -> None:
        output.write_json(record)

    return write_json if request.output.json else write_text
