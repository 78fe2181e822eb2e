"""The result of an evaluation: estimates with intervals, its record in a run folder, and a paired comparison."""

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
    estimate_proportion,
)
from turnsmith.trajectory import Trajectory, is_success

PART = "eval"
"""Marks the files of evaluations among a run's episode files."""
IN_TRAINING = "evaluations"
"""The folder inside a run folder for episodes of evaluations during training; none of them was trained on."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an evaluation differs from an earlier one on the same starts; positive means that the new one is better."""

    reward: PairedTest
    success: PairedTest
    starts: int
    """The number of starts compared, without those whose episodes all failed on either side."""

    def __repr__(self) -> str:
        reward, success = (f"{test.difference}, p {test.p_value:.2g}" for test in (self.reward, self.success))
        return f"Comparison({self.starts} starts, reward {reward}; success {success})"

    def metrics(self, against: str) -> dict[str, Any]:
        """The comparison as flat metrics; `against` names the earlier run."""
        record: dict[str, Any] = {"compare/run": against, "compare/starts": self.starts}
        for name, test in (("reward", self.reward), ("success", self.success)):
            record |= {f"compare/{name}": test.difference.value, f"compare/{name}/p": test.p_value}
            if test.difference.has_interval:
                record |= {f"compare/{name}/low": test.difference.low, f"compare/{name}/high": test.difference.high}
        return record


@dataclass(slots=True)
class EvaluationResult:
    """The episodes of an evaluation, and estimates from them.

    Episodes that ended in a fault (a failing environment, engine or reward function) say nothing about the model: they
    are counted in `report` and left out of every other number.

    Example:
        >>> from turnsmith.trajectory import Outcome
        >>> def episode(start: str, reward: float) -> Trajectory:
        ...     return Trajectory(actions=["a"], rewards=[reward], outcome=Outcome.COMPLETED, group_id=start)
        >>> result = EvaluationResult([episode("s1", 1.0), episode("s1", 0.0), episode("s2", 0.0), episode("s2", 0.0)])
        >>> result.reward.value, result.success.value, {k: rate.value for k, rate in result.pass_at().items()}
        (0.25, 0.25, {1: 0.25, 2: 0.5})
        >>> result
        EvaluationResult(4 episodes, 2 starts, reward 0.25 (-2.93 to 3.43), success 0.25 (0.0267 to 0.802))
    """

    trajectories: list[Trajectory]
    """All finished episodes, in the order of their starts."""
    success_reward: float | None = None
    """An episode with at least this reward is a success; None: see `has_success_info`."""
    seconds: float = 0.0
    """Wall-clock time of the evaluation."""

    def __repr__(self) -> str:
        failed = len(self.trajectories) - len(self.counted)
        episodes = f"{len(self.trajectories)} episodes" + (f" ({failed} failed)" if failed else "")
        return f"EvaluationResult({episodes}, {self._num_starts} starts, reward {self.reward}, success {self.success})"

    @property
    def counted(self) -> list[Trajectory]:
        """The episodes that did not end in a fault."""
        return [trajectory for trajectory in self.trajectories if trajectory.is_counted]

    @property
    def report(self) -> EpisodeReport:
        """Outcomes, tool calls and format problems of all episodes."""
        return report_of(self.trajectories)

    @property
    def has_success_info(self) -> bool:
        """Whether the environment reports success itself, in the `info` of the last turn of any episode.

        Then an episode without that key is a failure. If no episode has it, a reward above 0 is a success.
        """
        return self.success_reward is None and any(one.reported_success is not None for one in self.trajectories)

    @property
    def reward(self) -> Estimate:
        """Mean reward of an episode."""
        groups = self._groups().values()
        return estimate_mean([[trajectory.total_reward for trajectory in group] for group in groups])

    @property
    def success(self) -> Estimate:
        """Success rate."""
        return estimate_proportion(self._successes())

    def pass_at(self) -> dict[int, Estimate]:
        """pass@k for k = 1, 2, 4 ... up to the number of episodes per start; empty if that is 1."""
        successes = self._successes()
        fewest, most = min(map(len, successes), default=1), max(map(len, successes), default=1)
        if most == 1:
            return {}
        powers = [2**exponent for exponent in range(most.bit_length())]
        estimates = {k: estimate_pass_at(successes, k) for k in ([*powers, most] if fewest == most else powers)}
        if fewest == most:
            estimates[1] = self.success  # the same value; of the two intervals, the one that holds near 0 and 1
        return estimates

    def metrics(self) -> dict[str, Any]:
        """One flat record: the metrics that training has too, and those that only evaluations have."""
        record = self.report.metrics()
        counted = self.counted
        if counted:
            pass_at = {f"pass@{k}": estimate for k, estimate in self.pass_at().items()}
            record |= {"success/mean": self.success.value, **{name: rate.value for name, rate in pass_at.items()}}
            for name, estimate in {"reward": self.reward, "success": self.success, **pass_at}.items():
                if estimate.has_interval:
                    record |= {f"{name}/low": estimate.low, f"{name}/high": estimate.high}
            record["tokens/prompt"] = _mean(trajectory.tokens.prompt_length for trajectory in counted)
            record["tokens/response"] = _mean(episode.response_length for episode in counted)
            record["tokens/model"] = _mean(trajectory.sampled_tokens for trajectory in counted)
        record["starts"] = self._num_starts
        record["time/evaluate"] = self.seconds
        return record

    def record(self, run: RunFolder, step: int = 0, **more: Any) -> None:
        """Write the episodes and the metrics, with `more` added to them, to a run folder."""
        write_episodes(run, step, self.trajectories, part=PART)
        run.append_metrics({"step": step, **self.metrics(), **more})

    @classmethod
    def read(
        cls, folder: RunFolder | str | Path, success_reward: float | None = None, step: int | None = None
    ) -> EvaluationResult:
        """Read an evaluation from a run folder: that of `turnsmith eval`, or of training at `step` (default: the last).

        Raises:
            RecordError: The folder has no such evaluation.
        """
        run = folder if isinstance(folder, RunFolder) else RunFolder.open(folder)
        name = "step-*" if step is None else f"step-{step:08d}"
        candidates = [
            sorted((run.path / inside).glob(f"{name}-{PART}.parquet")) for inside in (IN_TRAINING, "episodes")
        ]
        files = next(filter(None, candidates), None)
        if files is None:
            raise RecordError(
                f"{run.path} has no evaluation{'' if step is None else f' of step {step}'}: pass the run folder of a "
                "`turnsmith eval`, or of a training run with evaluation.every."
            )
        return cls(read_episodes(files[-1]), success_reward)

    def compare(self, earlier: EvaluationResult) -> Comparison:
        """Test the difference to an earlier evaluation, paired by start; each start counts with its mean.

        Raises:
            ConfigError: The starts are not the same.

        Example:
            >>> from turnsmith.trajectory import Outcome
            >>> def episode(number: int, reward: float) -> Trajectory:
            ...     return Trajectory(rewards=[reward], outcome=Outcome.COMPLETED, group_id=f"seed-{number}")
            >>> before, after = (
            ...     EvaluationResult([episode(number, reward) for number, reward in enumerate(rewards)])
            ...     for rewards in ([0, 0, 0, 1, 0], [1, 1, 0, 1, 1])
            ... )
            >>> after.compare(before)
            Comparison(5 starts, reward 0.6 (-0.0801 to 1.28), p 0.25; success 0.6 (-0.0801 to 1.28), p 0.25)
        """
        check_same_starts([trajectory.group_id for trajectory in self.trajectories], earlier)
        ours, theirs = self._groups(), earlier._groups()
        shared = [name for name in ours if name in theirs]
        for name in shared:
            _check_same_observation(ours[name], theirs[name])
        by_info = self.has_success_info or (self.success_reward is None and earlier.has_success_info)

        def compare_means(value: Callable[[Trajectory], float]) -> PairedTest:
            return compare_pairs([_mean(map(value, ours[name])) - _mean(map(value, theirs[name])) for name in shared])

        return Comparison(
            compare_means(lambda trajectory: trajectory.total_reward),
            compare_means(lambda trajectory: self._success_of(trajectory, by_info)),
            len(shared),
        )

    @property
    def _num_starts(self) -> int:
        return len({trajectory.group_id for trajectory in self.trajectories})

    def _groups(self) -> dict[str, list[Trajectory]]:
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in self.counted:
            groups.setdefault(trajectory.group_id, []).append(trajectory)
        return groups

    def _successes(self) -> list[list[float]]:
        by_info = self.has_success_info
        return [[self._success_of(episode, by_info) for episode in group] for group in self._groups().values()]

    def _success_of(self, episode: Trajectory, by_info: bool) -> float:
        reported, reward = episode.reported_success, episode.total_reward
        return float(is_success(reported, reward, by_info=by_info, least_reward=self.success_reward))


def check_same_starts(starts: Iterable[str], earlier: EvaluationResult) -> None:
    """Raise a `ConfigError` unless the earlier evaluation has all these starts (given by their group ids)."""
    known = {trajectory.group_id for trajectory in earlier.trajectories}
    wanted = dict.fromkeys(starts)
    missing = [name for name in wanted if name not in known]
    if missing:
        raise ConfigError(
            f"Cannot compare with the earlier evaluation: it lacks {len(missing)} of the {len(wanted)} starts of this "
            f"one, the first being {missing[0]}. Use the same --seed, and no more starts than it had ({len(known)})."
        )


def _check_same_observation(ours: Sequence[Trajectory], theirs: Sequence[Trajectory]) -> None:
    observations = {trajectory.states[0] for trajectory in (*ours, *theirs) if trajectory.states}
    if len(observations) > 1:
        raise ConfigError(
            f"Cannot compare with the earlier evaluation: start {ours[0].group_id} began with a different observation "
            "then. Has the environment or its config changed, or does `reset` use randomness that is not derived from "
            "the seed?"
        )


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
