"""The documents against the code: the schema of traces, commands, links."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from entropix_mlx import Profile, cli
from entropix_mlx.step import (
    Alternative,
    Branch,
    Dropped,
    DropReason,
    Fork,
    Metrics,
    Origin,
    Source,
    Step,
    Strategy,
)
from entropix_mlx.summary import Summary
from entropix_mlx.traces.trace import VERSION, Header

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
README_LINES = 170


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def documented(heading):
    """Return the first table after a line of docs/traces.md: {field: row}."""
    after = read("docs/traces.md").split(f"\n{heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE).group()
    return {m[1]: m[0] for m in re.finditer(r"^\| `(\w+)` \|.*$", table, re.MULTILINE)}


@pytest.mark.parametrize(
    ("heading", "record", "more"),
    [
        ("## Header", Header, {"record", "format", "version"}),
        ("## Step", Step, {"record"}),
        ("An element of `top_logprobs`:", Alternative, set()),
        ("`dropped`:", Dropped, set()),
        ("`source`:", Source, set()),
        ("`fork`:", Fork, set()),
        ("A rollout:", Branch, set()),
    ],
)
def test_every_field_of_a_trace_is_documented(heading, record, more):
    assert set(documented(heading)) == {field.name for field in fields(record)} | more


def test_the_footer_of_a_trace_is_documented():
    rows, totals = documented("## Footer"), Summary().to_dict()
    assert set(rows) == {"record", *totals}
    for name in ("usage", "interventions", "speculation", "timings"):
        assert all(f"`{part}`" in rows[name] for part in totals[name])


def test_every_word_of_a_step_is_documented():
    rows = documented("## Step")
    assert all(f"`{strategy}`" in rows["strategy"] for strategy in Strategy)
    assert all(f"`{origin}`" in rows["origin"] for origin in Origin)
    assert all(f"`{reason}`" in documented("`dropped`:")["reason"] for reason in DropReason)
    assert f"{VERSION} today" in documented("## Header")["version"]


def test_every_measurement_and_strategy_is_explained():
    page = read("docs/sampler.md")
    assert all(name in page for name in Metrics._fields)
    assert all(f"`{strategy}`" in page for strategy in Strategy)


def test_the_explained_numbers_are_those_of_the_reference():
    page, profile = read("docs/sampler.md"), Profile.load()
    at, base = profile.thresholds, profile.base
    for claim in (
        f"H < {at.low_entropy:g} and V < {at.low_varentropy:g}",
        f"H > {at.think_min_entropy:g} and V < {at.think_max_varentropy:g}",
        f"H < {at.branch_max_entropy:g} and V > {at.branch_min_varentropy:g}",
        f"H > {at.resample_min_entropy:g} and V > {at.resample_min_varentropy:g}",
        f"{base.temperature}, {base.top_p:.2f}, {base.top_k} and {base.min_p}",
        f"draws {profile.adaptive.candidates} candidates",
        f"at most {profile.think.max_insertions} times",
        f"at least {profile.think.min_gap} tokens between",
        f"`wait` = {profile.think.wait} tokens",
        f"`watch` = {profile.think.watch} tokens",
        f"`loop_length` = {profile.think.loop_length} tokens",
        f"up to {profile.branch.depth} tokens",
        f"at most {profile.branch.max_branches} forks",
        f"`margin` = {profile.branch.margin:g} standard error",
        f"`ask_margin` = {profile.branch.ask_margin:g} standard error",
        f"`halve_from` = {profile.branch.halve_from} tokens",
        f"`copy_length` = {profile.branch.copy_length} tokens",
    ):
        assert claim in " ".join(page.split()), claim


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_marks_of_examples_stand_alone_and_in_pairs(page):
    marks = [line.strip() for line in page.read_text("utf-8").splitlines() if "```" in line]
    assert [mark for mark in marks if not re.fullmatch(r"```\w*", mark)] == []
    assert set(marks[1::2]) <= {"```"}
    assert len(marks) % 2 == 0


def commands():
    """Yield every line of a shell example that runs `entropix`, with its page."""
    for page in PAGES:
        blocks = re.findall(r"```(sh|console)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        for kind, block in blocks:
            prompt = "$ " if kind == "console" else ""
            for line in block.splitlines():
                if line.startswith(f"{prompt}entropix "):
                    command = line.removeprefix(prompt).split("  #")[0]
                    yield pytest.param(command, id=f"{page.name}: {command}")


@pytest.mark.parametrize("command", commands())
def test_commands_in_the_documents_are_understood(command):
    _, *arguments = shlex.split(command, comments=True)
    redirected = [arguments.index(mark) for mark in "<>" if mark in arguments]
    arguments = arguments[: min(redirected, default=len(arguments))]
    cli.build_parser().parse_args(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text("utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_readme_is_short():
    assert len(read("README.md").splitlines()) <= README_LINES
