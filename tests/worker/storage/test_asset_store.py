"""Assets in both kinds of database, with names and hashes that neither could store as they came."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from darkroom.worker.errors import AssetNotFound
from darkroom.worker.inputs.folder import InputFolder
from darkroom.worker.inputs.uploads import UploadedFiles
from darkroom.worker.settings.outputs import InputLimits
from darkroom.worker.storage.asset_store import AssetStore
from tests.worker.databases import NewDatabase, opened


async def test_a_name_with_nul_is_stored_and_an_id_with_nul_is_unknown(
    tmp_path: Path, new_database: NewDatabase
) -> None:
    async with opened(tmp_path, new_database) as store:
        uploads = UploadedFiles(InputFolder(tmp_path / "input"), InputLimits(), 0)
        assets = AssetStore(store, uploads, 0, 60.0)
        asset, _ = await assets.add(io.BytesIO(b"content"), "shop", "image/png", "a\0b.png")
        assert asset.file_path == "a\ufffdb.png" and await assets.get(asset.id, "shop") == asset
        assert (await assets.of_hash(asset.hash, "shop", "c\0")).file_path == "c\ufffd"
        with pytest.raises(AssetNotFound):
            await assets.get("\0", "shop")
        with pytest.raises(AssetNotFound):
            await assets.of_hash("\0", "shop")
        with pytest.raises(AssetNotFound):
            await assets.get(asset.id, "another")
