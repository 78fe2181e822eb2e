"""What verl is given for GPU layouts, from one GPU to 64 nodes of eight, kept in a folder beside this file.

The first file has every key that we set, the others the keys in which they differ from it. No GPU is needed to know
what would be sent; that verl accepts it is checked in `verl_behaviour.py`. After a change that is meant, run this file
(`python tests/unit/trainer/test_layouts.py`) to write them anew, and see the diff.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.unit.trainer.gpu_layouts import LAYOUTS, Layout

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.records.yaml_text import dump_yaml
from turnsmith.trainer.config.check import check
from turnsmith.trainer.config.layout import micro_batch_size
from turnsmith.trainer.config.to_verl import keys_we_set

FOLDER = Path(__file__).parent / "layouts"


def keys_of(layout: Layout) -> dict[str, Any]:
    return keys_we_set(apply_overrides(ConfigStore(), layout.settings()))


def as_text(layout: Layout) -> str:
    first = {} if layout == LAYOUTS[0] else keys_of(LAYOUTS[0])
    keys = {name: value for name, value in keys_of(layout).items() if name not in first or first[name] != value}
    assert first.keys() <= keys_of(layout).keys()
    return dump_yaml(dict(sorted(keys.items())))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_verl_gets_the_keys_that_are_kept(layout: Layout) -> None:
    kept = FOLDER / f"{layout.name}.yaml"
    assert as_text(layout) == kept.read_text(), f"If this is meant: python {Path(__file__).name}, and see the diff"


def test_no_file_is_left_of_a_layout_that_is_gone() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(layout.name for layout in LAYOUTS)


@pytest.mark.parametrize("nodes", [1, 4, 64])
@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
@pytest.mark.parametrize("sequence", [1, 2, 4, 8])
def test_every_parallel_size_that_fits_a_node_is_accepted(nodes: int, tensor: int, sequence: int) -> None:
    check(apply_overrides(ConfigStore(), Layout(nodes, 8, tensor, sequence).settings()))


@pytest.mark.parametrize(("batch", "most", "size"), [(24, 8, 8), (24, 7, 6), (6, 4, 3), (7, 4, 1), (8, 32, 8)])
def test_a_forward_pass_has_the_largest_divisor_of_the_batch_that_is_allowed(batch: int, most: int, size: int) -> None:
    config = apply_overrides(ConfigStore(), [f"training.batch_size={batch}", f"training.micro_batch_size={most}"])
    assert micro_batch_size(config) == size


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    for each in LAYOUTS:
        (FOLDER / f"{each.name}.yaml").write_text(as_text(each))
