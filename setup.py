"""Map the repository's top folders into the one package that the distribution installs; pyproject.toml has the rest."""

from setuptools import find_packages, setup

MAPPED = ("worker", "engine", "modifiers", "host", "contract", "misc")

PACKAGES = find_packages(include=[f"{name}*" for name in MAPPED])

setup(
    package_dir={"darkroom": "darkroom", **{f"darkroom.{name}": name for name in MAPPED}},
    packages=["darkroom", "darkroom.client", "darkroom.misc", *(f"darkroom.{name}" for name in PACKAGES)],
)
