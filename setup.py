"""List the packages that the distribution installs; pyproject.toml has the rest."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["darkroom*"]), "darkroom.misc"])
