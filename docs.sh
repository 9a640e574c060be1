#!/usr/bin/env bash
# The documentation as a site in build/site, with search and llms.txt; nothing of it needs a network but to draw diagrams.
#
#     ./docs.sh [--serve]      with --serve it is served on http://127.0.0.1:8080 until Ctrl+C: search needs a server
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

tools/install.sh docs
.venv/bin/python -m tools.docs_site
if [ "${1:-}" = --serve ]; then
  exec .venv/bin/python -m http.server --bind 127.0.0.1 --directory build/site 8080
fi
