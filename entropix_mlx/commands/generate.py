"""`entropix generate`: answer one prompt; or several prompts, or one several times."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .. import limits
from ..errors import PromptError
from ..files import check_target
from ..settings import Settings
from .shared import output
from .shared.options import (
    FIRST,
    BatchOptions,
    Count,
    File,
    Form,
    ModelOptions,
    command,
    without,
)

if TYPE_CHECKING:
    from ..answer.selection import AnswerSelection
    from ..api.answers_file import Task
    from ..step import Step
    from ..summary import Summary


@command(*without(), loops="stop")
def generate(
    *,
    prompt: Annotated[
        str | None, Parameter(name=["--prompt", "-p"], group=FIRST, allow_leading_hyphen=True)
    ] = None,
    prompts: File = None,
    system_prompt: Annotated[str | None, Parameter(group=FIRST)] = None,
    ignore_chat_template: bool = False,
    model: ModelOptions = ModelOptions(),
    settings: Settings,
    notes: File = None,
    n: Count = 1,
    batch: BatchOptions = BatchOptions(),
    trace: File = None,
    attention_map: bool = False,
    form: Form = Form(),
) -> int:
    """Answer one prompt, or every prompt of a file.

    Args:
        prompt: the prompt; - reads it from stdin
        prompts: answer every line of a file; those of a .jsonl file hold a prompt or messages and
            settings of their own
        system_prompt: instructions that precede the prompt
        ignore_chat_template: continue the prompt as plain text
        notes: quote passages from the texts in this folder where the model is uncertain
        n: answers to each prompt
        trace: record every step in a file (JSON Lines)
        attention_map: with --trace, record what each token looked at; reads the text once more
    """
    if (prompt is None) == (prompts is None):
        raise PromptError("name one prompt by --prompt, or a file of them by --prompts")
    if trace and settings.answers != 1:
        raise PromptError("--trace records one answer, and --answers draws several: leave one out")
    if ignore_chat_template and system_prompt is not None:
        raise PromptError("--system-prompt needs the template that --ignore-chat-template skips")
    if attention_map and not trace:
        raise PromptError("--attention-map is recorded in a trace: name its file by --trace")
    # Slow to import, and not needed for --help.
    from ..api.answers_file import all_tasks
    from ..api.prompt_file import PromptLine, read_prompt_file
    from ..notes import Notes
    from ..summary import Summary
    from ..traces.trace import recorded
    from .shared import answers, display, loading

    model = loading.with_model(model)
    if prompts or batch.output or n > 1:
        if form.jsonl or trace:
            raise PromptError(
                "--jsonl and --trace are for one answer to one prompt: leave them out"
            )
        if prompts:
            lines = read_prompt_file(prompts, settings, system_prompt)
        else:
            lines = [PromptLine(1, settings, _text(prompt or ""), system_prompt=system_prompt)]
        answer = partial(
            answers.answer_prompts,
            batch=batch.size,
            bare=ignore_chat_template,
            notes=notes,
            prompts=prompts,
        )
        show = partial(_print_answer, form.json, bool(prompts))
        return answers.answer_missing(model, all_tasks(lines, n), answer, batch, show)
    if trace:
        check_target(trace)
    text = _text(prompt or "")
    passages = Notes(notes) if notes else None
    loaded, tokenizer = loading.load_model(model)
    resolved = loading.resolve(settings, loaded)
    from ..answer.hooks import Hooks
    from ..api.attention import attention_to
    from ..api.generate import stream_answers, stream_generate
    from ..api.prompts import chat_prompt, text_prompt

    if ignore_chat_template:
        tokens = text_prompt(tokenizer, text)
    else:
        tokens = chat_prompt(tokenizer, text, system_prompt)
    summary = Summary(prompt_tokens=len(tokens))
    hooks = Hooks(
        on_prefill=output.progress("reading the prompt", unit=" tokens"),
        retrieve=passages.about(text) if passages else None,
    )
    several = None
    if settings.answers != 1:
        several, drawn = stream_answers(loaded, tokenizer, tokens, resolved.settings, hooks=hooks)
        steps = _chosen(several, drawn)
    else:
        steps = stream_generate(loaded, tokenizer, tokens, resolved.settings, hooks=hooks)
        if trace:
            header = loading.trace_header(
                loaded, model.name, resolved, len(tokens), text, system_prompt, notes
            )
            looked = attention_to(loaded, tokens) if attention_map else None
            steps = recorded(steps, trace, header, attention=looked)
    code = display.show_steps(steps, form, summary)
    summary.finish_reason = summary.finish_reason or "interrupted"
    verdict = resolved.profile.abstain.verdict(summary.metrics)
    if form.json:
        more: dict[str, Any] = {"seed": resolved.seed}
        more |= {} if verdict is None else {"certainty": verdict.to_dict()}
        more |= {} if several is None else {"answers": several.to_dict()}
        output.write_json(summary.to_dict() | more, indent=2)
    elif not form.jsonl:
        output.write("\n")
    elif several is not None:
        output.write_json({"answers": several.to_dict()})
    display.print_statistics(
        summary,
        form.color,
        _speed(summary),
        f"finished: {summary.ending}; seed {resolved.seed}",
        *display.constrained(summary),
        *([] if several is None else [str(several)]),
    )
    display.report_if_unsure(verdict)
    return code


def _text(prompt: str) -> str:
    if prompt == "-":
        prompt = limits.read_named(prompt, limits.TEXT_BYTES, PromptError)
    if not prompt:
        raise PromptError("the prompt is empty: write a question")
    # Bytes that are not UTF-8 arrive as lone surrogates, which no tokenizer can encode.
    return prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _print_answer(as_json: bool, from_file: bool, task: Task, record: dict[str, Any]) -> None:
    if as_json:
        output.write_json(record)
        return
    prompt = f"prompt {task.prompt.line}, " if from_file else ""
    output.write(f"── {prompt}answer {task.sample + 1}, seed {record['seed']} ──\n")
    output.write(output.shown(record.get("text", "")) + "\n")


def _chosen(
    several: AnswerSelection, drawn: Generator[tuple[int, Step], None, None]
) -> Iterator[Step]:
    """Yield the chosen answer once all are there, or as many as were when Ctrl-C ended them."""
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(drawn):
        for _ in drawn:
            pass
    yield from several.chosen.steps


def _speed(summary: Summary) -> str:
    speculation = ""
    if summary.accepted:
        speculation = (
            f", {summary.tokens_per_pass:.2f} tokens/forward pass"
            f" ({summary.accepted}/{summary.proposed} proposed tokens accepted)"
        )
    return (
        f"{summary.prompt_tokens} prompt tokens, first token after"
        f" {summary.time_to_first_token:.1f} s; {summary.completion_tokens} tokens at"
        f" {summary.tokens_per_second:.1f} tokens/s{speculation}"
    )
