"""The documents against the code: generated blocks, commands, links, examples in Python."""

import ast
import importlib
import re
import shlex

import pytest

from docs.generate import BLOCKS, PAGES, arguments_of, current
from entropix_mlx import cli

EXAMPLES = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def examples(*kinds):
    """Yield the page and the text of every example of some kinds."""
    for page in PAGES:
        for indent, kind, text in EXAMPLES.findall(page.read_text("utf-8")):
            if kind in kinds:
                yield page, kind, re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


def shell_lines():
    """Yield the page and text of every command of a shell example, and the comment behind it or
    above the first."""
    for page, kind, text in examples("sh", "console"):
        prompt = "$ " if kind == "console" else ""
        above = text.partition("\n")[0] if text.startswith("#") else ""
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith(prompt) and line.strip() and not line.startswith("#"):
                command, _, comment = line.removeprefix(prompt).partition("  #")
                yield page, command.strip(), comment or above


def commands():
    """Yield every command of a shell example that runs `entropix`."""
    for page, command, _ in shell_lines():
        if command.startswith("entropix "):
            yield pytest.param(command, id=f"{page.name}: {command}")


NETWORK = re.compile(r"mlx-community/|^git clone|^(pip|pipx|uv|uvx|brew|lm-eval|mlx\.\w+) ")
"""Commands that need a network, or several machines: their comments say so."""
OFFLINE = {"entropix", "make", "cat", "curl", "cut"}
TARGETS = set(
    re.findall(r"^([\w-]+):", (PAGES[0].parent / "Makefile").read_text("utf-8"), re.MULTILINE)
)


@pages
def test_generated_blocks_are_current(page):
    text = page.read_text("utf-8")
    assert current(text) == text, "run make docs"


def test_every_block_stands_in_a_page():
    text = "".join(page.read_text("utf-8") for page in PAGES)
    assert [name for name in BLOCKS if f"<!-- generated: {name} -->" not in text] == []


@pages
def test_the_marks_of_examples_stand_alone_and_in_pairs(page):
    marks = [line.strip() for line in page.read_text("utf-8").splitlines() if "```" in line]
    assert [mark for mark in marks if not re.fullmatch(r"```\w*", mark)] == []
    assert set(marks[1::2]) <= {"```"}
    assert len(marks) % 2 == 0


@pytest.mark.parametrize("command", commands())
def test_commands_are_understood(command):
    _, *arguments = shlex.split(command, comments=True)
    redirected = [arguments.index(mark) for mark in ("<", ">", "|") if mark in arguments]
    typed = arguments[: min(redirected, default=len(arguments))]
    cli.build_app().parse_args(typed, exit_on_error=False, print_error=False)


@pages
def test_commands_within_the_text_have_names_and_options_that_exist(page):
    text, known = EXAMPLES.sub("", page.read_text("utf-8")), cli.COMMANDS
    for name, rest in re.findall(r"`entropix ([a-z]+)([^`]*)`", text):
        assert name in known, name
        options = {word for argument in arguments_of(name) for word in argument.names} | {"--help"}
        assert set(re.findall(r"(?<!\S)--?[a-z][\w-]*", rest)) <= options, f"{name}{rest}"


def test_commands_that_need_a_network_say_so_and_the_others_are_known():
    for page, command, comment in shell_lines():
        where = f"{page.name}: {command}"
        program, *arguments = command.split()
        assert bool(NETWORK.search(command)) == ("network" in comment), where
        assert program in OFFLINE or "network" in comment, where
        assert program != "make" or arguments[0] in TARGETS, where


@pytest.mark.parametrize(
    "code", [pytest.param(text, id=page.name) for page, _, text in examples("python")]
)
def test_python_examples_are_valid_and_import_what_exists(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("entropix_mlx"):
            module = importlib.import_module(node.module)
            assert [each.name for each in node.names if not hasattr(module, each.name)] == []


@pages
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text("utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pages
def test_links_to_sections_lead_to_a_heading(page):
    for target, section in re.findall(r"\]\(([\w./-]*\.md|)#([\w-]+)\)", page.read_text("utf-8")):
        text = (page.parent / target if target else page).read_text("utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        slugs = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
        assert section in slugs, f"{target}#{section}"
