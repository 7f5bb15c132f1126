"""The one place that states the version, and a look-up of those of other packages."""

__version__ = "0.1.0"
REPOSITORY = "https://github.com/entropix-mlx/entropix_mlx"
PACKAGES = ("entropix_mlx", "mlx", "mlx-lm")


def installed_versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a source tree that was never installed
            found[package] = "unknown"
    return found
