"""Options that mlx-lm's users know, for the model, under the same names."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...checkpoints.loading import Extras


def add_to_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is loaded with a model."""
    group = parser.add_argument_group("as in mlx-lm")
    add = group.add_argument
    add("--adapter-path", metavar="DIR", help="LoRA or DoRA weights to add to the model")
    add(
        "--extra-eos-token",
        action="append",
        default=[],
        metavar="TOKEN",
        help="another token that ends an answer; may be repeated",
    )
    add(
        "--chat-template-config",
        type=_object,
        default={},
        metavar="JSON",
        help="""variables for the chat template, as in '{"enable_thinking": false}'""",
    )
    add("--kv-bits", type=int, metavar="N", help="quantize the KV cache to N bits")
    add("--kv-group-size", type=int, default=64, metavar="N", help="in groups of N (default: 64)")
    add(
        "--quantized-kv-start",
        type=int,
        default=5000,
        metavar="N",
        help="once it holds N tokens (default: 5000)",
    )


def of_model(arguments: argparse.Namespace) -> Extras:
    """Return what the options say is loaded with the model."""
    from ...checkpoints.loading import Extras

    return Extras(
        arguments.adapter_path,
        tuple(arguments.extra_eos_token),
        arguments.chat_template_config,
        arguments.kv_bits,
        arguments.kv_group_size,
        arguments.quantized_kv_start,
    )


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object, as in '{\"key\": true}'")
    return value
