"""`comfy.k_diffusion.utils`: images of a folder as a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset


class FolderOfImages(Dataset[tuple[Any]]):
    """The images below a folder, sorted by path, each as a tuple of one after `transform`."""

    IMG_EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"})

    def __init__(self, root: str, transform: Callable[[Image.Image], Any] | None = None) -> None:
        self.root = Path(root)
        self.transform = transform
        self.paths: Sequence[Path] = sorted(
            path for path in self.root.rglob("*") if path.suffix.lower() in self.IMG_EXTENSIONS
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: int) -> tuple[Any]:
        with self.paths[key].open("rb") as file:
            image = Image.open(file).convert("RGB")
        return (image if self.transform is None else self.transform(image),)
