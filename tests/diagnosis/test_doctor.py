"""`entropix models --check`: something true and useful wherever it runs, and an exit code."""

import json

import pytest

from entropix_mlx.diagnosis import checks
from entropix_mlx.diagnosis.checks import Level, check_device
from entropix_mlx.diagnosis.device import DeviceFacts, probe, use
from entropix_mlx.errors import DeviceError

MEMORY = 16 * 10**9


@pytest.mark.parametrize(
    ("device", "platform", "nvidia", "advised"),
    [
        (DeviceFacts("gpu", "Apple M2", 12 * 10**9), "darwin", False, []),
        (DeviceFacts("cpu", "Apple M2", None), "darwin", False, ["Metal"]),
        (DeviceFacts("cpu", "EPYC", None), "linux", False, ["demo model"]),
        (DeviceFacts("cpu", "EPYC", None), "linux", True, ["cuda"]),
    ],
)
def test_what_a_device_means(monkeypatch, device, platform, nvidia, advised):
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(checks.Path, "exists", lambda _: nvidia)
    found = list(check_device(device, MEMORY))
    advice = [check.advice for check in found if check.level is Level.ADVICE]
    assert len(advice) == len(advised)
    assert all(word in text for word, text in zip(advised, advice, strict=True))


def test_the_device_of_this_machine_is_found():
    assert probe() == use()


@pytest.fixture
def doctor(entropix, monkeypatch, tmp_path):
    """Run it with a device that need not be looked for; return the code and the checks by name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(checks, "probe", lambda: DeviceFacts("gpu", "Apple M2", None))

    def doctor():
        code, out, err = entropix("models", "--check", "--json")
        text_code, text, text_err = entropix("models", "--check")
        assert (text_code, err, text_err) == (code, "", "")
        listed = json.loads(out)["checks"]
        assert all(check["name"] in text and check["advice"] in text for check in listed)
        assert str(tmp_path) not in text
        assert code == any(check["level"] == "fault" for check in listed)
        return code, {check["name"]: check for check in listed}

    return doctor


def test_without_a_model_and_in_a_pipe(doctor):
    code, found = doctor()
    assert code == 0
    assert found["models"]["advice"] == "entropix models --download demo"
    assert found["terminal"]["level"] == "advice"
    assert found["configuration"]["found"].endswith("config.toml")


@pytest.mark.parametrize(
    "text", ["[options", '[options]\ntemp = "hot"', '[screen]\ntheme = "none"', "[keys]\nx = 1"]
)
def test_a_broken_configuration_is_a_fault(doctor, tmp_path, monkeypatch, text):
    folder = tmp_path / "entropix"
    folder.mkdir()
    (folder / "config.toml").write_text(text)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    code, found = doctor()
    assert code == 1
    assert "config.toml" in found["configuration"]["found"]


def test_a_cache_that_cannot_be_written_is_a_fault_without_a_model(doctor, tmp_path):
    (tmp_path / "cache").touch()
    code, found = doctor()
    assert code == 1
    assert found["models"]["level"] == "fault"


@pytest.mark.parametrize("error", [DeviceError("no answer"), RuntimeError(), MemoryError("x\ny")])
def test_whatever_goes_wrong_is_a_fault(doctor, monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(checks, "probe", fail)
    code, found = doctor()
    assert code == 1
    assert found["device"]["level"] == "fault"


def test_mlx_that_cannot_be_imported_is_a_fault(entropix, monkeypatch, tmp_path):
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").write_text("raise ImportError('libmlx.so: damaged')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    code, out, err = entropix("models", "--check")
    assert (code, err) == (1, "")
    assert "libmlx.so: damaged" in out


def test_the_version_names_mlx_and_the_device(entropix):
    code, out, _ = entropix("--version")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "entropix_mlx", "mlx", "mlx-lm", "device",
    ]  # fmt: skip
