import random
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from turnsmith.errors import RecordError
from turnsmith.records import episodes
from turnsmith.records.episode_files import episode_files
from turnsmith.records.episode_schema import NEWER_COLUMNS
from turnsmith.records.episodes import iter_episodes, read_episodes, write_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.trajectory import Decision, Outcome, Trajectory, TurnRecord


def make_episode(number: int, length: int = 60, turn: int = 10) -> Trajectory:
    rng = random.Random(number)
    episode = Trajectory(episode_id=f"e{number}", group_id=f"g{number // 8}", outcome=Outcome.COMPLETED, seed=number)
    episode.tokens.open(range(length // 5))
    episode.messages.append({"role": "system", "content": "Play."})
    while len(episode.tokens) < length:
        ids = [int(49_000 ** rng.random()) for _ in range(turn)]
        start, stop = episode.tokens.append_model(ids, [-rng.expovariate(1) for _ in ids])
        episode.tokens.append_context(ids[:3])
        episode.turns.append(TurnRecord(start, stop, rng.choice(["stop", "length"]), 7, rng.random(), rng.random()))
        episode.states.append("a door")
        episode.actions.append("open it")
        episode.rewards.append(0.1)
        episode.dones.append(False)
        episode.infos.append({"seen": [1, None, {"x": 0.5}]})
        episode.messages += [{"role": "user", "content": "a door"}, {"role": "assistant", "content": "open it"}]
    return episode


def test_episodes_come_back_exactly(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    written = [make_episode(number, length=20 + 10 * number) for number in range(20)]
    written[3].score = 0.7
    written[4].outcome, written[4].error = Outcome.ENVIRONMENT_FAILED, "ValueError: no"
    written[5].decision, written[5].attempt, written[5].exact = Decision.MASKED, 2, False
    written[6].environment, written[6].reward_shares = "maze", {"style": 0.5}
    written[6].task = {"question": "2 + 2?", "tags": ["a", 1, None]}
    written[7].turns[0].swaps = ((13, 8),)
    written[8].branches = [make_episode(9).tokens]
    written[8].turns[0].branch = 1
    written.append(Trajectory())
    file = write_episodes(run, 1, written)
    assert file.name == "step-00000001-0.parquet"
    assert read_episodes(run) == read_episodes(file) == read_episodes(str(run.path), step=1) == written
    assert read_episodes(run, step=2) == []


def test_of_a_large_row_the_beginnings_of_its_columns_are_kept(tmp_path: Path) -> None:
    episode = make_episode(1)
    episode.task = {"question": "Who?", "page": "word " * 100_000, "more": list(range(9_000))}
    episode.task |= {f"column {number}": "x" for number in range(99)}
    kept = read_episodes(write_episodes(tmp_path, 1, [episode]))[0].task
    assert kept is not None
    assert kept["question"] == "Who?"
    assert kept["page"].endswith("word  ... (500,000 characters)")
    assert kept["more"].startswith("[0,1,2,")
    assert len(str(kept)) < 5_000


def test_steps_and_parts_are_kept_apart(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    for step in (10, 2):
        for part in ("1", "0"):
            write_episodes(run, step, [make_episode(step + int(part))], part)
    assert [episode.episode_id for episode in iter_episodes(run)] == ["e2", "e3", "e10", "e11"]
    assert [episode.episode_id for episode in read_episodes(run, 10)] == ["e10", "e11"]
    write_episodes(run, 2, [], "0")
    assert [episode.episode_id for episode in read_episodes(run, 2)] == ["e3"]


def test_columns_are_typed_for_any_reader(tmp_path: Path) -> None:
    file = write_episodes(tmp_path, 5, [make_episode(1)])
    table = pq.read_table(file)
    kinds = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert kinds["token_ids"] == "list<element: int32>"
    assert kinds["mask"] == "list<element: bool>"
    assert kinds["log_probs"] == "list<element: float>"
    assert kinds["messages"] == "list<element: struct<role: string, content: string>>"
    row = table.to_pylist()[0]
    assert row["step"] == 5
    assert row["outcome"] == "completed"
    assert row["reward"] == pytest.approx(0.1 * row["num_turns"])


def test_an_episode_of_a_thousand_tokens_takes_few_bytes(tmp_path: Path) -> None:
    file = write_episodes(tmp_path, 1, [make_episode(number, 1000, 100) for number in range(64)])
    tokens = sum(len(episode.tokens) for episode in read_episodes(file))
    # 9 bytes a token in memory. Log-probs are noise of 3 bytes and random ids of 2, which no packing can go below.
    assert file.stat().st_size / tokens < 5.5


def test_a_big_step_is_written_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "_TOKENS_IN_BLOCK", 200)
    written = [make_episode(number) for number in range(10)]
    file = write_episodes(tmp_path, 1, written)
    assert pq.ParquetFile(file).metadata.num_row_groups > 2
    assert read_episodes(file) == written


@pytest.mark.parametrize(("limit", "row_groups"), [(60, 2), (119, 2), (120, 1)])
def test_a_block_is_full_at_its_limit(
    limit: int, row_groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "_TOKENS_IN_BLOCK", limit)
    written = [Trajectory(episode_id=name) for name in ("a", "b")]
    for episode in written:
        episode.tokens.open(range(60))
    file = write_episodes(tmp_path, 1, written)
    assert pq.ParquetFile(file).metadata.num_row_groups == row_groups
    assert read_episodes(file) == written


def test_text_that_utf8_cannot_hold_does_not_lose_the_step(tmp_path: Path) -> None:
    odd = Trajectory(actions=["\ud800"], states=["ok"], messages=[{"role": "user", "content": "\udfff"}])
    odd.infos = [{"object": object(), "nan": float("nan")}]
    odd.error = "\ud800"
    (read,) = read_episodes(write_episodes(tmp_path, 1, [odd]))
    assert read.actions == ["\ufffd"]
    assert read.infos[0]["nan"] == "NaN"


def test_a_file_from_before_some_columns_existed_can_be_read(tmp_path: Path) -> None:
    written = [make_episode(1), make_episode(2)]
    table = pq.read_table(write_episodes(tmp_path, 1, written))
    old = tmp_path / "step-00000001-old.parquet"
    pq.write_table(table.drop_columns(list(NEWER_COLUMNS)), old)
    assert read_episodes(old) == written


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        write_episodes(tmp_path, 1, [make_episode(1), None])  # type: ignore[list-item]
    assert list((tmp_path / "episodes").iterdir()) == []


def test_half_written_files_are_not_episodes(tmp_path: Path) -> None:
    write_episodes(tmp_path, 1, [make_episode(1)])
    (tmp_path / "episodes" / ".step-00000002-0.parquet.17.tmp").write_bytes(b"half")
    assert len(episode_files(tmp_path)) == 1


def test_what_is_not_an_episode_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="There are no episodes at"):
        read_episodes(tmp_path / "nowhere")
    (tmp_path / "step-00000001-0.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(RecordError, match="Cannot read the Parquet file"):
        read_episodes(tmp_path)
    pq.write_table(
        pq.read_table(write_episodes(tmp_path, 1, [])).replace_schema_metadata({}), tmp_path / "other.parquet"
    )
    with pytest.raises(RecordError, match="it has format none"):
        read_episodes(tmp_path / "other.parquet")
    with pytest.raises(RecordError, match="is not a valid part name"):
        write_episodes(tmp_path, 1, [], part="../x")


def _longer_mask(episode: Trajectory) -> None:
    episode.tokens.mask.append(0)


def _longer_prompt(episode: Trajectory) -> None:
    episode.tokens.prompt_length = len(episode.tokens.ids) + 1


def _negative_prompt(episode: Trajectory) -> None:
    episode.tokens.prompt_length = -1


def _turn_in_the_prompt(episode: Trajectory) -> None:
    episode.turns[0].start = episode.tokens.prompt_length - 1


def _turn_that_ends_before_it_starts(episode: Trajectory) -> None:
    episode.turns[0].stop = episode.turns[0].start - 1


def _turn_beyond_the_end(episode: Trajectory) -> None:
    episode.turns[-1].stop = len(episode.tokens.ids) + 1


def _turn_of_no_branch(episode: Trajectory) -> None:
    episode.turns[0].branch = 1


def _turn_of_a_negative_branch(episode: Trajectory) -> None:
    episode.turns[0].branch = -1


def _huge_reward(episode: Trajectory) -> None:
    episode.rewards[0] = -1e100


def _huge_score(episode: Trajectory) -> None:
    episode.score = 1e100


def _endless(episode: Trajectory) -> None:
    episode.seconds = float("inf")


_DAMAGE = {
    "the tokens of an episode do not fit together": [_longer_mask, _longer_prompt, _negative_prompt],
    "a turn of an episode is not within its tokens": [
        _turn_in_the_prompt,
        _turn_that_ends_before_it_starts,
        _turn_beyond_the_end,
        _turn_of_no_branch,
        _turn_of_a_negative_branch,
    ],
    "a reward or a time of an episode is not a finite number": [_huge_reward, _huge_score, _endless],
}


@pytest.mark.parametrize(
    ("sentence", "damage"), [(sentence, damage) for sentence, listed in _DAMAGE.items() for damage in listed]
)
def test_an_episode_that_contradicts_itself_is_not_written_and_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentence: str, damage: Callable[[Trajectory], None]
) -> None:
    episode = make_episode(1)
    damage(episode)
    with pytest.raises(RecordError, match=f"The episode {episode.episode_id} cannot be recorded: {sentence}"):
        write_episodes(tmp_path, 1, [make_episode(2), episode])
    assert not list(tmp_path.rglob("*.parquet"))
    with monkeypatch.context() as another_writer:
        another_writer.setattr(episodes, "_check", lambda trajectory: None)
        file = write_episodes(tmp_path, 1, [episode])
    with pytest.raises(RecordError, match=sentence):
        read_episodes(file)


def test_an_episode_at_the_edge_of_what_it_may_say_is_read(tmp_path: Path) -> None:
    episode = make_episode(1)
    episode.rewards[0], episode.score, episode.seconds = -9e99, 9e99, 0.0
    episode.turns[0].start = episode.turns[0].stop = episode.tokens.prompt_length
    episode.turns[-1].stop = len(episode.tokens.ids)
    empty = Trajectory(turns=[TurnRecord(0, 0, "stop", 0)], rewards=[0.0])
    assert read_episodes(write_episodes(tmp_path, 1, [episode, empty])) == [episode, empty]
