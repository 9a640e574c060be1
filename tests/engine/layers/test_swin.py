"""Swin Transformer: windows, and which cells attend to one another. Its numbers are compared in `tests/parity`."""

from __future__ import annotations

import torch

from darkroom.engine.layers.swin import (
    Swin,
    SwinConfig,
    cells_apart,
    from_windows,
    relative_positions,
    swin_config,
    to_windows,
)


def test_windows_are_put_back_where_they_were() -> None:
    cells = torch.arange(2 * 6 * 9 * 4).view(2, 6, 9, 4)
    windows = to_windows(cells, 3)
    assert windows.shape == (2, 6, 9, 4)
    torch.testing.assert_close(windows[0, 1], cells[0, :3, 3:6].flatten(0, 1))
    torch.testing.assert_close(from_windows(windows, 3, cells.shape[1:3]), cells)


def test_pairs_of_the_same_distance_share_a_bias() -> None:
    rows = relative_positions(3, torch.device("cpu"))
    assert rows.shape == (9, 9)
    assert len(set(rows.diagonal().tolist())) == 1
    assert rows[0, 1] == rows[4, 5] and rows[0, 1] != rows[1, 0] and rows[0, 1] != rows[0, 3]
    assert rows.min() == 0 and rows.max() == 24


def test_only_the_last_shifted_windows_hold_cells_that_are_apart() -> None:
    apart = cells_apart(8, 8, 4, torch.device("cpu"))
    assert apart.shape == (4, 16, 16)
    assert apart[0].eq(0).all()
    assert apart[1, 0, 1] == 0 and apart[1, 1, 2] == -100 and apart[1, 2, 1] == -100
    assert apart[3, 0, 8] == -100 and apart[3, 8, 9] == 0


def test_its_configuration_is_read_from_its_tensors() -> None:
    config = SwinConfig(8, (2, 1, 3), (1, 2, 4), 5)
    with torch.device("meta"):
        shapes = {f"bb.{name}": tuple(weight.shape) for name, weight in Swin(config).state_dict().items()}
    assert swin_config(shapes, "bb.") == config
