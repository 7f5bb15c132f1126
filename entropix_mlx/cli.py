"""The command line: `entropix` and ``python -m entropix_mlx``.

Each subcommand parses its options, calls the library and prints. Text goes to stdout, everything
about it to stderr. `main` alone turns an error into a message and an exit code: 2 for a mistake
that the user can mend, 130 after an interrupt, 141 when nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from ._version import __version__
from .commands import convert, models
from .errors import EntropixError, PromptError
from .palette import LOOKS, paint, paint_step
from .step import Step
from .summary import Summary

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from .llama import Model

EXIT_USAGE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except EntropixError as error:
        print(f"entropix: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it exits; there must be somewhere for that to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="entropix",
        description="Generate text with a local model that watches its own uncertainty.",
    )
    parser.add_argument("--version", action="version", version=f"entropix_mlx {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_generate(commands.add_parser("generate", help="answer one prompt", allow_abbrev=False))
    for command, name, purpose in (
        (convert, "convert", "write a model as a folder that mlx-lm loads, too"),
        (models, "models", "list the models on this machine"),
    ):
        command.add_parser(commands.add_parser(name, help=purpose, allow_abbrev=False))
    return parser


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_generate)
    add = parser.add_argument
    add("--model", help="folder, .gguf file or hub id (default: the demo model if installed)")
    add("--dequantize", action=argparse.BooleanOptionalAction, help="unpack quantized weights: more"
        " memory, and on a CPU more speed (default: on a CPU, if memory allows)")  # fmt: skip
    add("--prompt", "-p", required=True, help="what to ask; - reads it from stdin")
    add("--system-prompt", help="instructions that precede the prompt")
    add("--ignore-chat-template", action="store_true", help="continue the bare prompt text")
    add("--max-tokens", "-m", type=_token_count, default=256, help="default 256; -1: no limit")
    add("--sampler", default="entropix", help="entropix (default), greedy, temperature, top_p,"
        " min_p, top_n_sigma, p_less or adaptive_temperature")  # fmt: skip
    add("--profile", default="reference", help="thresholds: a name or a TOML file")
    add("--temp", type=float, help="base temperature (0 makes a baseline greedy)")
    add("--top-p", type=float, help="keep the most probable tokens that reach this mass")
    add("--top-k", type=int, help="keep this many of the most probable tokens")
    add("--min-p", type=float, help="keep tokens of at least this share of the top probability")
    add("--seed", type=int, help="repeat a generation (default: a fresh one, shown at the end)")
    add("--attention-layers", choices=("last", "all"), default="last",
        help="whose attention is measured (default: last)")  # fmt: skip
    add("--top-logprobs", type=_count, default=0, metavar="N",
        help="list the N most probable tokens of each step (with --jsonl)")  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one object with text and totals")
    form.add_argument("--jsonl", action="store_true", help="print one step a line, measured")
    add("--color", choices=("auto", "always", "never"), default="auto",
        help="colour tokens by strategy (default: auto, on a terminal)")  # fmt: skip
    add("--verbose", nargs="?", type=_boolean, const=True, default=True, metavar="BOOL",
        help="statistics on stderr (default: true)")  # fmt: skip


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "t", "1", "yes"):
        return True
    if text.lower() in ("false", "f", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"true or false, not {text!r}")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number of at least 0, not {text!r}")
    return int(text)


def _token_count(text: str) -> int:
    if text != "-1" and not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(
            f"a positive whole number, or -1 for no limit, not {text!r}"
        )
    return int(text)


def run_generate(arguments: argparse.Namespace) -> int:
    """Answer one prompt."""
    prompt = _read_prompt(arguments.prompt)
    model, tokenizer = _load(arguments)
    tokens = _encode(tokenizer, prompt, arguments)
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    summary = Summary(prompt_tokens=len(tokens))
    colour = _wants_colour(arguments.color, sys.stdout)
    code = 0
    try:
        for step in _steps(model, tokenizer, tokens, seed, arguments):
            summary.add(step)
            if arguments.jsonl:
                _write(json.dumps(step.to_dict(), ensure_ascii=False) + "\n")
            elif not arguments.json:
                _write(paint_step(step) if colour else step.text)
    except KeyboardInterrupt:
        summary.finish_reason = "interrupted"
        code = EXIT_INTERRUPTED
    if arguments.json:
        _write(json.dumps(summary.to_dict() | {"seed": seed}, ensure_ascii=False, indent=2) + "\n")
    elif not arguments.jsonl:
        _write("\n")
    if arguments.verbose:
        _print_statistics(summary, seed, _wants_colour(arguments.color, sys.stderr))
    return code


def _steps(
    model: Model,
    tokenizer: TokenizerWrapper,
    tokens: list[int],
    seed: int,
    arguments: argparse.Namespace,
) -> Iterator[Step]:
    from .generation import stream_generate

    return stream_generate(
        model,
        tokenizer,
        tokens,
        arguments.max_tokens,
        sampler=arguments.sampler,
        profile=arguments.profile,
        temperature=arguments.temp,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        min_p=arguments.min_p,
        seed=seed,
        attention_layers=arguments.attention_layers,
        top_logprobs=arguments.top_logprobs,
        on_prefill=_progress(arguments.verbose),
    )


def _load(arguments: argparse.Namespace) -> tuple[Model, TokenizerWrapper]:
    from .loading import default_model, load
    from .policy import Overrides, make_policy

    # A mistake in the options should not wait for the weights.
    overrides = Overrides(arguments.temp, arguments.top_p, arguments.top_k, arguments.min_p)
    make_policy(arguments.sampler, arguments.profile, overrides)
    name = arguments.model or default_model()
    if arguments.verbose:
        print(f"loading {os.path.basename(name) or name} …", file=sys.stderr, flush=True)
    return load(name, dequantize=arguments.dequantize)


def _read_prompt(argument: str) -> str:
    if argument != "-":
        # Bytes that are not UTF-8 arrive as lone surrogates, which no tokenizer can encode.
        return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if sys.stdin is None:
        raise PromptError("there is no stdin to read the prompt from: give --prompt a text")
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _encode(tokenizer: TokenizerWrapper, prompt: str, arguments: argparse.Namespace) -> list[int]:
    from .generation import chat_prompt, text_prompt

    if not arguments.ignore_chat_template:
        return chat_prompt(tokenizer, prompt, arguments.system_prompt)
    if arguments.system_prompt is not None:
        raise PromptError(
            "--system-prompt needs the chat template that --ignore-chat-template skips"
        )
    return text_prompt(tokenizer, prompt)


def _progress(verbose: bool) -> Callable[[int, int], None] | None:
    """Return a callback that shows the prefill of a long prompt on a terminal."""
    if not verbose or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\r\x1b[K" if done >= total else ""
        print(
            f"\rreading the prompt: {done}/{total} tokens{end}", end="", file=sys.stderr, flush=True
        )

    return show


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _wants_colour(choice: str, stream: TextIO) -> bool:
    """Decide on ANSI colours as NO_COLOR (no-color.org) asks: an explicit choice wins over it."""
    if choice != "auto":
        return choice == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _print_statistics(summary: Summary, seed: int, colour: bool) -> None:
    shares = []
    for strategy, look in LOOKS.items():
        if count := summary.strategies[strategy]:
            label = f"{look.glyph} {strategy} {count / summary.completion_tokens:.0%}"
            shares.append(paint(label, strategy) if colour else label)
    lines = [
        "─" * 40,
        "  ".join(shares) or "no tokens",
        f"entropy {summary.mean_entropy:.2f} bits, varentropy {summary.mean_varentropy:.2f} bits²"
        " (means)",
        f"{summary.prompt_tokens} prompt tokens, first token after"
        f" {summary.time_to_first_token:.1f} s; {summary.completion_tokens} tokens at"
        f" {summary.tokens_per_second:.1f} tokens/s",
        f"finished: {summary.finish_reason}; seed {seed}",
    ]
    print("\n".join(lines), file=sys.stderr)
