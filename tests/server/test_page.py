"""What the server sends for its page: files, rules, words, colours, and the fields that it
reads."""

import json
import re
from importlib import resources

import pytest

from entropix_mlx.palette import MEANINGS, SWATCHES
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import table
from entropix_mlx.server.access import Access
from entropix_mlx.step import Strategy

FILES = sorted(
    file.name for file in resources.files("entropix_mlx.server").joinpath("web").iterdir()
)
OWN = [name for name in FILES if not name.startswith("vendor")]
SCHEMA = {
    "type": "object",
    "properties": {"yes": {"enum": list("abcdefgh")}},
    "required": ["yes"],
    "additionalProperties": False,
}


def source(name: str) -> str:
    return resources.files("entropix_mlx.server").joinpath("web", name).read_text("utf-8")


def policy(reply) -> dict[str, str]:
    stated = reply.headers["content-security-policy"].split(";")
    return {name: value for name, _, value in (rule.strip().partition(" ") for rule in stated)}


def tokens(reply) -> list[dict]:
    told = [event["choices"][0].get("entropix", {}) for event in reply.events]
    return [one for one in told if "token" in one]


def totals(reply) -> dict:
    return reply.events[-1]["choices"][0]["entropix"]


def test_nothing_that_is_not_a_file_of_the_server_may_run(client):
    rules = policy(client.get("/"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["trusted-types"] == "'none'"
    page = client.get("/").content.decode()
    assert not re.search(
        r"<style|\son\w+=|<script(?! type=\"application/json\"| type=\"module\" src=)", page
    )


@pytest.mark.parametrize("name", [name for name in FILES if name != "index.html"])
def test_every_file_is_sent_without_a_key(client, name):
    reply = client.with_(access=Access("right")).get(f"/web/{name}")
    assert reply.status == 200
    assert reply.headers["x-content-type-options"] == "nosniff"
    kind = {"js": "text/javascript", "css": "text/css", "txt": "text/plain"}[
        name.rpartition(".")[2]
    ]
    assert reply.headers["content-type"].startswith(kind)


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_loaded_from_elsewhere(client, name):
    text = source(name)
    imported = re.findall(r"(?:from |import )\"(.+?)\"", text) if name.endswith(".js") else []
    linked = re.findall(r"(?:href|src)=\"(?!data:)(.+?)\"", text) if name.endswith(".html") else []
    assert all(one.removeprefix("./") in FILES for one in imported)
    assert all(client.get(f"/{one}").status == 200 for one in linked)
    assert "innerHTML" not in text
    assert not re.search(r"url\(|@import|\beval\(", text)


@pytest.mark.parametrize("name", ["missing.js", "..%2fapp.py", "%2e%2e%2fpage.py", "index.html%00"])
def test_other_files_are_not_sent(client, name):
    assert client.get(f"/web/{name}").status == 404


def test_the_words_are_those_of_the_terminal(client):
    page = client.get("/").content.decode()
    [data] = re.findall(r'<script type="application/json" id="vocabulary">(.*?)</script>', page)
    words = json.loads(data)
    assert set(words["strategies"]) == set(Strategy)
    for strategy, (state, deed) in MEANINGS.items():
        told = words["strategies"][strategy]
        assert (told["glyph"], told["state"], told["deed"]) == (
            SWATCHES[strategy].glyph,
            state,
            deed,
        )
    read = re.findall(r"WORDS\.(\w+)", "".join(map(source, OWN)))
    assert set(read) <= set(words)


def test_the_regions_are_those_of_the_profile(client):
    told = client.post("/v1/explain", json={"profile": "reference"}).json
    rows = table(Profile.load("reference"))
    assert [one["strategy"] for one in told["tree"]] == [row.strategy for row in rows]
    assert told["tree"][0]["bounds"]["entropy"] == [None, rows[0].bounds["entropy"][1]]
    assert {"entropy", "varentropy", "margin"} <= set(told["scales"])
    assert client.post("/v1/explain", json={"sampler": "min_p"}).json["tree"] == []


def test_a_step_that_the_page_has_stored_is_explained(client):
    for step in tokens(client.chat(stream=True, logprobs=True, top_logprobs=3)):
        stored = step | {"reasoning": False}
        why = client.post("/v1/explain", json={"step": stored}).json["step"]
        assert why["heading"].startswith(SWATCHES[Strategy(step["strategy"])].glyph)
        assert set(why["words"]) == {"entropy", "varentropy", "margin"}
        assert sum(case["decided"] for case in why["cases"]) <= 1


@pytest.mark.parametrize("step", [{}, [], "x", {"token": 1}, {"strategy": "no"}])
def test_what_is_no_step_is_refused_by_name(client, step):
    reply = client.post("/v1/explain", json={"step": step})
    assert (reply.status, reply.error["param"]) == (400, "step")


def test_a_damaged_step_is_refused_or_explained(client):
    [step] = tokens(client.chat(stream=True, max_tokens=1))
    for name in step:
        for value in (None, "x", -1, 1e308, 10**30, [], {}, True, [1], "\ud800"):
            content = json.dumps({"step": step | {name: value}})
            assert client.post("/v1/explain", content=content).status in (200, 400)


def test_totals_have_what_the_page_reads(client):
    sent = totals(client.chat(stream=True))
    read = set(re.findall(r"totals\??\.(\w+)", source("answer.js")))
    assert read - {"usage", "finish_reason", "fields", "answers"} <= set(sent)


def test_the_alternative_of_a_field_continues_a_form(client):
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": SCHEMA}}
    body = {"response_format": form, "stream": True, "max_tokens": 60, "stop": "</s>"}
    reply = client.chat(**body)
    [field] = totals(reply)["fields"]
    [other, *_] = field["alternatives"]
    steps = tokens(reply)
    forced = [step["token"] for step in steps[: other["step"]]] + [other["token"]]
    again = tokens(client.chat(**body, forced=forced))
    assert [step["token"] for step in again[: len(forced)]] == forced
    assert "".join(step["text"] for step in again).startswith("{")
