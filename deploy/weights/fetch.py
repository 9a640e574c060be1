"""Fetch model files before the worker starts: `python fetch.py MANIFEST [MODELS_FOLDER]`. Standard library only.

A line of the manifest is `SHA256 FOLDER/NAME URL`; empty lines and lines with `#` in front are left out. A file that is
there with the right SHA-256 is not fetched again. A file appears under its name only when it is whole and right.
Exit code 1, after all lines, when one of them failed.
"""

import hashlib
import sys
import urllib.request
from pathlib import Path

CHUNK_BYTES = 1 << 20


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(sha256: str, path: Path, url: str) -> None:
    """Raises OSError where the file cannot be fetched, ValueError where it is another one."""
    if path.is_file() and digest_of(path) == sha256:
        print(f"{path}: is there", flush=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    got = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=60) as response, partial.open("wb") as file:
        while chunk := response.read(CHUNK_BYTES):
            got.update(chunk)
            file.write(chunk)
    if got.hexdigest() != sha256:
        partial.unlink()
        raise ValueError(f"SHA-256 is {got.hexdigest()}, expected {sha256}")
    partial.replace(path)
    print(f"{path}: {path.stat().st_size} bytes", flush=True)


def main(manifest: Path, models: Path) -> int:
    failed = 0
    for line in manifest.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        sha256, name, url = line.split(maxsplit=2)
        path = (models / name).resolve()
        try:
            if not path.is_relative_to(models.resolve()):
                raise ValueError("is outside the models folder")
            fetch(sha256, path, url)
        except (OSError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "/base/models")))
