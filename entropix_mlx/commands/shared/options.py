"""Options that several subcommands share, and the records that they are read into.

`add_…` declares options. `model_options`, `output_options` and `to_settings` read them from the
parsed arguments; behind these and a command's own parse function, no code sees the arguments.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import limits
from ...constraints.constraint import CHOICE, GRAMMAR, JSON_SCHEMA, REGEX, Constraint
from ...errors import ConstraintError, ProfileError, PromptError, SettingsError, brief
from ...files import expanded
from ...profiles.fields import Number, overlaid
from ...profiles.profile import AUTO, Profile
from ...profiles.sampler_specs import parameters
from ...profiles.sections import MOST_FORKS
from ...records import parse_json, parse_toml
from ...samplers.registry import SAMPLERS
from ...settings import ATTENTION_LAYERS, BATCH, LOOPS, Settings, draft_length

if TYPE_CHECKING:
    from ..ranks.shares import Ranks

DEFAULT_SAMPLER = Settings.sampler
EXTRAS = (
    "adapter_path",
    "extra_eos_tokens",
    "chat_template_config",
    "kv_bits",
    "kv_group_size",
    "quantized_kv_start",
)
"""Fields of `checkpoints.loading.Extras` that options state."""


@dataclass(frozen=True)
class ModelOptions:
    """Which model to load, and how."""

    model: str | None
    """A folder, a file or a hub id; None for the demo model."""
    dequantize: bool | None
    extras: Mapping[str, Any]
    """By names in `EXTRAS`."""
    draft_model: str | None
    draft_tokens: int | None
    ranks: Ranks | None
    """The group of ranks, where there is one."""
    whole: bool
    """Whether each rank loads the whole model, to answer a share of the prompts."""

    @property
    def name(self) -> str:
        from ...checkpoints.locate import default_model

        name = self.model if self.model is not None else default_model()
        return os.path.basename(name.rstrip("/")) or name


@dataclass(frozen=True)
class OutputOptions:
    """How answers are printed: as text, unless one of the two kinds of JSON is asked for."""

    json: bool
    jsonl: bool
    color: str


def model_options(arguments: argparse.Namespace) -> ModelOptions:
    given = vars(arguments)
    draft_model, draft_tokens = given.get("draft_model"), given.get("num_draft_tokens")
    if draft_tokens is not None:
        draft_length(draft_tokens)
        if draft_model is None:
            raise SettingsError(
                "--num-draft-tokens needs a draft model: name it with --draft-model"
            )
    return ModelOptions(
        model=arguments.model,
        dequantize=arguments.dequantize,
        extras={name: given[name] for name in EXTRAS},
        draft_model=draft_model,
        draft_tokens=draft_tokens,
        ranks=given.get("ranks"),
        whole=given.get("mode") == "data",
    )


def output_options(arguments: argparse.Namespace) -> OutputOptions:
    return OutputOptions(arguments.json, arguments.jsonl, arguments.color)


def to_settings(arguments: argparse.Namespace, **fixed: Any) -> Settings:
    """Return the settings that the options describe, with some fields `fixed`.

    Raises:
        SettingsError, SamplerError, ProfileError: they do not fit.
    """
    given = vars(arguments) | fixed
    values = {field.name: given[field.name] for field in fields(Settings) if field.name in given}
    if (constraint := _constraint(given)) is not None:
        values["constraint"] = constraint
    if given.get("logit_bias") is not None:
        values["logit_bias"] = dict(given["logit_bias"])
    changes = _interventions(given)
    for assignment in given.get("assignments", ()):
        changes = overlaid(changes, changes_of(assignment))
    settings = Settings(**values | {"changes": changes})
    settings.check()
    return settings


def _constraint(given: Mapping[str, Any]) -> Constraint | None:
    """Return the constraint of --schema, --regex, --choice or --grammar.

    Raises:
        ConstraintError: a file cannot be read, or states no constraint.
    """
    if given.get("schema") is not None:
        return Constraint(JSON_SCHEMA, read_schema(given["schema"]))
    if given.get("grammar") is not None:
        text = limits.read_named(given["grammar"], limits.CONFIGURATION_BYTES, ConstraintError)
        return Constraint(GRAMMAR, text)
    stated = {REGEX: given.get("regex"), CHOICE: given.get("choice")}
    return next((Constraint(kind, value) for kind, value in stated.items() if value), None)


def read_schema(path: Path) -> Any:
    """Return the JSON schema of a file.

    Raises:
        ConstraintError: it cannot be read, or is not JSON.
    """
    text = limits.read_named(path, limits.CONFIGURATION_BYTES, ConstraintError)
    return parse_json(text, str(path), ConstraintError)


def _interventions(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the fields of the profile that --think, --no-think, --ask and --…branch… change.

    What says how to fork turns forks on; only the sampler cntp always has them.
    """
    think: dict[str, Any] = {}
    branches: dict[str, Any] = {}
    if given.get("think"):
        think["max_insertions"] = Profile.load().think.max_insertions
    if given.get("no_think"):
        think["max_insertions"] = 0
    for name in ("width", "depth"):
        if given.get(f"branch_{name}") is not None:
            branches[name] = given[f"branch_{name}"]
    turned_on = given.get("branch") or given.get("ask") or branches
    forks = {"max_branches": MOST_FORKS} if turned_on else {}
    if given.get("no_branch"):
        branches["max_branches"] = 0
    return {"think": think, "branch": forks | branches, "cntp": branches}


def changes_of(assignment: str) -> dict[str, Any]:
    """Return the fields of the profile that one --set changes: it is a line of TOML."""
    source = f"--set {assignment}"
    try:
        changes = parse_toml(assignment)
    except ValueError as error:
        raise ProfileError(
            f"{source}: not FIELD=VALUE with a TOML value (a text needs quotes): {error}"
        ) from error
    if not changes:
        raise ProfileError(f"{source}: nothing is set; write FIELD=VALUE")
    Profile.load().replace(changes, source)  # so that an error names this option
    return changes


def samplers() -> str:
    *names, last = SAMPLERS
    return f"{', '.join(names)} or {last}"


def add_number_of_answer(parser: argparse.ArgumentParser) -> None:
    which = "which answer to show, if there are several (default: 1)"
    parser.add_argument("--answer", type=positive, default=1, metavar="N", help=which)


def add_model(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    which = "folder, .gguf file or hub id (default: the demo model, if downloaded)"
    add("--model", type=nonempty, help=which)
    add(
        "--dequantize",
        action=argparse.BooleanOptionalAction,
        help="unpack quantized weights, which takes memory and is faster on a CPU (default: on a"
        " CPU with enough memory)",
    )
    add = parser.add_argument_group("as in mlx-lm").add_argument
    add("--adapter-path", type=path, metavar="DIR", help="LoRA or DoRA weights to add to the model")
    add(
        "--extra-eos-token",
        action="append",
        dest="extra_eos_tokens",
        default=[],
        metavar="TOKEN",
        help="another token that ends an answer; may be repeated",
    )
    add(
        "--chat-template-config",
        type=json_object,
        default={},
        metavar="JSON",
        help="""variables for the chat template, as in '{"enable_thinking": false}'""",
    )
    add("--kv-bits", type=int, metavar="N", help="quantize the KV cache to N bits")
    size = "values in a group that is quantized together (default: 64)"
    add("--kv-group-size", type=int, default=64, metavar="N", help=size)
    start = "quantize the KV cache once it holds N tokens (default: 5000)"
    add("--quantized-kv-start", type=int, default=5000, metavar="N", help=start)


def add_yes(parser: argparse.ArgumentParser) -> None:
    what = "if there is no model, download the demo model without asking"
    parser.add_argument("--yes", action="store_true", help=what)


def add_draft_model(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    smaller = (
        "a smaller model with the same tokenizer that proposes tokens; the text stays the same"
    )
    add("--draft-model", type=nonempty, metavar="M", help=smaller)
    most = "tokens proposed at a time (default: 3)"
    add("--num-draft-tokens", type=positive, metavar="N", help=most)


def add_mode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode",
        choices=("tensor", "data"),
        default="tensor",
        help="under mlx.launch: split the model over the machines (tensor, the default), or give"
        " each the whole model and a share of the prompts (data)",
    )


def add_notes(parser: argparse.ArgumentParser) -> None:
    what = "quote passages from the texts in this folder where the model is uncertain"
    parser.add_argument("--notes", type=file, metavar="FOLDER", help=what)


def add_settings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--sampler", default=DEFAULT_SAMPLER, help=f"{samplers()} (default: {DEFAULT_SAMPLER})")
    add("--seed", type=int, help="makes an answer repeatable (default: random, and printed)")
    add_generation(parser)
    add("--ask", action="store_true", help="choose the branch yourself where scores are close")


def add_answers(parser: argparse.ArgumentParser) -> None:
    several = (
        "choose the best of N answers; auto draws more than one only where the first is unsure"
    )
    add = parser.add_argument
    add("--answers", type=number_or_mode, default=1, metavar="auto|N", help=several)


def add_constraint(parser: argparse.ArgumentParser) -> None:
    add = parser.add_mutually_exclusive_group().add_argument
    add("--schema", type=file, metavar="FILE", help="answer with JSON that fits this JSON schema")
    add("--regex", type=nonempty, metavar="R", help="answer with a text that matches as a whole")
    choice = "answer with one of these texts; repeated for each"
    add("--choice", action="append", type=nonempty, metavar="TEXT", help=choice)
    grammar = "answer with a text of this grammar, Lark or GBNF"
    add("--grammar", type=file, metavar="FILE", help=grammar)


def add_generation(parser: argparse.ArgumentParser) -> None:
    """Add the options of `Settings` other than sampler and seed."""
    add = parser.add_argument
    most = "tokens of an answer (default: %(default)s; -1: no limit)"
    add("--max-tokens", "-m", type=token_count, default=Settings.max_tokens, metavar="N", help=most)
    before = "end an answer before this text; may be repeated"
    add("--stop", action="append", default=[], metavar="TEXT", help=before)
    add_loops(parser)
    add_thinking_budget(parser)
    add_profile(parser)
    for name, parameter in parameters().items():
        option = "--temp" if name == "temperature" else f"--{name.replace('_', '-')}"
        if isinstance(parameter.rule, Number):
            kind = int if parameter.rule.whole else float
            add(option, dest=name, type=kind, metavar="N", help=parameter.help)
        else:
            each = f"{parameter.help}; may be repeated"
            add(option, dest=name, action="append", type=bias, metavar="TOKEN=BIAS", help=each)
    add("--think", action="store_true", help="insert thoughts even if the profile does not")
    add("--no-think", action="store_true", help="never insert thoughts; overrides --think")
    add("--branch", action="store_true", help="compare branches even if the profile does not")
    add("--no-branch", action="store_true", help="never compare branches; overrides --branch")
    add("--branch-width", type=positive, metavar="K", help="compare K branches at a fork")
    add("--branch-depth", type=positive, metavar="L", help="of at most L tokens each")
    add_attention_layers(parser)
    add(
        "--speculation",
        type=number_or_mode,
        default=Settings.speculation,
        metavar="auto|off|N",
        help="propose N tokens at a time where the text repeats itself (default: auto)",
    )


def add_loops(parser: argparse.ArgumentParser, default: str = Settings.loops) -> None:
    what = "stop: end an answer that only repeats itself (default: %(default)s)"
    parser.add_argument("--loops", choices=LOOPS, default=default, help=what)


def add_thinking_budget(parser: argparse.ArgumentParser) -> None:
    most = "most tokens of reasoning; then it is ended (default: no limit)"
    parser.add_argument("--thinking-budget", type=count, metavar="N", help=most)


def add_profile(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    which = (
        "thresholds: a name, a TOML file, or auto (the default): the profile calibrated for the"
        " model, else reference"
    )
    add("--profile", default=AUTO, help=which)
    add(
        "--set",
        action="append",
        default=[],
        dest="assignments",
        metavar="FIELD=VALUE",
        help="change a field of the profile, as in thresholds.low_entropy=0.2; may be repeated",
    )


def add_attention_layers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--attention-layers",
        choices=ATTENTION_LAYERS,
        default=Settings.attention_layers,
        help="layers whose attention is measured (default: %(default)s)",
    )


def add_attention_map(parser: argparse.ArgumentParser, trace: str) -> None:
    what = f"with {trace}, record what each token looked at, for report; reads the text once more"
    parser.add_argument("--attention-map", action="store_true", help=what)


def add_top_logprobs(parser: argparse.ArgumentParser, where: str) -> None:
    listed = f"list the N most probable tokens of each step ({where})"
    parser.add_argument("--top-logprobs", type=count, default=0, metavar="N", help=listed)


def add_answers_file(parser: argparse.ArgumentParser, what: str, batch: int | None) -> None:
    """Add --output, with the help text `what`, --resume, and --batch with its default."""
    add = parser.add_argument
    add("--output", "-o", type=file, metavar="FILE", help=what)
    add(
        "--resume",
        action="store_true",
        help="generate only the answers that --output does not have",
    )
    most = f"answers at once (default: {BATCH}; fewer if memory is short)"
    add("--batch", type=positive, default=batch, metavar="N", help=most)


def check_answers_file(arguments: argparse.Namespace) -> None:
    if arguments.resume and not arguments.output:
        raise PromptError("--resume continues a file of answers: name it with --output")


def add_output(parser: argparse.ArgumentParser, *, totals: str, steps: str) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=totals)
    form.add_argument("--jsonl", action="store_true", help=steps)
    add_color(parser)
    add_verbose(parser)


def add_color(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour tokens by strategy (default: auto, on a terminal)",
    )


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Add the option about remarks on stderr; `output.info` follows it."""
    parser.add_argument(
        "--verbose",
        nargs="?",
        type=boolean,
        const=True,
        default=True,
        metavar="BOOL",
        help="print statistics to stderr (default: true)",
    )


def boolean(text: str) -> bool:
    if text.lower() in ("true", "t", "1", "yes"):
        return True
    if text.lower() in ("false", "f", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, not {text!r}")


def nonempty(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty: leave the option out for the default")
    return text


def file(text: str) -> Path:
    """Parse a path: the shell leaves the ``~`` of ``--trace=~/file`` as it is."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: name a file")
    return expanded(text, argparse.ArgumentTypeError)


def path(text: str) -> str:
    """Parse a path as `file` does, for what is sent to other ranks."""
    return str(file(text))


def bias(text: str) -> tuple[int, float]:
    """Parse a token's id and the number that is added to its logit."""
    token, _, added = text.partition("=")
    try:
        return _whole(token, 0, "a token's id"), float(added)
    except (ValueError, argparse.ArgumentTypeError):
        wanted = "expected TOKEN=BIAS, a token's id and a number"
        raise argparse.ArgumentTypeError(f"{wanted}, not {brief(text)}") from None


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object, as in '{\"key\": true}'")
    return value


def number_or_mode(text: str) -> str | int:
    number = limits.whole(text, 0)
    return text if number is None else number  # which `Settings` checks


def positive(text: str) -> int:
    return _whole(text, 1, "a positive whole number")


def questions(text: str) -> int:
    """Parse a number of questions, or of answers to each."""
    return _whole(text, 1, "a positive whole number", limits.QUESTIONS)


def count(text: str) -> int:
    return _whole(text, 0, "a whole number of at least 0")


def token_count(text: str) -> int:
    """Parse a number of tokens, or −1 for no limit."""
    return -1 if text == "-1" else _whole(text, 1, "a positive whole number, or -1 for no limit")


def _whole(text: str, least: int, what: str, most: int = limits.WHOLE) -> int:
    number = limits.whole(text, least, most)
    if number is None:
        wanted = f"expected {what}, at most {most:,}"
        raise argparse.ArgumentTypeError(f"{wanted}, not {brief(text)}")
    return number
