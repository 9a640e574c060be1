#!/usr/bin/env bash
# Writes a software bill of materials (CycloneDX 1.6, JSON) of the installed environment to standard output.
#
#     tools/sbom.sh > sbom.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/install.sh test >&2
exec .venv/bin/python -m cyclonedx_py environment --pyproject pyproject.toml --output-reproducible --output-format JSON .venv/bin/python
