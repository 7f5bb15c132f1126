"""Reports: one page that holds everything, and in which a model's words are only words."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from entropix_mlx import Profile, cli
from entropix_mlx.errors import TraceError
from entropix_mlx.step import (
    Alternative,
    Attended,
    Branch,
    ChosenBy,
    Fork,
    Origin,
    Source,
    Strategy,
    first_divergence,
)
from entropix_mlx.traces.explain import explain
from entropix_mlx.traces.report import file_link, render
from entropix_mlx.traces.trace import read_trace, recorded
from tests.steps import HEADER, make_step, make_trace

HOSTILE = [
    *(
        "</script><script>alert(1)</script>",
        "<b>bold</b>",
        "&amp;",
        "\"quoted'",
        "<!--",
        "\x1b[31m",
    ),
    *("\x00", "\ufffd", "\udce9", "\u2028", "\n\t", "", "$title"),
]
VOID = {"meta", "br", "link"}


class Page(HTMLParser):
    """Checks that every element is closed, and collects what the tests ask about."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.tokens, self.data = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self.open.append((tag, attributes))
        if self.is_in_token():
            self.tokens.append("")

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1][1].get("id") == "data":
            self.data += data
        elif self.is_in_token():
            self.tokens[-1] += data

    def is_in_token(self):
        """Tell whether this is a token of an answer; those of the key say their strategy."""
        if len(self.open) < 2:
            return False
        inner, outer = self.open[-1][1].get("class", ""), self.open[-2][1].get("class")
        return inner.startswith("token") and outer == "text"

    def classes(self, word):
        return [a for _, a in self.elements if word in a.get("class", "").split()]


def page_of(*traces):
    return Page(render(traces))


@pytest.fixture
def steps():
    """An answer of every strategy, with an insertion and a fork, in hostile words."""
    found = [make_step(i, text, list(Strategy)[i % 7]) for i, text in enumerate(HOSTILE)]
    branches = tuple(
        Branch((1, 2), f"branch {n} <b>", -1.0 - n, 2.0, lead=0.5 * n) for n in range(3)
    )
    found[4] = replace(found[4], strategy=Strategy.THINK, origin=Origin.INSERTED, rolled_back=1)
    chosen = {"origin": Origin.CHOSEN, "rolled_back": 1, "fork": Fork(branches, 1, ChosenBy.USER)}
    found[6] = replace(found[6], strategy=Strategy.BRANCH, **chosen)
    found[8] = replace(found[8], top_logprobs=(Alternative(1, "</script>", -0.25),))
    return found


def test_a_models_words_stay_words(steps):
    question = [{"role": "user", "content": "<i>Hi</i> & \x1b"}]
    text = render([make_trace(steps, messages=question)])
    page = Page(text)
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert len(scripts) == 2, "the data, and the page's own"
    assert not [tag for tag, _ in page.elements if tag in ("b", "i")]
    assert page.tokens[:5] == [*HOSTILE[:5]]
    assert page.tokens[5:13] == [
        "␛[31m", "␀", "\ufffd", "?", "\u2028", "↵\n\t", "", "$title",
    ]  # fmt: skip
    assert "&lt;i&gt;Hi&lt;/i&gt; &amp; ␛" in text
    text.encode("utf-8")


def test_every_measurement_is_in_the_page(steps):
    (data,) = json.loads(page_of(make_trace(steps)).data)
    names = [name for name, _ in data["fields"]]
    for step, record in zip(steps, data["steps"], strict=True):
        values = dict(zip(names, record["values"], strict=True))
        assert values["entropy"] == pytest.approx(step.entropy, rel=1e-3)
        assert values["head_divergence"] == step.head_divergence
        assert values["strategy"] == step.strategy
        assert record["why"] == str(explain(Profile.load(), step))
    assert data["steps"][8]["alternatives"] == [["</script>", -0.25]]


def test_the_page_needs_no_network_and_says_so(steps):
    text = render([make_trace(steps)])
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|url\(|@import", text)
    assert not [a for _, a in Page(text).elements if "src" in a]


def test_interventions_and_forks_are_marked(steps):
    text = render([make_trace(steps)])
    page = Page(text)
    assert len(page.classes("mark")) == 2
    assert len(page.classes("flag")) == 4, "in two charts"
    assert len(page.classes("inserted")) == 2, "one of them in the key"
    assert "at token 6, chosen by user" in text
    assert len(page.classes("winner")) == 1
    assert len(page.classes("loser")) == 2
    assert [a["href"] for tag, a in page.elements if tag == "a"] == ["#fork-1-6"]
    assert any(a.get("id") == "fork-1-6" for _, a in page.elements)


def test_infinite_numbers_never_reach_the_page(steps):
    thresholds = {"branch_min_varentropy": float("inf"), "low_entropy": float("-inf")}
    profile = Profile.load().replace({"thresholds": thresholds})
    steps[0] = replace(steps[0], logprob=float("-inf"))
    trace = make_trace(steps, profile=profile)
    text = render([trace])
    assert not re.search(r"\b(inf|nan|Infinity)\b", text, re.IGNORECASE)
    page = Page(text)
    assert json.loads(page.data)[0]["steps"][0]["values"][0] is None
    drawn = {a["class"].split()[1] for a in page.classes("region")}
    assert drawn == {"think"}, "a rule that never applies here has no area"


def test_a_sampler_without_thresholds_has_no_areas(steps):
    assert not page_of(make_trace(steps, sampler="min_p")).classes("region")


def test_two_traces_stand_side_by_side(steps):
    other = [*steps[:3], replace(steps[3], token=999, text="else"), *steps[4:9]]
    traces = [make_trace(steps), make_trace(other)]
    assert first_divergence(steps, other) == 3
    text = render(traces)
    page = Page(text)
    assert len(page.classes("trace")) == 2
    assert len(page.classes("split")) == 2
    assert "share 3 tokens at their beginning" in text
    assert "<q>else</q>" in text
    shorter = [make_trace(steps), make_trace(steps[:5])]
    assert first_divergence(steps, steps[:5]) == 5
    assert "and nothing." in render(shorter)
    assert "the same, token by token" in render([traces[0], traces[0]])


def test_how_it_ended_is_shown(steps):
    endings = [None, {"finish_reason": None}, {"finish_reason": "interrupted"}]
    pages = {render([replace(make_trace(steps), totals=totals)]) for totals in endings}
    assert len(pages) == 3
    assert not page_of(make_trace([])).tokens


@pytest.mark.parametrize("count", [0, 3])
def test_other_numbers_of_traces_are_refused(steps, count):
    with pytest.raises(TraceError, match=f"not {count}"):
        render([make_trace(steps)] * count)


def long_answer(count=2000):
    words = ["The", "keeper", "counted", "ships", "<until>", "the", "lamp", "&", "out", ".\n"]
    others = tuple(Alternative(n, f" other{n}", -1.2345678 - n) for n in range(5))
    numbers = [{"attention_entropy": 2.345678 + i / 1e4, "logprob": -i / 777} for i in range(count)]
    return [
        make_step(i, " " + words[i % 10], list(Strategy)[i * 7 % 6], top_logprobs=others, **more)
        for i, more in enumerate(numbers)
    ]


def test_the_command_writes_a_page(steps, tmp_path, capsys):
    recording, page = tmp_path / "trace.jsonl", tmp_path / "report.html"
    list(recorded(steps, recording, HEADER))
    assert cli.main(["report", str(recording), "-o", str(page)]) == 0
    assert capsys.readouterr().out == ""
    assert page.read_text(encoding="utf-8") == render([read_trace(recording)])
    assert cli.main(["report", str(recording), str(recording)]) == 0
    assert "<!DOCTYPE html>" in capsys.readouterr().out
    for mistake in (["absent"], [str(recording)] * 3, [str(recording), "-o", str(tmp_path)]):
        assert cli.main(["report", *mistake]) == 2
        assert capsys.readouterr().err.startswith("entropix: ")
    before = recording.read_bytes()
    assert cli.main(["report", str(recording), "-o", str(recording)]) == 2
    assert recording.read_bytes() == before


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

DRIVE = """<script>
addEventListener("load", () => {
  const sections = [...document.querySelectorAll(".trace")];
  const found = sections.map((section) => {
    const text = section.querySelector(".text");
    text.focus();
    text.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
    const panel = document.getElementById("panel").textContent;
    const seen = section.querySelectorAll(".token.seen").length;
    section.querySelector(".token").dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
    return {panel, seen, left: section.querySelectorAll(".token.seen").length,
            first: document.getElementById("panel").textContent,
            on: section.querySelectorAll(".token.on").length,
            cursors: section.querySelectorAll(".cursor.on").length};
  });
  const wide = document.documentElement.scrollWidth > innerWidth;
  document.title = JSON.stringify({found, wide, seconds: performance.now() / 1000});
});
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_browser_opens_a_long_report_and_answers_the_pointer(tmp_path):
    answer = long_answer()
    answer[1] = replace(answer[1], text="<b>\x1b")
    page = tmp_path / "report.html"
    attention = {1: Attended(1, 0.5, [[0, 0.25]])}
    text = render([replace(make_trace(answer), attention=attention)])
    assert len(text.encode()) < 1_200_000
    page.write_text(text + DRIVE, encoding="utf-8")
    done = subprocess.run(
        [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
         "--window-size=500,800", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    dom = Page(done.stdout)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)[1]
    result = json.loads(title.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert len(dom.tokens) == 2000
    (found,) = result["found"]
    assert 'position 1  "<b>␛"' in found["panel"]
    assert "position 0" in found["first"]
    assert (found["seen"], found["left"]) == (1, 0)
    assert "prompt 50.0%, the shaded tokens 25.0%, others 25.0%" in found["panel"]
    assert "entropy 0.37 bits" in found["panel"]
    assert "other4" in found["panel"]
    assert (found["on"], found["cursors"]) == (1, 3)
    assert not result["wide"], "on a phone, the page does not scroll sideways"
    assert result["seconds"] < 5, "an idle machine takes well under one"


def test_a_passage_says_where_it_stands_and_leads_there(steps):
    steps[1] = replace(
        steps[1], origin=Origin.RETRIEVED, source=Source("a b/<i>.md", 3), rolled_back=1
    )
    pages = (page_of(make_trace(steps, notes=folder)) for folder in ("/home/me/notes", ""))
    links = [[a["href"] for a in page.classes("think") if "href" in a] for page in pages]
    assert links == [["file:///home/me/notes/a%20b/%3Ci%3E.md"], []]
    assert "&lt;i&gt;.md, line 3" in render([make_trace(steps)])


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        *(("/notes", name) for name in ("../secret.md", "a/../../secret.md", "/etc/passwd", "")),
        *((folder, "a.md") for folder in ("notes", "/notes/../etc", "//elsewhere/notes", "")),
        ("javascript:alert(1)//", "a.md"),
    ],
)
def test_a_link_leads_below_the_notes_or_nowhere(folder, name):
    assert file_link(folder, name) is None


def test_fields_of_a_json_answer_are_a_table_and_strain_is_in_the_panel():
    allowed = (Alternative(1, "1", -0.1), Alternative(2, "<b>", -2.0))
    steps = [
        make_step(0, '{"a<b":', strain=0.5),
        make_step(1, "1", logprob=-2.0, strain=2.0, allowed=allowed),
        make_step(2, "}", strain=0.0, finish_reason="stop"),
    ]
    page = Page(render([make_trace(steps)]))
    assert "table" in [tag for tag, _ in page.elements]
    assert "b" not in [tag for tag, _ in page.elements]
    names = [name for name, _ in json.loads(page.data)[0]["fields"]]
    assert names[-1] == "strain"
    assert "strain" not in str(json.loads(Page(render([make_trace()])).data)[0]["fields"])
