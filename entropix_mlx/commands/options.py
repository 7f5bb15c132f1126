"""Options that several subcommands take, and what they mean to the library."""

from __future__ import annotations

import argparse
import gc
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ProfileError
from ..files import expanded
from ..policies.registry import POLICIES
from ..profiles.choice import AUTO
from ..profiles.fields import Number, overlaid
from ..profiles.kinds import parameters
from ..profiles.profile import Profile
from ..settings import Settings
from . import terminal

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.llama import Model

DEFAULT_SAMPLER = Settings.sampler

_SHORT = {"temperature": "--temp"}
"""Parameters whose option is not their name."""


def samplers() -> str:
    """Return the names of the samplers, for a help text."""
    *names, last = POLICIES
    return f"{', '.join(names)} or {last}"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which model to load, and how."""
    add = parser.add_argument
    add(
        "--model",
        type=_given,
        help="folder, .gguf file or hub id (default: the demo model if installed)",
    )
    add(
        "--dequantize",
        action=argparse.BooleanOptionalAction,
        help="unpack quantized weights: more"
        " memory, and on a CPU more speed (default: on a CPU, if memory allows)",
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options of `Settings`, and those that change its profile."""
    add = parser.add_argument
    add("--sampler", default=DEFAULT_SAMPLER, help=f"{samplers()} (default: {DEFAULT_SAMPLER})")
    add("--seed", type=whole, help="repeat a generation (default: a fresh one, shown at the end)")
    add_generation(parser)
    add("--ask", action="store_true", help="ask which way to take where their scores are close")


def add_generation(parser: argparse.ArgumentParser) -> None:
    """Add the options of `Settings` that one sampler and seed have in common with another."""
    add = parser.add_argument
    add("--max-tokens", "-m", type=_token_count, default=256, help="default 256; -1: no limit")
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end an answer before this text; may be repeated",
    )
    add(
        "--profile",
        default=AUTO,
        help="thresholds: a name, a TOML file, or auto (default): the"
        " one that was calibrated for the model, else reference",
    )
    add(
        "--set",
        action="append",
        default=[],
        dest="assignments",
        metavar="FIELD=VALUE",
        help="change a field of the profile, as in thresholds.low_entropy=0.2; may be repeated",
    )
    _add_parameters(parser)
    add("--no-think", action="store_true", help="never insert the thinking text")
    add("--no-branch", action="store_true", help="never follow a fork, only sample there")
    add("--branch-width", type=positive, metavar="K", help="follow K ways at a fork")
    add("--branch-depth", type=positive, metavar="L", help="follow each for at most L tokens")
    add(
        "--attention-layers",
        choices=("last", "all"),
        default="last",
        help="whose attention is measured (default: last)",
    )


def _add_parameters(parser: argparse.ArgumentParser) -> None:
    """Add the sampling parameters that policies share, as the table of policies describes them."""
    for name, parameter in parameters().items():
        option = _SHORT.get(name, f"--{name.replace('_', '-')}")
        if isinstance(parameter.rule, Number):
            kind = int if parameter.rule.whole else float
            parser.add_argument(option, type=kind, dest=name, help=parameter.help)
        else:
            parser.add_argument(
                option,
                action="append",
                type=_bias,
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
        type=_boolean,
        const=True,
        default=True,
        metavar="BOOL",
        help="statistics on stderr (default: true)",
    )


def to_settings(arguments: argparse.Namespace, top_logprobs: int = 0) -> Settings:
    """Return the settings that the options describe; a mistake in them shows here.

    Raises:
        PolicyError, ProfileError: they do not fit.
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
    from ..checkpoints.locate import default_model

    name = str(arguments.model if arguments.model is not None else default_model())
    return os.path.basename(name.rstrip("/")) or name


def load_model(arguments: argparse.Namespace) -> tuple[Model, TokenizerWrapper]:
    """Load the model that the options name, saying so on stderr."""
    # Some million objects are made here that stay; looking for garbage among them takes 0.1 s.
    gc.disable()
    try:
        from ..checkpoints.loading import load
        from ..decoding import templates

        templates.start()  # meanwhile
        if arguments.verbose:
            terminal.tell(f"loading {terminal.shortened(model_name(arguments))} …")
        return load(arguments.model, dequantize=arguments.dequantize)
    finally:
        gc.enable()


def hint_at_calibration(asked: Settings, resolved: Settings) -> None:
    """Say on stderr that no profile was made for a model, where one would matter."""
    automatic = asked.profile == AUTO and POLICIES[asked.sampler].tree
    if automatic and not Profile.load(resolved.profile).calibration:
        terminal.tell(
            "no profile was calibrated for this model: using reference (entropix calibrate makes"
            " one that fits)"
        )


def _changes(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the fields of the profile that the options change."""
    changes = _interventions(arguments)
    for assignment in arguments.assignments:
        source = f"--set {assignment}"
        parsed = _parse_assignment(assignment, source)
        Profile.load().replace(parsed, source)  # a mistake is told of this option
        changes = overlaid(changes, parsed)
    return changes


def _parse_assignment(assignment: str, source: str) -> dict[str, Any]:
    """Read ``section.field=value``: it is a line of TOML."""
    try:
        changes = tomllib.loads(assignment)
    except ValueError as error:
        raise ProfileError(
            f"{source}: not FIELD=VALUE with a TOML value (a text needs quotes): {error}"
        ) from error
    if not changes:
        raise ProfileError(f"{source}: nothing is set; write FIELD=VALUE")
    return changes


def _interventions(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    rollouts: dict[str, Any] = {}
    if arguments.no_branch:
        rollouts["max_branches"] = 0
    if arguments.branch_width is not None:
        rollouts["width"] = arguments.branch_width
    if arguments.branch_depth is not None:
        rollouts["depth"] = arguments.branch_depth
    think = {"max_insertions": 0} if arguments.no_think else {}
    return {"think": think, "branch": rollouts, "cntp": rollouts}


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "t", "1", "yes"):
        return True
    if text.lower() in ("false", "f", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"true or false, not {text!r}")


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return whole(token), float(bias)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(
            f"TOKEN=BIAS, a token's id and a number, not {text!r}"
        ) from None


def _given(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty: leave the option out for the default")
    return text


def file(text: str) -> Path:
    """Parse a path: the shell leaves the ``~`` of ``--trace=~/file`` as it is."""
    return expanded(text, argparse.ArgumentTypeError)


def whole(text: str) -> int:
    """Parse a whole number."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if not _is_number(digits):
        raise argparse.ArgumentTypeError(f"a whole number{_OF_DIGITS}, not {text!r}")
    return sign * int(digits)


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not _is_number(text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a positive whole number{_OF_DIGITS}, not {text!r}")
    return int(text)


def count(text: str) -> int:
    """Parse a whole number of at least 0."""
    if not _is_number(text):
        raise argparse.ArgumentTypeError(f"a whole number of at least 0{_OF_DIGITS}, not {text!r}")
    return int(text)


_MOST_DIGITS = 30
_OF_DIGITS = f" (of at most {_MOST_DIGITS} digits)"


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _token_count(text: str) -> int:
    if text != "-1" and not (_is_number(text) and int(text) > 0):
        raise argparse.ArgumentTypeError(
            f"a positive whole number, or -1 for no limit, not {text!r}"
        )
    return int(text)
