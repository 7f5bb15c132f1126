"""`entropix doctor`: something true and useful wherever it runs, and the exit code that it
promises."""

import json
from dataclasses import replace

import pytest

from entropix_mlx.diagnosis import facts as facts_module
from entropix_mlx.diagnosis.device import DeviceFacts
from entropix_mlx.diagnosis.facts import (
    MODELS,
    Facts,
    FolderFacts,
    MachineFacts,
    ModelFacts,
    TerminalFacts,
)
from entropix_mlx.diagnosis.findings import Level, findings
from entropix_mlx.errors import DeviceError

GPU = DeviceFacts("gpu", "Apple M2", 12 * 10**9, "fast", 2000.0, 2500.0)
CPU = DeviceFacts("cpu", "", None, "fast", 60.0, 2.0)
MAC = Facts(
    machine=MachineFacts("Apple M2", 8, 16 * 10**9, "macOS 15.5", "arm64", False),
    python="3.12.1, ~/bin/python",
    versions={"mlx": "0.32.4"},
    broken_requirements=[],
    device=GPU,
    device_fault=None,
    terminal=TerminalFacts(True, "xterm-256color", "utf-8", 2**24, 120, 40),
    folders=[FolderFacts(MODELS, "~/Library/Caches", True, 10**11)],
    models=[ModelFacts("demo", 10**8, "Q4_1", None)],
    models_fault=None,
    configuration="~/.config/entropix/config.toml",
    configuration_fault=None,
)
LINUX = replace(MAC.machine, system="Linux 6.1", architecture="x86_64")
CLOSED = [FolderFacts(MODELS, "~/.cache", False, None)]
FULL = [FolderFacts(MODELS, "~/.cache", True, 10**6)]


def worst(facts):
    order = (Level.GOOD, Level.ADVICE, Level.FAULT)
    return max((finding.level for finding in findings(facts)), key=order.index)


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, Level.GOOD),
        ({"device": CPU}, Level.ADVICE),
        ({"device": CPU, "machine": LINUX}, Level.ADVICE),
        ({"device": replace(CPU, blas="reference"), "machine": LINUX}, Level.ADVICE),
        ({"device": None, "device_fault": "no libmlx", "models": []}, Level.FAULT),
        ({"models": []}, Level.ADVICE),
        ({"models": [], "folders": CLOSED}, Level.FAULT),
        ({"models": [replace(MAC.models[0], fault="damaged")]}, Level.ADVICE),
        ({"models": [], "models_fault": "broken cache"}, Level.FAULT),
        ({"folders": CLOSED}, Level.ADVICE),
        ({"folders": FULL}, Level.ADVICE),
        ({"terminal": TerminalFacts(False, "", "ascii", 0)}, Level.ADVICE),
        ({"terminal": replace(MAC.terminal, encoding="ascii")}, Level.ADVICE),
        ({"terminal": replace(MAC.terminal, colours=16)}, Level.ADVICE),
        ({"configuration_fault": "line 3: no such option"}, Level.FAULT),
        ({"broken_requirements": ["transformers>=5 is not installed"]}, Level.FAULT),
        ({"environment": {"HF_HUB_OFFLINE": "1"}}, Level.ADVICE),
    ],
)
def test_what_facts_mean(changes, level):
    found = findings(replace(MAC, **changes))
    assert worst(replace(MAC, **changes)) is level
    assert all(finding.advice for finding in found if finding.level is not Level.GOOD)
    assert len({finding.text for finding in found}) == len(found)


def test_an_nvidia_gpu_that_is_not_used_is_named():
    plain, card = (
        findings(replace(MAC, device=CPU, machine=replace(LINUX, nvidia=nvidia)))
        for nvidia in (False, True)
    )
    assert plain != card
    assert any("cuda" in finding.advice for finding in card)


@pytest.fixture
def doctor(entropix, monkeypatch, tmp_path):
    """Run it with a device that need not be measured; return the exit code and the record."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(facts_module, "probe", lambda: CPU)

    def doctor():
        code, out, err = entropix("doctor", "--json")
        assert err == ""
        text_code, text, err = entropix("doctor")
        assert (text_code, err) == (code, "")
        record = json.loads(out)
        assert all(finding["text"] in text for finding in record["findings"])
        assert str(tmp_path) not in json.dumps(record | {"environment": {}})
        return code, record

    return doctor


def test_without_a_model_and_in_a_pipe(doctor):
    code, record = doctor()
    assert code == 0
    assert record["models"] == []
    assert not record["terminal"]["interactive"]
    assert "entropix models --download demo" in [one["advice"] for one in record["findings"]]


@pytest.mark.parametrize(
    "text", ["[options", '[options]\ntemp = "hot"', '[screen]\ntheme = "none"', "[keys]\nx = 1"]
)
def test_a_broken_configuration_is_a_fault(doctor, tmp_path, monkeypatch, text):
    folder = tmp_path / "entropix"
    folder.mkdir()
    (folder / "config.toml").write_text(text)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    code, record = doctor()
    assert code == 1
    assert "config.toml" in record["configuration_fault"]
    assert record["findings"][0]["level"] == "fault"


def test_a_cache_that_cannot_be_written_is_a_fault_without_a_model(doctor, tmp_path):
    (tmp_path / "cache").touch()
    code, record = doctor()
    assert code == 1
    assert not next(one for one in record["folders"] if one["holds"] == MODELS)["writable"]


def test_mlx_that_does_not_work_is_a_fault(entropix, monkeypatch, tmp_path):
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").write_text("raise ImportError('libmlx.so: damaged')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    code, out, err = entropix("doctor", "--json")
    record = json.loads(out)
    assert (code, err, record["device"]) == (1, "", None)
    assert "libmlx.so: damaged" in record["device_fault"]


def test_a_device_that_does_not_answer_is_a_fault(doctor, monkeypatch):
    def probe():
        raise DeviceError("MLX did not answer within 60 s")

    monkeypatch.setattr(facts_module, "probe", probe)
    code, record = doctor()
    assert code == 1
    assert record["device"] is None


def test_the_version_names_mlx_and_the_device(entropix):
    code, out, _ = entropix("--version")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "entropix_mlx", "mlx", "mlx-lm", "device",
    ]  # fmt: skip
