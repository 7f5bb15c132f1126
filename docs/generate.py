"""Write the generated blocks of the documentation from the code, or check that they are current.

A block stands in a page between two comments, and is the text that its function in `BLOCKS`
returns:

    <!-- generated: options -->
    …
    <!-- end -->

``make docs`` writes them; ``make docs-check`` fails if one is out of date.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import math
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import EnumType
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any, get_args, get_type_hints

import tomlkit
from cyclopts.argument import Argument
from textual.keys import format_key

from entropix_mlx import Profile, cli, step, summary
from entropix_mlx.palette import SWATCHES
from entropix_mlx.profiles import tree
from entropix_mlx.profiles.confidence import SCORES
from entropix_mlx.profiles.fields import LARGEST_TOP_K
from entropix_mlx.profiles.sampler_specs import FILTERS, SAMPLERS
from entropix_mlx.traces import trace

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
PROFILES = ROOT / "entropix_mlx" / "profiles"
BLOCK = re.compile(r"(<!-- generated: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
COLOURS = {
    (0, 158, 115): "green",
    (204, 121, 167): "pink",
    (230, 159, 0): "orange",
    (213, 94, 0): "vermilion",
    (86, 180, 233): "blue",
    (153, 153, 153): "grey",
}
"""Names of the colours of `palette.SWATCHES`."""
SYMBOLS = {"entropy": "H", "varentropy": "V"}
PLACES = ("app", "chat", "composer", "transcript", "view")
"""Where the keys of a configuration file are: dialogs have keys of their own."""
TYPES = {"int": "integer", "float": "number", "str": "text", "tuple": "list", "Sequence": "list"}
"""Types of Python as JSON has them; any other is an object."""


def main() -> int:
    """Write all blocks; with --check only compare, and return 1 if one is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if stale")
    check = parser.parse_args().check
    stale = [page for page in PAGES if current(text := page.read_text("utf-8")) != text]
    for page in stale:
        if not check:
            page.write_text(current(page.read_text("utf-8")), "utf-8")
        print(f"{page.relative_to(ROOT)}: {'out of date, run make docs' if check else 'updated'}")
    return int(check and bool(stale))


def current(text: str) -> str:
    """Return the text of a page with its blocks as the code has them now."""
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}\n{found[3]}", text)


# ── Strategies ──────────────────────────────────────────────────────────────────────────────────


def strategies() -> str:
    """Return a table of the strategies of the profile `reference`: when, and what is done."""
    rows = {row.strategy: row for row in tree.table(Profile.load())}
    meanings = import_module("entropix_mlx.tui.help_text").MEANINGS
    lines = ["| strategy | when | what happens |", "|---|---|---|"]
    for strategy, row in rows.items():
        swatch, meaning = SWATCHES[strategy], ": ".join(meanings[strategy])
        name = f"{swatch.glyph} `{strategy}`, {COLOURS[swatch.rgb]}"
        lines.append(f"| {name} | {_condition(row.bounds)} | {meaning} |")
    return "\n".join(lines)


def formulas() -> str:
    """Return when each strategy of the profile `reference` is chosen, and how it samples."""
    base = Profile.load().base
    lines = []
    for row in tree.table(Profile.load()):
        changed = [
            f"{name.replace('_', '-')} = {_affine(getattr(row, name))}"
            for name in FILTERS
            if getattr(row, name).constant != getattr(base, name) or getattr(row, name).slopes
        ]
        parts = [f"- `{row.strategy}`: {_condition(row.bounds)}", *changed]
        lines.append("; ".join(parts))
    return "\n".join(lines)


def _condition(bounds: dict[str, tuple[float, float]]) -> str:
    parts = []
    for name, (low, high) in bounds.items():
        symbol = SYMBOLS.get(name, name)
        parts += [f"{symbol} > {low:g}"] if low > -math.inf else []
        # No margin is above 1: that bound is off.
        parts += (
            [f"{symbol} < {high:g}"] if high < math.inf and (name, high) != ("margin", 1) else []
        )
    return ", ".join(parts) or "otherwise"


def _affine(affine: tree.Affine) -> str:
    terms = [f"{affine.constant:.3g}"]
    for name, slope in affine.slopes.items():
        terms.append(f"{'−' if slope < 0 else '+'} {abs(slope):.3g} {SYMBOLS.get(name, name)}")
    bounds = [f"at least {affine.low:g}"] if affine.low > 0 else []
    bounds += [f"at most {affine.high:g}"] if affine.high < LARGEST_TOP_K else []
    return ", ".join([" ".join(terms), *bounds])


# ── Samplers and profiles ───────────────────────────────────────────────────────────────────────


def samplers() -> str:
    """Return the samplers, with their parameters and options."""
    reference = tomlkit.parse((PROFILES / "reference.toml").read_text("utf-8"))
    lines = []
    for name, sampler in SAMPLERS.items():
        takes = "all" if sampler.filters == FILTERS else ", ".join(sampler.filters)
        lines.append(f"- **`{name}`**{f' ({takes})' if takes else ''}: {sampler.help}")
        for option, value in reference["samplers"].get(name, {}).items():
            lines.append(f"  - `{option}` = {value}: {value.trivia.comment.removeprefix('# ')}")
    return "\n".join(lines)


def profile_fields() -> str:
    """Return the sections of the profile `reference`, with the comments of its file."""
    text = (PROFILES / "reference.toml").read_text("utf-8")
    text = re.sub(r"= \[([^]\n]*),\n[^]]*\]", r"= [\1, …]", text)
    text = re.sub(r"^(\w+) = ", r"\1=", text, flags=re.MULTILINE)
    text = re.sub(r"^# |(?<=  )# ?", "", text, flags=re.MULTILINE)
    parts = re.split(r"\n(?=\[)", text)[1:]
    return "```text\n" + "\n".join(parts) + "```"


# ── Traces ──────────────────────────────────────────────────────────────────────────────────────


def record(kind: type) -> str:
    """Return the fields of a dataclass with their types and meanings; metrics only by name."""
    about = attribute_docs(step.Decision) | attribute_docs(kind)
    hints, known = get_type_hints(kind), get_type_hints(step.Step).values()
    metrics = [field.name for field in fields(kind) if field.name in step.Metrics._fields]
    lines = []
    for field in fields(kind):
        if field.name in metrics:
            if field.name == metrics[0]:
                lines.append(
                    f"- {', '.join(f'`{name}`' for name in metrics)} (numbers): the metrics"
                )
            continue
        meaning = about.get(field.name, "").replace("None", "null")
        lines.append(f"- `{field.name}` ({_type(str(field.type))}){_after_colon(meaning)}")
        hint = hints[field.name]
        if kind is step.Step or hint not in known:
            lines += _words(hint)
    return "\n".join(lines)


def _words(hint: Any) -> list[str]:
    """Return the values of an enumeration, with what it says of each of them."""
    enum = next((each for each in (hint, *get_args(hint)) if isinstance(each, EnumType)), None)
    if enum is None:
        return []
    about = attribute_docs(enum)
    values: list[Any] = list(enum.__members__.values())
    if len(about) < len(values):
        return [f"  - {', '.join(f'`{value}`' for value in values)}"]
    return [f"  - `{value}`: {about[value.name]}" for value in values]


def _after_colon(meaning: str) -> str:
    return f": {meaning}" if meaning else ""


def footer() -> str:
    """Return the totals that end a trace."""
    about = attribute_docs(summary.Summary)
    lines = []
    for name, value in summary.Summary().to_dict().items():  # without steps, all is 0 or empty
        if not value:
            lines.append(f"- `{name}`{_after_colon(about.get(name, ''))}")
            continue
        lines.append(f"- `{name}`:")
        lines += [f"  - `{part}`{_after_colon(about.get(part, ''))}" for part in value]
    return "\n".join(lines)


def attribute_docs(kind: type) -> dict[str, str]:
    """Return the comments and texts at the attributes of a class, and those of its properties."""
    source = textwrap.dedent(inspect.getsource(kind))
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            found[node.name] = (ast.get_docstring(node) or "").partition("\n\n")[0]
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.update(_texts(node.body, source.splitlines()))
    return {name: _flat(text) for name, text in found.items()}


def _texts(body: list[ast.stmt], lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the names that a block assigns, and the comment behind or the text below each."""
    for one, following in zip_longest(body, body[1:]):
        if not isinstance(one, (ast.Assign, ast.AnnAssign)):
            continue
        target = one.targets[0] if isinstance(one, ast.Assign) else one.target
        text = lines[(one.end_lineno or 1) - 1].partition("  # ")[2]
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = str(following.value.value)
        if text:
            yield target.attr if isinstance(target, ast.Attribute) else ast.unparse(target), text


def _flat(text: str) -> str:
    text = " ".join(text.split()).replace("``", "`")
    return (text[:1].upper() + text[1:]).rstrip(".")


def _type(annotation: str) -> str:
    *alternatives, last = annotation.split(" | ")
    name, optional = (alternatives[0], " or null") if last == "None" else (last, "")
    enums = {kind.__name__ for kind in vars(step).values() if isinstance(kind, EnumType)}
    bare = name.partition("[")[0]
    return ("text" if bare in enums else TYPES.get(bare, "object")) + optional


# ── Scores ──────────────────────────────────────────────────────────────────────────────────────


def scores() -> str:
    """Return a table of the scores of an answer."""
    lines = ["| score | formula | unit | surer | published as |", "|---|---|---|---|---|"]
    for name, score in SCORES.items():
        surer = "lower" if score.lower_is_surer else "higher"
        cells = (f"`{name}`", score.formula, score.unit, surer, score.published)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# ── The command line ────────────────────────────────────────────────────────────────────────────


def options() -> str:
    """Return a section for each command: what it does, and its options by purpose."""
    app = cli.build_app()
    return "\n\n".join(_command(name, str(app[name].help)) for name in cli.COMMANDS)


def _command(name: str, about: str) -> str:
    groups: dict[str, list[str]] = defaultdict(list)
    for argument in arguments_of(name):
        (group, *_) = argument.parameter.group or (None,)
        text = re.sub(rf": {', '.join(SAMPLERS)}", "", str(argument.parameter.help or ""))
        groups[getattr(group, "name", "Arguments")].append(
            f"- {_spelling(argument)}: {_short(text)}"
        )
    parts = [f"### {name}", f"`entropix {name}`: {about}."]
    for title, lines in groups.items():
        parts += [f"{title}:", "\n".join(lines)]
    return "\n\n".join(parts)


def _short(about: str) -> str:
    """Return the help of an option without its details, which ``--help`` has."""
    return about if len(about.split()) < 8 else re.split(r"; | \((?!default: [^;)]*\))", about)[0]


def arguments_of(command: str) -> list[Argument]:
    """Return what a command takes."""
    listed = cli.build_app()[command].assemble_argument_collection(parse_docstring=True)
    return [argument for argument in listed if argument.show]


def _spelling(argument: Argument) -> str:
    kinds = (argument.hint, *get_args(argument.hint))
    if bool in kinds:
        what = ""
    elif choices := argument.get_choices():
        what = f" {'|'.join(map(str, choices))}"
    else:
        what = f" {argument.name.lstrip('-').upper().replace('-', '_')}"
    first, *others = argument.names
    hidden = ("--empty-", "--no-") if argument.field_info.default is False else ("--empty-",)
    names = [first, *(name for name in others if not name.startswith(hidden))]
    return f"`{', '.join(names)}{what if first.startswith('-') else ''}`"


# ── Keys ────────────────────────────────────────────────────────────────────────────────────────


def keys() -> str:
    """Return the bindings of the terminal UI that a configuration file can change, with their
    keys."""
    modules = [import_module("entropix_mlx.tui.app"), import_module("entropix_mlx.tui.viewer")]
    modules += [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("entropix_mlx.tui.")
    ]
    bindings: dict[str, Any] = {}
    for kind in [kind for module in modules for kind in vars(module).values()]:
        for binding in getattr(kind, "BINDINGS", ()) if isinstance(kind, type) else ():
            if getattr(binding, "id", None):
                bindings.setdefault(binding.id, binding)
    places = (
        [_key(binding) for name, binding in bindings.items() if name.startswith(f"{place}.")]
        for place in PLACES
    )
    return "\n".join(f"- {', '.join(of_place)}" for of_place in places)


def _key(binding: Any) -> str:
    pair = " " in (binding.key_display or "")  # one text for two bindings
    key = format_key(binding.key.partition(",")[0])
    shown = key if pair else binding.key_display or key
    parts = shown.split("+") if len(shown) > 1 else [shown]
    modified = len(parts) > 1
    name = "+".join(part.capitalize() if modified or len(part) > 1 else part for part in parts)
    return f"`{binding.id}` {name}"


BLOCKS: dict[str, Callable[[], str]] = {
    "strategies": strategies,
    "formulas": formulas,
    "samplers": samplers,
    "profile": profile_fields,
    "header": lambda: record(trace.Header),
    "step": lambda: record(step.Step),
    "alternative": lambda: record(step.Alternative),
    "fork": lambda: record(step.Fork),
    "branch": lambda: record(step.Branch),
    "source": lambda: record(step.Source),
    "footer": footer,
    "scores": scores,
    "options": options,
    "keys": keys,
}
"""What stands in each block."""

if __name__ == "__main__":
    sys.exit(main())
