"""`entropix models`: the models on this machine, whether each can run, and what the machine is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from ..configuration import Configuration
from ..errors import SettingsError
from ..files import expanded
from .shared import loading, output
from .shared.options import command
from .shared.output import BUG

MARKS = {"good": "✓", "advice": "!", "fault": "✗"}


@command()
def models(
    *folders: Path, download: str | None = None, check: bool = False, json: bool = False
) -> int:
    """List the models on this machine, and whether each can run; or download one.

    Args:
        folders: list models in these folders, too
        download: download a model instead of listing: demo, or a hub id (owner/name)
        check: tell what this machine is, what is slow on it or does not work, and what to do;
            exits with 1 if something keeps the program from working
        json: with --check, print an object, for a bug report
    """
    if json and not check:
        raise SettingsError("--json is for --check: add it")
    if download is not None:
        output.write(f"{loading.download_model(download)}\n")
        return 0
    if check:
        return _check(json)
    from ..checkpoints.local import inventory

    lines = [f"{'size, GB':>8}  {'precision':10}{'context':>8}  {'runs':6}model"]
    for entry in inventory([expanded(folder, SettingsError) for folder in folders]):
        runs = "no" if entry.fault else "yes"
        size, precision = f"{entry.nbytes / 1e9:8.2f}", f"{entry.precision or '?':10}"
        lines.append(f"{size}  {precision}{entry.context or '?':>8}  {runs:6}{entry.name}")
        place = "" if entry.name == str(entry.path) else f"in {entry.path}"
        lines += [f"{'':36}{more}" for more in (place, entry.fault) if more]
    output.write(output.shown("\n".join(lines)) + "\n")  # a folder may have any name
    return 0


def _check(as_json: bool) -> int:
    from ..diagnosis.checks import Level, diagnose

    checks = diagnose(_checked_configuration)
    if as_json:
        output.write_json({"checks": [asdict(check) for check in checks]}, indent=2)
    else:
        for check in checks:
            advice = f"\n{'':16}→ {check.advice}" if check.advice else ""
            found = output.shortened(check.found)
            line = f"{MARKS[check.level]} {check.name:13} {found}{advice}\n"
            output.write(output.shown(line))
    return BUG if any(check.level is Level.FAULT for check in checks) else 0


def _checked_configuration() -> str:
    """Return the path of the user's configuration file.

    Raises:
        ConfigurationError: something in it is wrong.
    """
    from entropix_mlx.tui.app import ChatApp

    configuration = Configuration.load()
    configuration.check_settings()
    ChatApp.check(configuration)
    return str(configuration.path)
