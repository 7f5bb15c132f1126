"""Which of the two computes a model: this package's own port, or mlx-lm, tapped.

Everything here looks at a ``config.json`` alone, before anything else is downloaded or read.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import limits
from ..errors import UnsupportedModelError, WeightsError, brief
from ..models.config import ARCHITECTURES, check_family, read_config

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NO_TOKENS = ("Classification", "ForMaskedLM", "ForQuestionAnswering", "RewardModel")
"""Endings of the names of models that do not predict tokens."""
MOST_LAYERS = 2048
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def read_supported(folder: Path) -> dict[str, Any]:
    """Return a folder's ``config.json``, once it is known that its model can be computed.

    Raises:
        ModelNotFoundError: there is none.
        WeightsError: it is not JSON, or a field is of another kind than it should be.
        UnsupportedModelError: neither this package nor mlx-lm computes it.
    """
    config = read_config(folder)
    check_supported(config, str(folder / "config.json"))
    return config


def check_supported(config: dict[str, Any], where: str) -> None:
    """Refuse what cannot be computed, with the reason.

    Raises:
        WeightsError, UnsupportedModelError: as for `read_supported`.
    """
    if is_tapped(config):
        _check_mlx_lm(config, where)
    else:
        check_family(config, where)


def is_tapped(config: Mapping[str, Any]) -> bool:
    """Return whether mlx-lm is to compute a model, and not the port.

    The port computes the four shapes of `ARCHITECTURES`. Of these, mlx-lm computes more for one:
    layers of a Llama that attend to a window, where the configuration names them.
    """
    if config.get("model_type") not in ARCHITECTURES:
        return isinstance(config.get("model_type"), str)
    kinds, window = config.get("layer_types"), config.get("sliding_window")
    slides = isinstance(kinds, list) and "sliding_attention" in kinds
    return config["model_type"] == "llama" and slides and type(window) is int and window > 0


def note_parts(config: Mapping[str, Any], where: Path) -> None:
    """Say of a model that also sees or hears that only its language part is used."""
    parts = [name for name in ("vision", "audio") if f"{name}_config" in config]
    if parts:
        logger.info(
            "%s: only the language part is loaded: its %s part is left out",
            where.name,
            " and ".join(parts),
        )


def _check_mlx_lm(config: dict[str, Any], where: str) -> None:
    """Refuse what mlx-lm has no module for, or would need code of the model for."""
    kind = config["model_type"]
    if config.get("model_file") is not None:
        raise UnsupportedModelError(
            f"{where}: the model needs code of its own ({brief(config['model_file'])}), and code"
            " from a model's folder is never run here: use a model that mlx-lm computes itself"
        )
    if not _NAME.fullmatch(kind) or module_of(config) is None:
        raise UnsupportedModelError(
            f"{where}: architecture {brief(kind)} is not supported: neither this package"
            f" ({', '.join(ARCHITECTURES)}) nor the installed mlx-lm computes it; a newer mlx-lm"
            " may"
        )
    heads = config.get("architectures") or []
    if not isinstance(heads, list):
        raise WeightsError(f"{where}: architectures must be a list, not {brief(heads)}")
    if heads and all(str(name).endswith(_NO_TOKENS) for name in heads):
        raise UnsupportedModelError(
            f"{where}: architecture {brief(heads[0])} is not supported: it does not predict tokens"
        )
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for name in _LAYER_COUNTS:
            count = part.get(name, 1)
            if type(count) is int and not 0 < count <= MOST_LAYERS:
                raise WeightsError(
                    f"{where}: {name} must be a positive whole number of at most {MOST_LAYERS},"
                    f" not {brief(count)}"
                )
        size = part.get("vocab_size", 1)
        if type(size) is int and not 0 < size <= limits.SIZE:
            raise WeightsError(
                f"{where}: vocab_size must be a positive whole number of at most {limits.SIZE},"
                f" not {brief(size)}"
            )


def module_of(config: Mapping[str, Any]) -> ModuleType | None:
    """Return mlx-lm's module for a model, or None; importing it runs mlx-lm's code alone."""
    from mlx_lm import utils

    name = utils.MODEL_REMAPPING.get(config["model_type"], config["model_type"])
    try:
        # One module prints what to install and ends the program where a package is missing.
        with contextlib.redirect_stdout(sys.stderr):
            module = importlib.import_module(f"mlx_lm.models.{name}")
    except (ImportError, SystemExit):
        return None
    return module if hasattr(module, "Model") and hasattr(module, "ModelArgs") else None
