"""`entropix read`: measure a text that is given, as the model sees it; nothing is generated."""

from __future__ import annotations

import math
from typing import Annotated

from cyclopts import Parameter

from .. import limits
from ..errors import PromptError
from ..files import check_target, keep_source
from ..settings import Settings
from ..summary import Summary
from ..traces.trace import recorded
from .shared import display, loading, output
from .shared.options import FIRST, File, Form, ModelOptions, command


@command("sampler", "profile", "changes", "attention_layers", "top_logprobs", seed=0)
def read(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    prompt: Annotated[
        str | None, Parameter(name=["--prompt", "-p"], group=FIRST, allow_leading_hyphen=True)
    ] = None,
    system_prompt: Annotated[str | None, Parameter(group=FIRST)] = None,
    model: ModelOptions = ModelOptions(),
    settings: Settings,
    trace: Annotated[File, Parameter(name=["--output", "-o"], group=FIRST)] = None,
    attention_map: bool = False,
    form: Form = Form(),
) -> int:
    """Measure a text that is given, without generating.

    Args:
        file: the text, in UTF-8; - reads it from stdin
        prompt: the question that the text answers
        system_prompt: instructions that precede the prompt
        trace: record every token as a trace, for entropix view
        attention_map: with --output, record what each token looked at; reads the text once more
    """
    if system_prompt is not None and prompt is None:
        raise PromptError("--system-prompt precedes a question: give one by --prompt")
    if attention_map and not trace:
        raise PromptError("--attention-map is recorded in a trace: name its file by --output")
    keep_source(trace, file)
    if trace:
        check_target(trace)
    text = limits.read_named(file, limits.TEXT_BYTES, PromptError)
    if not text:
        raise PromptError(f"{file} is empty: there is no text to measure")
    loaded, tokenizer = loading.load_model(model)
    resolved = loading.resolve(settings, loaded)
    from ..answer.hooks import Hooks
    from ..api.attention import attention_to
    from ..api.prompts import chat_prompt
    from ..api.score import stream_score, text_tokens

    question = None if prompt is None else chat_prompt(tokenizer, prompt, system_prompt)
    before, tokens = text_tokens(tokenizer, text, question)
    output.info(f"reading {len(tokens):,} tokens …")
    context = loaded.config.max_position_embeddings
    if len(before) + len(tokens) > context and not attention_map:
        output.info(f"the context holds {context:,}: the text is read in pieces")
    steps = stream_score(
        loaded,
        tokenizer,
        tokens,
        resolved.settings,
        after=before,
        split=not attention_map,
        hooks=Hooks(on_prefill=output.progress("reading the text", unit=" tokens")),
    )
    if trace:
        header = loading.trace_header(
            loaded, model.name, resolved, len(before), prompt, system_prompt
        )
        looked = attention_to(loaded, before) if attention_map else None
        steps = recorded(steps, trace, header, attention=looked)
    summary = Summary(len(before))
    code = display.show_steps(steps, form, summary)
    logprob = math.fsum(summary.metrics.logprob)
    totals = {
        "logprob": logprob,
        "perplexity": math.exp(-summary.scores.get("mean_logprob", 0.0)),
        "bits_per_byte": -logprob / math.log(2) / max(1, len(text.encode("utf-8", "replace"))),
    }
    if form.json:
        output.write_json(summary.to_dict() | totals, indent=2)
    elif not (form.jsonl or summary.text.endswith("\n")):
        output.write("\n")
    display.print_statistics(
        summary,
        form.color,
        f"{summary.completion_tokens:,} tokens: log p {logprob:.1f}, perplexity"
        f" {totals['perplexity']:.2f}, {totals['bits_per_byte']:.3f} bits per byte",
    )
    return code
