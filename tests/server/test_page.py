"""What the server sends for its page: files, rules, words, and the fields that it reads."""

import json
import re

import pytest

from entropix_mlx.palette import MEANINGS, SWATCHES
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import table
from entropix_mlx.server.access import Access
from entropix_mlx.step import Strategy
from entropix_mlx.traces.page import WEB

FILES = sorted(file.name for file in WEB.iterdir())
OWN = {name: WEB.joinpath(name).read_text("utf-8") for name in FILES if "vendor" not in name}


def tokens(reply) -> list[dict]:
    extras = [event["choices"][0].get("entropix", {}) for event in reply.events]
    return [one for one in extras if "token" in one]


def test_only_files_of_the_server_may_run(client):
    reply = client.get("/")
    stated = reply.headers["content-security-policy"].split(";")
    rules = dict(rule.strip().split(" ", 1) for rule in stated)
    assert rules["default-src"] == rules["trusted-types"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    inline = r"<style|\son\w+=|<script(?! type=\"application/json\"| type=\"module\" src=)"
    assert not re.search(inline, reply.content.decode())


def test_every_file_is_sent_without_a_key_and_no_other_is(client):
    locked = client.with_(access=Access("right"))
    kinds = {"js": "text/javascript", "css": "text/css", "txt": "text/plain", "html": "text/plain"}
    for name in FILES:
        reply = locked.get(f"/web/{name}")
        assert reply.status == 200, name
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["content-type"].startswith(kinds[name.rpartition(".")[2]])
    for name in ("missing.js", "..%2fapp.py", "%2e%2e%2fpage.py", "index.html%00"):
        assert client.get(f"/web/{name}").status == 404, name


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_loaded_from_elsewhere(client, name):
    imported = re.findall(r"(?:from |import )\"(.+?)\"", OWN[name])
    linked = re.findall(r"(?:href|src)=\"(?!data:)(.+?)\"", OWN[name])
    assert all(one.removeprefix("./") in FILES for one in imported)
    assert all(client.get(f"/{one}").status == 200 for one in linked)
    assert not re.search(r"innerHTML|url\(|@import|\beval\(", OWN[name])


def test_words_and_colours_are_those_of_the_terminal(client):
    page = client.get("/").content.decode()
    words = json.loads(re.findall(r'id="vocabulary">(.*?)</script>', page)[0])
    assert set(words["strategies"]) == set(Strategy)
    for strategy, (_, deed) in MEANINGS.items():
        shown = words["strategies"][strategy]
        assert (shown["glyph"], shown["deed"]) == (SWATCHES[strategy].glyph, deed)
    assert set(re.findall(r"WORDS\.(\w+)", "".join(OWN.values()))) <= set(words)
    for strategy, swatch in SWATCHES.items():
        rule = rf"\.{strategy}[^{{]*{{ --colour: rgb\({' '.join(map(str, swatch.rgb))}\); }}"
        assert re.search(rule, OWN["style.css"])


def test_the_regions_are_those_of_the_profile(client):
    shown = client.post("/v1/explain", json={"profile": "reference"}).json
    rows = table(Profile.load("reference"))
    assert [one["strategy"] for one in shown["tree"]] == [row.strategy for row in rows]
    assert shown["tree"][0]["bounds"]["entropy"] == [None, rows[0].bounds["entropy"][1]]
    assert {"entropy", "varentropy", "margin"} <= set(shown["scales"])
    assert client.post("/v1/explain", json={"sampler": "min_p"}).json["tree"] == []


def test_a_step_that_the_page_has_stored_is_explained(client):
    reply = client.chat(stream=True, logprobs=True, top_logprobs=3)
    for step in tokens(reply):
        why = client.post("/v1/explain", json={"step": step | {"reasoning": False}}).json["step"]
        decided = [case["strategy"] for case in why["cases"] if case["decided"]]
        assert len(decided) <= 1
        assert all(step["strategy"].startswith(name) for name in decided)
    read = set(re.findall(r"totals\??\.(\w+)", OWN["answer.js"]))
    totals = reply.events[-1]["choices"][0]["entropix"]
    assert read - {"usage", "finish_reason", "certainty"} <= set(totals)


def test_a_damaged_step_is_refused_by_name_or_explained(client):
    for step in ({}, [], "x", {"token": 1}, {"strategy": "no"}):
        reply = client.post("/v1/explain", json={"step": step})
        assert (reply.status, reply.error["param"]) == (400, "step")
    [step] = tokens(client.chat(stream=True, max_tokens=1))
    for name in step:
        for value in (None, "x", -1, 1e308, 10**30, [], {}, True, [1], "\ud800"):
            content = json.dumps({"step": step | {name: value}})
            assert client.post("/v1/explain", content=content).status in (200, 400)
