"""`entropix generate`: answer one prompt; or several prompts, or one several times."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .. import limits
from ..api.answers_file import Task, all_tasks
from ..api.prompt_file import PromptLine, read_prompt_file
from ..errors import PromptError
from ..files import check_target
from ..settings import BATCH, Settings
from ..summary import Summary
from ..traces.trace import recorded
from .shared import answers, display, loading, output
from .shared.options import FIRST, Count, File, Form, ModelOptions, command, without

if TYPE_CHECKING:
    from ..answer.selection import AnswerSelection


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
    output_file: Annotated[File, Parameter(name=["--output", "-o"])] = None,
    resume: bool = False,
    batch: Count | None = None,
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
        output_file: write each answer as a line of this file as soon as it ends (JSON Lines)
        resume: generate only the answers that --output does not have
        batch: answers at once (default: 8; fewer if memory is short)
        trace: record every step in a file (JSON Lines)
        attention_map: with --trace, record what each token looked at; reads the text once more
    """
    if (prompt is None) == (prompts is None):
        raise PromptError("name one prompt by --prompt, or a file of them by --prompts")
    if trace and settings.answers != 1:
        raise PromptError("--trace records one answer, and --answers draws several: leave one out")
    if ignore_chat_template and system_prompt is not None:
        raise PromptError("--system-prompt needs the template that --ignore-chat-template skips")
    many = bool(prompts or output_file or n > 1)
    of_many = {"--resume": resume, "--batch": batch}
    of_one = {"--jsonl": form.jsonl, "--trace": trace, "--attention-map": attention_map}
    for name, value in (of_one if many else of_many).items():
        if value:
            why = "is for one answer" if many else "needs --prompts, --n or --output"
            raise PromptError(f"{name} {why}: leave it out")
    if attention_map and not trace:
        raise PromptError("--attention-map is recorded in a trace: name its file by --trace")
    if resume and not output_file:
        raise PromptError("--resume continues a file of answers: name it with --output")
    model = loading.with_model(model)
    if many:
        if prompts:
            lines = read_prompt_file(prompts, settings, system_prompt)
        else:
            lines = [PromptLine(1, settings, _read(prompt), system_prompt=system_prompt)]
        answer = partial(
            answers.answer_prompts,
            batch=batch or BATCH,
            bare=ignore_chat_template,
            notes=notes,
            prompts=prompts,
        )
        show = partial(_print_answer, form.json, bool(prompts))
        return answers.answer_missing(
            model, all_tasks(lines, n), answer, output_file, show, resume=resume
        )
    if trace:
        check_target(trace)
    text = _read(prompt)
    passages = loading.open_notes(notes)
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
        first = (step for number, step in drawn if number == 0)
        live = sys.stdout.isatty() and not (form.json or form.jsonl)
        code = display.show_steps(first, form, Summary(), quiet=not live)
        _show_chosen(several, form, summary, live)
    else:
        steps = stream_generate(loaded, tokenizer, tokens, resolved.settings, hooks=hooks)
        if trace:
            header = loading.trace_header(
                loaded, model.name, resolved, len(tokens), text, system_prompt, notes
            )
            looked = attention_to(loaded, tokens) if attention_map else None
            steps = recorded(steps, trace, header, attention=looked)
        code = display.show_steps(steps, form, summary)
    verdict = resolved.profile.abstain.verdict(summary.metrics)
    if form.json:
        more: dict[str, Any] = {"seed": resolved.seed}
        more |= {} if verdict is None else {"certainty": verdict.to_dict()}
        more |= {} if several is None else {"answers": several.to_dict()}
        output.write_json(summary.to_dict() | more, indent=2)
    elif not form.jsonl:
        output.write("\n")
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


def _read(prompt: str | None) -> str:
    if prompt != "-":
        # Bytes that are not UTF-8 arrive as lone surrogates, which no tokenizer can encode.
        text = (prompt or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    else:
        text = limits.read_stdin(PromptError).decode("utf-8", "replace")
    if not text:
        raise PromptError("the prompt is empty: write a question")
    return text


def _print_answer(as_json: bool, from_file: bool, task: Task, record: dict[str, Any]) -> None:
    if as_json:
        output.write_json(record)
        return
    prompt = f"prompt {task.prompt.line}, " if from_file else ""
    output.write(f"── {prompt}answer {task.sample + 1}, seed {record['seed']} ──\n")
    output.write(output.shown(record.get("text", "")) + "\n")


def _show_chosen(several: AnswerSelection, form: Form, summary: Summary, live: bool) -> None:
    """Print the chosen one of several answers, unless it is the first, which was shown live."""
    chosen, drawn = several.chosen, several.candidates
    shown = live and chosen is drawn[0]
    if live and not shown:
        output.write(f"\n── answer {drawn.index(chosen) + 1} of {len(drawn)} was chosen ──\n")
    display.show_steps(chosen.steps, form, summary, quiet=shown)
    summary.finish_reason = summary.finish_reason or "interrupted"
    if form.jsonl:
        output.write_json({"answers": several.to_dict()})


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
