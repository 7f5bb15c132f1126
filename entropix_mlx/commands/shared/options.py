"""Options that several subcommands take, and what they mean to the library."""

from __future__ import annotations

import argparse
import gc
import os
from typing import TYPE_CHECKING, Any

from ...errors import PromptError
from ...profiles.fields import Number, overlaid
from ...profiles.profile import Profile
from ...profiles.sampler_specs import parameters
from ...profiles.selection import AUTO
from ...samplers.registry import SAMPLERS
from ...settings import BATCH, Settings
from . import arg_types, model_options, output
from .profile_overrides import changes_of, interventions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...models.base import LanguageModel
    from ..ranks.coordinator import Leader

DEFAULT_SAMPLER = Settings.sampler

_SHORT = {"temperature": "--temp"}
"""Parameters whose option is not their name."""
_EACH = "; may be repeated, and each is compared"


def samplers() -> str:
    """Return the names of the samplers, for a help text."""
    *names, last = SAMPLERS
    return f"{', '.join(names)} or {last}"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which model to load, and how."""
    add = parser.add_argument
    add(
        "--model",
        type=arg_types.given,
        help="folder, .gguf file or hub id (default: the demo model if installed)",
    )
    add(
        "--dequantize",
        action=argparse.BooleanOptionalAction,
        help="unpack quantized weights: more"
        " memory, and on a CPU more speed (default: on a CPU, if memory allows)",
    )
    model_options.add_to_model(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options of `Settings`, and those that change its profile."""
    add = parser.add_argument
    add("--sampler", default=DEFAULT_SAMPLER, help=f"{samplers()} (default: {DEFAULT_SAMPLER})")
    add(
        "--seed",
        type=arg_types.whole,
        help="repeat a generation (default: a fresh one, shown at the end)",
    )
    add_generation(parser)
    add("--ask", action="store_true", help="ask which way to take where their scores are close")


def add_generation(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the options of `Settings` that one sampler and seed have in common with another.

    Args:
        parser: to add them to.
        several: whether --profile, --set and --temp may be repeated to name several ways of
            answering; each is a list then.
    """
    add = parser.add_argument
    add(
        "--max-tokens",
        "-m",
        type=arg_types.token_count,
        default=256,
        help="default %(default)s; -1: no limit",
    )
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end an answer before this text; may be repeated",
    )
    add_profile(parser, several=several)
    _add_parameters(parser, several)
    add("--think", action="store_true", help="insert the thinking text whatever the profile says")
    add("--no-think", action="store_true", help="never insert the thinking text, --think or not")
    add("--no-branch", action="store_true", help="never follow a fork, only sample there")
    add("--branch-width", type=arg_types.positive, metavar="K", help="follow K ways at a fork")
    add(
        "--branch-depth",
        type=arg_types.positive,
        metavar="L",
        help="follow each for at most L tokens",
    )
    add_attention_layers(parser)
    add(
        "--speculation",
        type=arg_types.speculation,
        default=Settings.speculation,
        metavar="auto|off|N",
        help="propose tokens where the text repeats itself, N at a time (default: auto)",
    )


def add_profile(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the options that name a profile and change its fields; `several` as above."""
    add = parser.add_argument
    add(
        "--profile",
        action="append" if several else "store",
        default=None if several else AUTO,
        help="thresholds: a name, a TOML file, or auto (default): the"
        f" one that was calibrated for the model, else reference{_EACH if several else ''}",
    )
    change = "change a field of the profile, as in thresholds.low_entropy=0.2"
    add(
        "--set",
        action="append",
        default=[],
        dest="assignments",
        metavar="FIELD=VALUE",
        help=f"{change}, or several with ; between them{_EACH}"
        if several
        else f"{change}; may be repeated",
    )


def add_attention_layers(parser: argparse.ArgumentParser) -> None:
    """Add the option that says whose attention is measured."""
    parser.add_argument(
        "--attention-layers",
        choices=("last", "all"),
        default="last",
        help="whose attention is measured (default: last)",
    )


def add_answers_file(parser: argparse.ArgumentParser, what: str, batch: int | None) -> None:
    """Add the options of commands that keep answers in a file.

    Args:
        parser: to add them to.
        what: the help text of --output.
        batch: the default of --batch; None where the command must know whether it was given.
    """
    add = parser.add_argument
    add("--output", "-o", type=arg_types.file, metavar="FILE", help=what)
    add("--resume", action="store_true", help="go on with the answers that --output lacks")
    add(
        "--batch",
        type=arg_types.positive,
        default=batch,
        metavar="N",
        help=f"answers at once (default: {BATCH}; fewer where the memory does not allow it)",
    )


def check_answers_file(arguments: argparse.Namespace) -> None:
    """Check that there is a file of answers where one is to be resumed.

    Raises:
        PromptError: --resume without --output.
    """
    if arguments.resume and not arguments.output:
        raise PromptError("--resume goes on with a file of answers: name it with --output")


def add_mode(parser: argparse.ArgumentParser) -> None:
    """Add the option that says what several machines do."""
    parser.add_argument(
        "--mode",
        choices=("tensor", "data"),
        default="tensor",
        help="under mlx.launch, split the model over the machines (tensor, the default), or have"
        " each hold it all, and deal the prompts (data)",
    )


def add_top_logprobs(parser: argparse.ArgumentParser, where: str) -> None:
    """Add the option that lists alternatives, and say where they are seen."""
    parser.add_argument(
        "--top-logprobs",
        type=arg_types.count,
        default=0,
        metavar="N",
        help=f"list the N most probable tokens of each step ({where})",
    )


def _add_parameters(parser: argparse.ArgumentParser, several: bool) -> None:
    """Add the sampling parameters that samplers share, as the table of samplers describes them."""
    for name, parameter in parameters().items():
        if several and name == "temperature":
            parser.add_argument(
                "--temp",
                type=arg_types.number,
                action="append",
                dest=name,
                help=parameter.help + _EACH,
            )
            continue
        option = _SHORT.get(name, f"--{name.replace('_', '-')}")
        if isinstance(parameter.rule, Number):
            kind = arg_types.whole if parameter.rule.whole else arg_types.number
            parser.add_argument(option, type=kind, dest=name, help=parameter.help)
        else:
            parser.add_argument(
                option,
                action="append",
                type=arg_types.bias,
                metavar="TOKEN=BIAS",
                dest=name,
                help=f"{parameter.help}; may be repeated",
            )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options about what is printed."""
    add = parser.add_argument
    add(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour tokens by strategy (default: auto, on a terminal)",
    )
    add_verbose(parser)


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Add the option about what is told on stderr."""
    parser.add_argument(
        "--verbose",
        nargs="?",
        type=arg_types.boolean,
        const=True,
        default=True,
        metavar="BOOL",
        help="statistics on stderr (default: true)",
    )


def to_settings(arguments: argparse.Namespace, top_logprobs: int = 0) -> Settings:
    """Return the settings that the options describe; a mistake in them shows here.

    Raises:
        SamplerError, ProfileError: they do not fit.
    """
    settings = Settings(
        max_tokens=arguments.max_tokens,
        sampler=arguments.sampler,
        profile=arguments.profile,
        changes=_changes(arguments),
        **_parameters(arguments),
        seed=arguments.seed,
        attention_layers=arguments.attention_layers,
        top_logprobs=top_logprobs,
        speculation=arguments.speculation,
        stop=tuple(arguments.stop),
    )
    settings.check()
    return settings


def _parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(arguments, name) for name in parameters()}
    biases = given["logit_bias"]
    return given | {"logit_bias": None if biases is None else dict(biases)}


def model_name(arguments: argparse.Namespace) -> str:
    """Return the name of the model that the options name, for people."""
    from ...checkpoints.locate import default_model

    name = str(arguments.model if arguments.model is not None else default_model())
    return os.path.basename(name.rstrip("/")) or name


def load_model(arguments: argparse.Namespace) -> tuple[LanguageModel, TokenizerWrapper]:
    """Load the model that the options name, saying so on stderr."""
    # Some million objects are made here that stay; looking for garbage among them takes 0.1 s.
    gc.disable()
    try:
        from ...api import chat_template
        from ...checkpoints.loading import load

        chat_template.start()  # meanwhile
        if arguments.verbose:
            output.tell(f"loading {output.shortened(model_name(arguments))} …")
        asked = model_options.of_model(arguments)
        if arguments.leader is not None:
            leader: Leader = arguments.leader
            given = {"model": arguments.model, "dequantize": arguments.dequantize, "extras": asked}
            deals = getattr(arguments, "mode", "tensor") == "data"
            return leader.load_whole(**given) if deals else leader.load(**given)
        return load(arguments.model, dequantize=arguments.dequantize, extras=asked)
    finally:
        gc.enable()


def hint_at_calibration(asked: Settings, resolved: Settings) -> None:
    """Say on stderr that no profile was made for a model, where one would matter."""
    automatic = asked.profile == AUTO and SAMPLERS[asked.sampler].tree
    if automatic and not Profile.load(resolved.profile).calibration:
        output.tell(
            "no profile was calibrated for this model: using reference (entropix calibrate makes"
            " one that fits)"
        )


def _changes(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the fields of the profile that the options change."""
    return overlaid(interventions(arguments), assigned(arguments))


def assigned(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the fields of the profile that --set changes."""
    changes: dict[str, dict[str, Any]] = {}
    for assignment in arguments.assignments:
        changes = overlaid(changes, changes_of(assignment))
    return changes
