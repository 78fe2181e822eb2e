"""What an evaluation found: numbers with their intervals, the record for a run folder, and a paired comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError, RecordError
from turnsmith.records.episodes import read_episodes, write_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout.episode_report import EpisodeReport, report_of
from turnsmith.rollout.evaluation.intervals import (
    Estimate,
    PairedTest,
    compare_pairs,
    estimate_mean,
    estimate_pass_at,
    estimate_share,
)
from turnsmith.trajectory import Trajectory

PART = "eval"
"""Names the files of evaluations among a run's episode files."""
IN_TRAINING = "evaluations"
"""The folder of a run that has the episodes of evaluations in training, apart from those that were trained on."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an evaluation differs from an earlier one of the same starts; positive: the new one is better."""

    reward: PairedTest
    success: PairedTest
    starts: int
    """How many starts were compared; one in which every episode failed, on either side, is left out."""

    def __repr__(self) -> str:
        reward, success = (f"{test.difference}, p {test.p_value:.2g}" for test in (self.reward, self.success))
        return f"Comparison({self.starts} starts, reward {reward}; success {success})"

    def metrics(self, against: str) -> dict[str, Any]:
        """The comparison as flat names for a metrics file; `against` names the earlier run."""
        record: dict[str, Any] = {"compare/run": against, "compare/starts": self.starts}
        for name, test in (("reward", self.reward), ("success", self.success)):
            record |= {f"compare/{name}": test.difference.value, f"compare/{name}/p": test.p_value}
            if test.difference.has_interval:
                record |= {f"compare/{name}/low": test.difference.low, f"compare/{name}/high": test.difference.high}
        return record


@dataclass(slots=True)
class EvaluationResult:
    """The episodes of an evaluation, and what they say.

    Faults (a failing environment, engine or reward function) are not the model's doing: those episodes are kept and
    counted in `report`, and left out of every other number.

    Example:
        >>> from turnsmith.trajectory import Outcome
        >>> def episode(start: str, reward: float) -> Trajectory:
        ...     return Trajectory(actions=["a"], rewards=[reward], outcome=Outcome.COMPLETED, group_id=start)
        >>> result = EvaluationResult([episode("s1", 1.0), episode("s1", 0.0), episode("s2", 0.0), episode("s2", 0.0)])
        >>> result.reward.value, result.success.value, {k: found.value for k, found in result.pass_at().items()}
        (0.25, 0.25, {1: 0.25, 2: 0.5})
        >>> result
        EvaluationResult(4 episodes, 2 starts, reward 0.25 (-2.93 to 3.43), success 0.25 (0.0267 to 0.802))
    """

    trajectories: list[Trajectory]
    """All episodes that ended, in the order of their starts."""
    success_reward: float | None = None
    """The reward that makes an episode a success; None: see `is_success_told`."""
    seconds: float = 0.0
    """Wall-clock time of the evaluation."""

    def __repr__(self) -> str:
        starts, failed = len({one.group_id for one in self.trajectories}), len(self.trajectories) - len(self.counted)
        episodes = f"{len(self.trajectories)} episodes" + (f" ({failed} failed)" if failed else "")
        return f"EvaluationResult({episodes}, {starts} starts, reward {self.reward}, success {self.success})"

    @property
    def counted(self) -> list[Trajectory]:
        """The episodes whose end was the model's doing."""
        return [one for one in self.trajectories if one.is_counted]

    @property
    def report(self) -> EpisodeReport:
        """Outcomes, tool calls and format problems, over all episodes."""
        return report_of(self.trajectories)

    @property
    def is_success_told(self) -> bool:
        """Whether environments say themselves what a success is, in the `info` of the last turn of any episode.

        Then an episode that says nothing has failed. If no episode says anything, a reward above 0 is a success.
        """
        return self.success_reward is None and any(map(_tells_success, self.trajectories))

    @property
    def reward(self) -> Estimate:
        """Mean reward of an episode."""
        return estimate_mean([[one.total_reward for one in group] for group in self._groups().values()])

    @property
    def success(self) -> Estimate:
        """Share of episodes that succeed."""
        return estimate_share(self._successes())

    def pass_at(self) -> dict[int, Estimate]:
        """pass@k for k = 1, 2, 4 ... up to the number of episodes a start has; empty with one a start."""
        successes = self._successes()
        fewest, most = min(map(len, successes), default=1), max(map(len, successes), default=1)
        if most == 1:
            return {}
        powers = [2**place for place in range(most.bit_length())]
        wanted = dict.fromkeys([*powers, most] if fewest == most else powers)
        found = {k: estimate_pass_at(successes, k) for k in wanted}
        if fewest == most:
            found[1] = self.success  # the same number; of the two intervals, the one that is good near 0 and 1
        return found

    def metrics(self) -> dict[str, Any]:
        """One flat record under the names that training uses, and those that only evaluations have."""
        record = self.report.metrics()
        estimates = {"reward": self.reward, "success": self.success}
        estimates |= {f"pass@{k}": found for k, found in self.pass_at().items()}
        counted = self.counted
        if counted:
            record["success/mean"] = self.success.value
            record |= {name: found.value for name, found in estimates.items() if name.startswith("pass@")}
            for name, found in estimates.items():
                record |= {f"{name}/low": found.low, f"{name}/high": found.high} if found.has_interval else {}
            record["tokens/prompt"] = _mean(one.tokens.prompt_length for one in counted)
            record["tokens/response"] = _mean(len(one.tokens) - one.tokens.prompt_length for one in counted)
            record["tokens/model"] = _mean(sum(one.tokens.mask) for one in counted)
        record["starts"] = len({one.group_id for one in self.trajectories})
        record["time/evaluate"] = self.seconds
        return record

    def record(self, run: RunFolder, step: int = 0, **more: Any) -> None:
        """Keep the episodes and the metrics, with `more` names in them, in a run folder."""
        write_episodes(run, step, self.trajectories, part=PART)
        run.append_metrics({"step": step, **self.metrics(), **more})

    @classmethod
    def read(
        cls, folder: RunFolder | str | Path, success_reward: float | None = None, step: int | None = None
    ) -> EvaluationResult:
        """The evaluation that `turnsmith eval` left in a run folder, or the last one (or that of `step`) in training.

        Raises:
            RecordError: The folder holds no evaluation.
        """
        run = folder if isinstance(folder, RunFolder) else RunFolder.open(folder)
        name = "step-*" if step is None else f"step-{step:08d}"
        found = [sorted((run.path / inside).glob(f"{name}-{PART}.parquet")) for inside in (IN_TRAINING, "episodes")]
        files = next(filter(None, found), None)
        if files is None:
            raise RecordError(
                f"{run.path} holds no evaluation{'' if step is None else f' of step {step}'}: give the folder of an "
                "earlier `turnsmith eval`, or of a training run with evaluation.every."
            )
        return cls(read_episodes(files[-1]), success_reward)

    def compare(self, earlier: EvaluationResult) -> Comparison:
        """Test the difference to an earlier evaluation, paired by start; each start counts by its mean.

        Raises:
            ConfigError: The starts are not the same.

        Example:
            >>> from turnsmith.trajectory import Outcome
            >>> def played(*rewards: float) -> EvaluationResult:
            ...     paid = [Trajectory(rewards=[reward], outcome=Outcome.COMPLETED) for reward in rewards]
            ...     for number, trajectory in enumerate(paid):
            ...         trajectory.group_id = f"seed-{number}"
            ...     return EvaluationResult(paid)
            >>> played(1, 1, 0, 1, 1).compare(played(0, 0, 0, 1, 0))
            Comparison(5 starts, reward 0.6 (-0.0801 to 1.28), p 0.25; success 0.6 (-0.0801 to 1.28), p 0.25)
        """
        check_same_starts([one.group_id for one in self.trajectories], earlier)
        ours, theirs = self._groups(), earlier._groups()
        for name in ours.keys() & theirs.keys():
            _check_same_observation(ours[name], theirs[name])
        shared = [name for name in ours if name in theirs]
        told = self.is_success_told or (self.success_reward is None and earlier.is_success_told)

        def differences(value: Callable[[Trajectory], float]) -> list[float]:
            return [_mean(map(value, ours[name])) - _mean(map(value, theirs[name])) for name in shared]

        def success(one: Trajectory) -> float:
            return float(_succeeded(one, told, self.success_reward))

        return Comparison(
            compare_pairs(differences(lambda one: one.total_reward)), compare_pairs(differences(success)), len(shared)
        )

    def _groups(self) -> dict[str, list[Trajectory]]:
        groups: dict[str, list[Trajectory]] = {}
        for one in self.counted:
            groups.setdefault(one.group_id, []).append(one)
        return groups

    def _successes(self) -> list[list[float]]:
        told = self.is_success_told
        return [
            [float(_succeeded(one, told, self.success_reward)) for one in group] for group in self._groups().values()
        ]


def check_same_starts(starts: Iterable[str], earlier: EvaluationResult) -> None:
    """Refuse, in words, to compare with an evaluation that lacks one of these starts (their group ids)."""
    known = {one.group_id for one in earlier.trajectories}
    wanted = dict.fromkeys(starts)
    missing = [name for name in wanted if name not in known]
    if missing:
        raise ConfigError(
            f"The earlier evaluation cannot be compared: of the {len(wanted)} starts here it lacks {len(missing)}, "
            f"the first being {missing[0]}. Evaluate with the same --seed, and with no more starts than it had "
            f"({len(known)})."
        )


def _check_same_observation(ours: Sequence[Trajectory], theirs: Sequence[Trajectory]) -> None:
    seen = {one.states[0] for one in (*ours, *theirs) if one.states}
    if len(seen) > 1:
        raise ConfigError(
            f"The earlier evaluation cannot be compared: start {ours[0].group_id} opened with another observation "
            "then, so it is not the same start. Has the environment or one of its settings changed, or does `reset` "
            "not take its chance from the seed?"
        )


def _tells_success(trajectory: Trajectory) -> bool:
    return bool(trajectory.infos) and "success" in trajectory.infos[-1]


def _succeeded(trajectory: Trajectory, told: bool, success_reward: float | None) -> bool:
    if success_reward is not None:
        return trajectory.total_reward >= success_reward
    if told:
        return _tells_success(trajectory) and bool(trajectory.infos[-1]["success"])
    return trajectory.total_reward > 0


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
