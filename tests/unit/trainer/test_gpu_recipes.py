"""What verl is given for each file in recipes/gpu, kept in a folder beside this file; `test_layouts.py` says how.

After a change that is meant, run this file (`python tests/unit/trainer/test_gpu_recipes.py`), and see the diff.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.unit.trainer.gpu_layouts import LAYOUTS
from tests.unit.trainer.test_layouts import keys_of

from turnsmith.config import ConfigStore
from turnsmith.config_sources import load
from turnsmith.records.yaml_text import dump_yaml
from turnsmith.trainer.config.check import verl_config
from turnsmith.trainer.config.layout import trainer_ranks
from turnsmith.trainer.config.to_verl import keys_we_set

FILES = sorted((Path(__file__).parents[3] / "recipes" / "gpu").glob("*.yaml"))
FOLDER = Path(__file__).parent / "gpu_recipes"


def config_of(file: Path, model: Path) -> ConfigStore:
    """The settings, with a model of the family that the file names: its config.json, which decides the forward pass."""
    config = load(file)
    family = "qwen3_moe" if "30B-A3B" in config.model.model_name else "qwen3"
    (model / "config.json").write_text(json.dumps({"model_type": family}))
    config.model.local_path, config.model.device = str(model), "cuda"
    return config


def as_text(file: Path, model: Path) -> str:
    config = config_of(file, model)
    theirs: Any = verl_config(config, run_dir="runs/dry-run")
    from omegaconf import OmegaConf

    usual = keys_of(LAYOUTS[0])
    names = [*usual, *keys_we_set(config), "actor_rollout_ref.model.use_fused_kernels", *config.verl]
    asked = {name.lstrip("+"): OmegaConf.select(theirs, name.lstrip("+")) for name in names}
    plain = {name: OmegaConf.to_container(one) if OmegaConf.is_config(one) else one for name, one in asked.items()}
    changed = {name: value for name, value in plain.items() if usual.get(name, usual.get(f"+{name}")) != value}
    for role in ("actor_rollout_ref", "critic"):
        del changed[f"{role}.model.path"]
    return dump_yaml(dict(sorted(changed.items())))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_verl_gets_the_keys_that_are_kept(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnsmith.inference.auto.has_flash_attention", lambda: False)
    kept = FOLDER / file.name
    assert as_text(file, tmp_path) == kept.read_text(), f"If this is meant: python {Path(__file__).name}, see the diff"


def test_the_layouts_are_those_that_the_page_names(tmp_path: Path) -> None:
    ranks = {file.stem: trainer_ranks(config_of(file, tmp_path)) for file in FILES}
    assert ranks == {
        "qwen3_30b_a3b_2x8": 16,
        "qwen3_4b_lora_24gb": 1,
        "qwen3_4b_lora_80gb": 1,
        "qwen3_8b_4x8_separate_async": 16,
        "qwen3_8b_8xh100": 8,
    }
    assert sorted(file.name for file in FOLDER.iterdir()) == [file.name for file in FILES]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in FILES:
        with tempfile.TemporaryDirectory() as folder:
            (FOLDER / each.name).write_text(as_text(each, Path(folder)))
