"""What the episodes of a run are like: tokens, turns and time in the environment."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.records.episodes import iter_episodes
from turnsmith.records.files import read_file
from turnsmith.rollout.spec import Limits
from turnsmith.trajectory import Trajectory

_MOST_EPISODES = 256


class EpisodeTurn(NamedTuple):
    """One turn."""

    sampled: int
    """Tokens of the model."""
    observed: int
    """Tokens of the environment's answer."""
    environment: float
    """Seconds of the environment."""


@dataclass(frozen=True)
class EpisodeSample:
    """Some episodes, as an example of all.

    Example:
        >>> sample = EpisodeSample("an example", 100, [[EpisodeTurn(20, 10, 0.0)] * 2, [EpisodeTurn(10, 0, 0.0)]])
        >>> sample.turns, sample.sampled, sample.response
        (1.5, 25.0, 35.0)
    """

    source: str
    """Where this is from, in words."""
    prompt: float
    """Tokens of the opening prompt."""
    episodes: list[list[EpisodeTurn]]

    @classmethod
    def of_settings(cls, config: ConfigStore) -> Self:
        """The longest episodes that the limits allow."""
        limits = Limits.of(config.inference)
        turns = limits.turns
        sampled = max(1, min(config.inference.max_tokens, limits.tokens // turns))
        observed = (limits.tokens - turns * sampled) // max(1, turns - 1)  # nothing is observed after the last turn
        one = [EpisodeTurn(sampled, observed, 0.0)] * (turns - 1) + [EpisodeTurn(sampled, 0, 0.0)]
        return cls("the limits in the settings: no episode is longer", limits.prompt_tokens, [one])

    @classmethod
    def of_episodes(cls, played: Iterable[Trajectory], source: str) -> Self:
        """A sample of episodes that were played."""
        known = list(islice((one for one in played if one.turns), _MOST_EPISODES))
        if not known:
            raise ConfigError(f"{source} has no episode with a turn, so nothing is known about tokens and times.")
        prompts = statistics.fmean(one.tokens.prompt_length for one in known)
        return cls(source, prompts, [_turns(one) for one in known])

    @classmethod
    def of_file(cls, path: str | Path) -> Self:
        """Read a run folder of `turnsmith train` or `turnsmith eval`, or a JSON file of `turnsmith check --model`."""
        path = Path(path).expanduser()
        if path.is_dir():
            return cls.of_episodes(iter_episodes(path), str(path))
        try:
            found = json.loads(read_file(path))["sample"]
            return cls(str(path), found["prompt"], [[EpisodeTurn(*turn) for turn in one] for one in found["episodes"]])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} is neither a run folder nor a file with an episode sample ({error!r}). `turnsmith check "
                "--model M --json FILE` writes one."
            ) from None

    def as_dict(self) -> Mapping[str, Any]:
        """The sample as JSON."""
        return asdict(self)

    def without_waiting(self) -> EpisodeSample:
        """The same episodes with environments that take no time."""
        return EpisodeSample(
            self.source, self.prompt, [[turn._replace(environment=0.0) for turn in one] for one in self.episodes]
        )

    @property
    def turns(self) -> float:
        """Mean turns of an episode."""
        return statistics.fmean(map(len, self.episodes))

    @property
    def sampled(self) -> float:
        """Mean tokens that the model samples in an episode."""
        return statistics.fmean(sum(turn.sampled for turn in one) for one in self.episodes)

    @property
    def response(self) -> float:
        """Mean tokens of an episode after its opening prompt."""
        return statistics.fmean(_response(one) for one in self.episodes)

    @property
    def longest(self) -> float:
        """Tokens of the longest response."""
        return max(_response(one) for one in self.episodes)


def _response(turns: list[EpisodeTurn]) -> int:
    return sum(turn.sampled + turn.observed for turn in turns)


def _turns(episode: Trajectory) -> list[EpisodeTurn]:
    """The turns of an episode. An observation lies between two turns; after the last turn there is none."""
    found: list[EpisodeTurn] = []
    for place, turn in enumerate(episode.turns):
        after = episode.turns[place + 1].start if place + 1 < len(episode.turns) else turn.stop
        found.append(EpisodeTurn(turn.stop - turn.start, max(0, after - turn.stop), turn.step_seconds))
    return found
