"""How models write calls: a text first, if they like, and then calls up to the end of the
answer."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..constraints.matcher import WHITE_SPACE
from ..errors import ConstraintError


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the rule of a JSON text that fits a schema."""
    options = {"whitespace_pattern": WHITE_SPACE}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


def literal(text: str, special: Mapping[str, int]) -> str:
    """Return the rule of a text: special tokens by their ids, the rest quoted."""
    pattern = "|".join(map(re.escape, special)) or "(?!)"
    pieces = re.split(f"({pattern})", text)
    return " ".join(
        f"<[{special[piece]}]>" if piece in special else json.dumps(piece)
        for piece in pieces
        if piece
    )


Parse = Callable[[str, Any], Any]
"""One of mlx-lm's tool parsers: from a call's text and the tools to its name and arguments."""

MOST_CALLS = 32
"""Calls of one answer; a model that finds no end finds one here."""
_NAME = "{name}"

NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Function:
    """A function that a model may call."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMETERS)
    """The JSON schema of its arguments."""


@dataclass(frozen=True)
class CallFormat:
    """How calls are written, one after the other."""

    start: str
    """What begins the first call; without any, a call is the whole answer."""
    before: str
    """What precedes the arguments; ``{name}`` is the function's."""
    after: str = ""
    between: str = ""
    end: str = ""
    several: bool = True
    """Whether an answer may have more than one call."""
    parse: Parse | None = None
    """Reads a call, up to what follows its arguments; None for JSON, which is read as it comes."""

    @property
    def marker(self) -> str:
        """The text that shows that calls begin; of one that is a special token, only that."""
        return self.start.removesuffix("[") or self.before.partition(_NAME)[0]

    @property
    def header(self) -> re.Pattern[str]:
        """Match what precedes the arguments, whatever white space it has."""
        name = r"(?P<name>[\w.-]+)"
        spaced = re.sub(r"(\\?\s)+", r"\\s*", re.escape(self.before))
        return re.compile(spaced.replace(re.escape(_NAME), name) + r"\s*(?=\{)")

    def grammar(
        self,
        functions: Sequence[Function],
        special: Mapping[str, int],
        *,
        required: bool,
        several: bool,
        answer: str | None = None,
    ) -> str:
        """Return the grammar of an answer, in Lark's syntax as llguidance reads it.

        Args:
            functions: what may be called.
            special: ids of the special tokens that an answer may hold, which are no text to
                llguidance.
            required: whether there must be a call.
            several: whether there may be more than one.
            answer: a rule for an answer without calls; free text, also before calls, if None.

        Raises:
            ConstraintError: the arguments of a function cannot be constrained in this format.
        """
        if self.parse is not None:
            raise ConstraintError("calls in the format of this model cannot be constrained")
        calls = [
            f"{literal(self.before.replace(_NAME, function.name), special)}"
            f" {json_rule(function.parameters)} {literal(self.after, special)}"
            for function in functions
        ]
        more = (
            f" ({literal(self.between, special)} call){{0,{MOST_CALLS - 1}}}"
            if several and self.several
            else ""
        )
        begun = f"{literal(self.start, special)} calls"
        rules = [
            "%llguidance {}",
            f"calls: call{more} {literal(self.end, special)}",
            f"call: {' | '.join(calls)}",
        ]
        if required:
            rules.append(f"start: {begun}")
        elif answer is not None:
            rules += [f"start: answer | {begun}", f"answer: {answer}"]
        else:
            rules += self._behind_text(begun, special)
        return "\n".join(rules) + "\n"

    def _behind_text(self, begun: str, special: Mapping[str, int]) -> list[str]:
        """Return the rules of a text that calls may follow, and that cannot hold one itself."""
        text = r"TEXT: /(.|\n)*/"
        others = [str(number) for token, number in special.items() if token != self.marker]
        before = f"before: (TEXT <[{','.join(others)}]>)*" if others else 'before: ""'
        if not self.start:
            call = "".join(rf"\x{ord(character):02x}" for character in self.marker)
            text = rf"{text} & ~/{call}(.|\n)*/"
            return [f"start: before TEXT | {begun}", before, text]
        if self.marker in special:
            return [f"start: before TEXT | before TEXT {begun}", before, text]
        rest = literal(self.start.removeprefix(self.marker), special)
        trigger = f"trigger[lazy]: TEXT {json.dumps(self.marker)}"
        return [f"start: before TEXT | before trigger {rest} calls", before, trigger, text]


_OBJECT = '{"name": "{name}", "arguments": '

HERMES = CallFormat(
    start="<tool_call>",
    before="\n" + _OBJECT,
    after="}\n</tool_call>",
    between="\n<tool_call>",
)
"""Of Qwen 2.5 and 3, SmolLM3, Granite 4 and many others."""

MISTRAL_LIST = CallFormat(start="[TOOL_CALLS][", before=_OBJECT, after="}", between=", ", end="]")
MISTRAL_NAMES = CallFormat(start="[TOOL_CALLS]", before="{name}[ARGS]", between="[TOOL_CALLS]")
"""Of Mistral's models since the end of 2024."""

LLAMA = CallFormat(start="", before='{"name": "{name}", "parameters": ', after="}", several=False)
"""Of Llama 3.1 to 3.3."""


def find_format(template: str, parser: str | None) -> CallFormat | None:
    """Return the format that a chat template asks for.

    Args:
        template: the template, as far as it is a text.
        parser: the name of the tool parser that mlx-lm infers for it.
    """
    if parser == "mistral":
        return MISTRAL_NAMES if "[ARGS]" in template else MISTRAL_LIST
    if parser is not None and parser != "json_tools":
        return _parsed_format(parser)
    if "<tool_call>" in template:
        return HERMES
    if '{"name": ' in template and '"parameters": ' in template:
        return LLAMA
    return None


def _parsed_format(parser: str) -> CallFormat:
    """Return the format of one of mlx-lm's tool parsers."""
    module = importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
    start, end = module.tool_call_start, module.tool_call_end
    return CallFormat(
        start=start,
        before="",
        after=end,
        between=start,
        parse=module.parse_tool_call,
    )
