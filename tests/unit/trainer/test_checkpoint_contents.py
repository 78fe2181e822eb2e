"""Which checkpoint a path means, whether it fits, and what is added to what verl writes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from transformers import AutoTokenizer

from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import RecordError
from turnsmith.inference.chat.formats import FORMATS
from turnsmith.records.checkpoints import Checkpoint, PendingCheckpoint, read_state, write_state
from turnsmith.records.signing_key import key_path
from turnsmith.trainer.checkpoints.contents import CheckpointPolicy, check_fit, complete, find_checkpoint
from turnsmith.trainer.checkpoints.hugging_face import shard_path, write_template


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))


def actor(folder: Path, ranks: int = 1, missing: int | None = None) -> None:
    """What verl writes, without the weights."""
    (folder / "actor").mkdir(parents=True)
    (folder / "actor" / "fsdp_config.json").write_text(f'{{"world_size": {ranks}}}')
    for rank in range(ranks):
        if rank != missing:
            shard_path(folder / "actor", ranks, rank).write_bytes(b"")


def save(folder: Path, step: int, ranks: int = 1) -> Path:
    draft = PendingCheckpoint(folder, step)
    actor(draft.path, ranks)
    saving = CheckpointPolicy(every=1, keep_last_n=1, with_model=False, trust_remote_code=False)
    draft.add_checksums(complete(draft.path, saving, {"step": step}, lambda finish: list(map(finish, range(ranks)))))
    draft.seal()
    return draft.commit()


def find(path: Path, trust: bool = False) -> int:
    return find_checkpoint(path, trust=trust, warn=print).step


def test_a_path_may_be_the_checkpoint_a_folder_of_them_or_a_run(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        save(tmp_path / "run" / "checkpoints", step)
    assert find(tmp_path / "run") == 100
    assert find(tmp_path / "run" / "checkpoints") == 100
    assert find(tmp_path / "run" / "checkpoints" / "global_step_9") == 9


@pytest.mark.parametrize("name", ["", "missing", "global_step_7", "global_step_x"])
def test_a_folder_without_checkpoints_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match="expected a folder called global_step_N"):
        find(tmp_path / name)


def test_what_verl_wrote_on_its_own_takes_trust(tmp_path: Path) -> None:
    actor(tmp_path / "global_step_5")
    with pytest.raises(RecordError, match=r"no manifest\.json"):
        find(tmp_path / "global_step_5")
    assert find(tmp_path / "global_step_5", trust=True) == 5


def test_pickles_of_another_user_are_refused_before_anything_starts(tmp_path: Path) -> None:
    save(tmp_path / "saved", 3)
    key_path().unlink()
    trainer = RayPPOTrainer(ConfigStore(), GuessNumber)
    with pytest.raises(RecordError, match=r"Loading it runs code from its files: if you trust them, pass trust"):
        trainer.load_checkpoint(tmp_path / "saved")
    assert trainer.run is None


def test_loading_into_another_number_of_ranks_is_told(tmp_path: Path) -> None:
    save(tmp_path, 3, ranks=2)
    told: list[str] = []
    check_fit(find_checkpoint(tmp_path, trust=False, warn=print), ConfigStore(), told.append)
    assert len(told) == 1
    assert "written by 2 ranks and is loaded by 1" in told[0]
    assert "random numbers (dropout) are new" in told[0]


@pytest.mark.parametrize(
    ("overrides", "groups", "told"),
    [
        ({"training.schedule": "sync"}, 3, "has 3 groups of episodes under way, which training.schedule=sync would"),
        ({"training.schedule": "sync"}, None, "has some groups of episodes under way"),
        ({"training.schedule": "sync"}, 0, ""),
        ({}, 3, ""),
        ({"ray.num_nodes": 2}, 3, "under way in 1 storage processes of TransferQueue, but this run would have 2"),
        ({"ray.num_nodes": 2}, 0, "in 1 storage processes"),
    ],
)
def test_episodes_under_way_that_a_run_could_not_take_over_are_refused(
    overrides: dict[str, Any], groups: int | None, told: str, tmp_path: Path
) -> None:
    folder = tmp_path / "global_step_3"
    actor(folder)
    write_state(folder, {} if groups is None else {"groups_under_way": groups})
    units = folder / "transfer_queue" / "simple_storage" / "storage_unit_info.json"
    units.parent.mkdir(parents=True)
    units.write_text('[{"position": 0, "storage_unit_id": "a"}]')
    config = ConfigStore()
    config.model.device, config.training.schedule = "cpu", "colocate_async"
    for name, value in overrides.items():
        section, field = name.split(".")
        setattr(getattr(config, section), field, value)
    with pytest.raises(RecordError, match=told) if told else nullcontext():
        check_fit(Checkpoint(folder, 3, signed=True), config, lambda sentence: None)


def test_each_rank_hashes_what_it_wrote_and_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = PendingCheckpoint(tmp_path, 3)
    actor(draft.path, ranks=2)
    for name in ("critic/model_world_size_2_rank_0.pt", "critic/optim_world_size_2_rank_1.pt", "data.pt"):
        (draft.path / name).parent.mkdir(exist_ok=True)
        (draft.path / name).write_bytes(b"x" * 1000)
    read: list[str] = []

    def file_digest(file: BinaryIO, method: str, hashing: Callable[..., Any] = hashlib.file_digest) -> Any:
        read.append(file.name.partition("global_step_3/")[2])
        return hashing(file, method)

    monkeypatch.setattr(hashlib, "file_digest", file_digest)
    by_rank: list[list[str]] = []

    def on_every_rank(finish: Callable[[int], Any]) -> list[Any]:
        answers = [finish(rank) for rank in range(2)]
        by_rank.extend(sorted(answer) for answer in answers)
        read.clear()
        return answers

    saving = CheckpointPolicy(every=1, keep_last_n=1, with_model=False, trust_remote_code=False)
    draft.add_checksums(complete(draft.path, saving, {"step": 3}, on_every_rank))
    draft.seal()
    assert by_rank == [
        ["actor/model_world_size_2_rank_0.pt", "critic/model_world_size_2_rank_0.pt"],
        ["actor/model_world_size_2_rank_1.pt", "critic/optim_world_size_2_rank_1.pt"],
    ]
    assert sorted(read) == ["actor/fsdp_config.json", "data.pt", "trainer.json"]
    assert find(draft.commit()) == 3


def test_the_state_names_the_versions(tmp_path: Path) -> None:
    state = read_state(save(tmp_path, 3))
    assert state["step"] == 3
    assert state["versions"].keys() == {"turnsmith", "verl", "torch", "transformers"}
    told: list[str] = []
    check_fit(find_checkpoint(tmp_path, trust=False, warn=print), ConfigStore(), told.append)
    assert told == []


def test_a_rank_whose_part_is_elsewhere_is_noticed_when_saving(tmp_path: Path) -> None:
    actor(tmp_path / "global_step_3", ranks=3, missing=1)
    saving = CheckpointPolicy.of(ConfigStore())
    assert saving == CheckpointPolicy(every=1, keep_last_n=2, with_model=True, trust_remote_code=False)
    with pytest.raises(RecordError, match=r"weights of rank 1 are not in .* must be a shared folder"):
        complete(tmp_path / "global_step_3", saving, {}, lambda finish: [])


def test_a_checkpoint_keeps_the_template_that_the_run_used(tiny_folder: str, tmp_path: Path) -> None:
    def template(name: str, *, own: bool, used: str | None) -> str:
        folder = tmp_path / name
        tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
        tokenizer.chat_template = "its own" if own else None
        tokenizer.save_pretrained(folder)
        write_template(folder, used)
        return AutoTokenizer.from_pretrained(folder).chat_template

    assert template("own", own=True, used=None) == "its own"
    assert template("chosen", own=True, used="chosen") == "chosen"
    assert template("none", own=False, used=None) == FORMATS["plain"]
    assert template("given", own=False, used="given") == "given"
