"""Who may ask: keys, hosts, origins."""

import asyncio

import pytest

from entropix_mlx import cli
from entropix_mlx.server.access import Access, is_loopback


def test_a_key_is_needed_for_all_but_the_page_and_health(client):
    locked = client.with_(access=Access("right"))
    for path in ("/v1/models", "/v1/models/tiny", "/metrics"):
        assert locked.get(path).status == 401
    for path in ("/", "/health"):
        assert locked.get(path).status == 200
    assert locked.post("/v1/explain", json={}).status == 401
    reply = locked.complete()
    assert reply.status == 401
    assert reply.error["code"] == "invalid_api_key"
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic right", "right"])
def test_a_wrong_key_is_refused(client, given):
    locked = client.with_(access=Access("right"))
    assert locked.get("/v1/models", headers={"Authorization": given}).status == 401
    for right in ({"Authorization": "bearer right"}, {"x-api-key": "right"}):
        assert locked.get("/v1/models", headers=right).status == 200
    assert locked.get("/v1/models", headers={"x-api-key": "wrong"}).status == 401


@pytest.mark.parametrize("code", ["utf-8", "latin-1"])
def test_a_key_may_hold_any_letter(client, code):
    locked = client.with_(access=Access("clé"))
    for key, status in (("clé", 200), ("cle", 401)):
        headers = {"Authorization": f"Bearer {key}".encode(code)}
        assert locked.get("/v1/models", headers=headers).status == status


@pytest.mark.parametrize(
    ("host", "fits"),
    [
        *[("localhost:8080", True), ("127.0.0.1", True), ("[::1]:80", True)],
        *[("evil.example", False), ("localhost.evil.example", False), ("", False)],
        *[("127.0.0.1:80:80", False), ("192.168.0.1", False), ("localhost:x", False)],
    ],
)
def test_a_name_that_points_here_is_not_enough(client, host, fits):
    for path in ("/v1/models", "/"):
        assert (client.get(path, headers={"Host": host}).status == 200) is fits


def test_pages_of_other_origins_may_not_ask(client):
    reply = client.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert reply.status == 403
    assert "access-control-allow-origin" not in reply.headers
    own = client.get("/v1/models", headers={"Origin": "http://localhost"})
    assert own.status == 200
    asked = client.with_(access=Access(origins=("https://good.example",)))
    headers = {"Origin": "https://good.example"}
    reply = asked.get("/v1/models", headers=headers)
    assert reply.headers["access-control-allow-origin"] == "https://good.example"
    headers["Access-Control-Request-Headers"] = "authorization"
    headers["Access-Control-Request-Method"] = "POST"
    reply = asyncio.run(asked.ask("OPTIONS", "/v1/completions", headers=headers))
    assert reply.status == 200
    assert reply.headers["access-control-allow-headers"] == "authorization"


def test_hosts_of_this_machine():
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "::1", "127.9.9.9")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "example.org", "10.0.0.1", "")))


def test_a_profile_is_never_a_path(client, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "entropix" / "profiles"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("[thresholds]\nlow_entropy = 99\nlow_varentropy = 99\n")
    (folder / "broken.toml").write_text("thresholds = 1")
    (tmp_path / "other.toml").write_text("")
    assert client.complete(profile="mine").choice["entropix"]["strategies"] == {"argmax": 8}
    for name in (str(folder / "mine.toml"), "../../other", "broken", "~/x.toml", "mine\0"):
        reply = client.complete(profile=name)
        assert reply.status == 400
        assert reply.error["param"] == "profile"
        assert str(tmp_path) not in reply.error["message"].replace(name, "")


@pytest.mark.parametrize(
    "options",
    [
        ["--allow-origin", "example.org"],
        ["--allow-origin", "https://example.org/page"],
        ["--api-key-file", "a", "--no-api-key"],
    ],
)
def test_options_that_make_no_sense_are_refused(options, capsys):
    assert cli.main(["serve", *options]) == 2
    assert options[0] in capsys.readouterr().err
