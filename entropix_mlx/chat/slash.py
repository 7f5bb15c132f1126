"""The commands that can be typed in a chat: their names, and what help says of them.

``entropix chat --plain`` and the terminal UI each do what a command says in their own way; which
commands there are stands only here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SessionError


@dataclass(frozen=True)
class Command:
    """A command."""

    name: str
    """With its slash."""
    argument: str
    """What may follow it, for people; empty if nothing may."""
    help: str
    screen: bool = False
    """Whether only the terminal UI has it."""

    @property
    def usage(self) -> str:
        return f"{self.name} {self.argument}".rstrip()


COMMANDS = (
    Command("/regenerate", "", "answer the last question once more"),
    Command("/edit", "TEXT", "ask TEXT in the place of the last question"),
    Command("/steps", "", "list the tokens of the last answer, with the most probable others"),
    Command(
        "/fork",
        "STEP TOKEN",
        "put the token of that id at a step of the last answer, and go on from there",
    ),
    Command("/select", "N", "take the last question's Nth answer"),
    Command("/system", "TEXT", "precede the conversation with TEXT (nothing: with nothing)"),
    Command("/new", "", "begin another conversation"),
    Command("/save", "FILE", "save the conversation"),
    Command("/load", "FILE", "go on with a saved conversation"),
    Command("/chats", "", "list the saved chats", screen=True),
    Command("/rename", "TITLE", "give this chat a title", screen=True),
    Command("/models", "", "choose another model", screen=True),
    Command("/settings", "", "sampler, temperature, most tokens, and the like", screen=True),
    Command("/find", "TEXT", "search in this chat", screen=True),
    Command("/code", "", "copy the last block of code", screen=True),
    Command("/help", "", "show all commands"),
    Command("/quit", "", "end"),
)


def shared() -> tuple[Command, ...]:
    return tuple(command for command in COMMANDS if not command.screen)


def parse(line: str, commands: tuple[Command, ...] = COMMANDS) -> tuple[str, str] | None:
    """Return the name and the argument of a command; None for a line that is a question."""
    if not line.startswith("/"):
        return None
    name, *rest = line.split(maxsplit=1)
    if name not in (command.name for command in commands):
        raise SessionError(f"no command {name}: /help lists them")
    return name, rest[0].strip() if rest else ""


def completions(line: str) -> list[Command]:
    """Return the commands that a line may become which is being typed."""
    if not line.startswith("/") or any(c.isspace() for c in line):
        return []
    return [command for command in COMMANDS if command.name.startswith(line)]


def listing(commands: tuple[Command, ...]) -> str:
    width = max(len(command.usage) for command in commands)
    return "\n".join(f"{command.usage:{width}}  {command.help}" for command in commands)
