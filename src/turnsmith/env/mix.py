"""Several environments in one run: each episode is played in one of them, as if there were no others.

A mix is a spec like any other; `rollout` asks it which environment an episode is for and plays it there. So tools,
agents, settings and isolation are each environment's own, and need nothing from the mix.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.mix_member import MixMember
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError

_GOLDEN = 0x9E3779B97F4A7C15
"""The golden ratio times 2**64, in integers: exact for seeds of any size."""


@dataclass(frozen=True, init=False)
class EnvironmentMix(EnvironmentSpec):
    """Environments to train in, in one run. Pass it wherever an environment is taken.

    The episodes of a group are all played in the same environment. In training, after any number of groups, each
    environment has had its share to within one group, and goes through its own seeds or tasks as if it were alone.
    Where nothing but the seed is known, as in an evaluation, the seed decides.

    Args:
        environments: Environments by name; for each, the environment, `(environment, weight)` or a `MixMember`. A list
            of them is named after its classes.
        curriculum: Let the shares follow the measured success: see `MixDataset`.

    Example:
        >>> from turnsmith.env.examples import GuessNumber, SimpleGameEnvironment
        >>> mix = EnvironmentMix({"guess": (GuessNumber, 3), "game": SimpleGameEnvironment})
        >>> {name: member.weight for name, member in mix.members.items()}
        {'guess': 3.0, 'game': 1.0}
        >>> [mix.member_for("", seed)[0] for seed in range(1000)].count("guess")
        750
    """

    members: dict[str, MixMember] = field(default_factory=dict[str, MixMember])
    """The environments, by name."""
    curriculum: bool = False

    def __init__(self, environments: Mapping[str, Any] | Iterable[Any], *, curriculum: bool = False) -> None:
        self._set(members=_members(environments), curriculum=curriculum)

    @property
    def name(self) -> str:
        """The name of a run with this mix."""
        return "mix"

    @property
    def weights(self) -> dict[str, float]:
        """The weights, by name."""
        return {name: member.weight for name, member in self.members.items()}

    def with_config(self, config: EnvironmentConfig | None) -> EnvironmentMix:
        """The same mix, with these settings where an environment has none of its own."""

        def configured(name: str, member: MixMember) -> EnvironmentSpec:
            try:
                spec = EnvironmentSpec.of(member.environment, config)
            except ConfigError as error:
                raise ConfigError(f"{name}, in the mix: {error}") from None
            if isinstance(spec, EnvironmentMix):
                raise ConfigError(f"{name} is a mix itself: name its environments in the outer mix.")
            return spec

        return self._changed(configured)

    def named(self, name: str) -> EnvironmentMix:
        """The same mix, with the name that it is imported by."""
        return self._changed(lambda _, member: member.environment)._set(target=name)

    def checked(self, hint: str = "") -> EnvironmentMix:
        """The same mix; `with_config` has checked its environments."""
        return self

    def isolated(self) -> EnvironmentMix:
        """The same mix with `auto` decided for each environment, and without their tasks, which episodes bring."""
        isolated = self._changed(lambda _, member: member.environment.isolated())
        return isolated._set(members={name: replace(one, dataset=None) for name, one in isolated.members.items()})

    def in_own_processes(self, which: Sequence[int]) -> EnvironmentMix:
        """The same mix; each environment whose number is given gets a worker process for itself."""
        if not which:
            return self
        own = [name for number, name in enumerate(self.members) if number in which]
        return self._changed(lambda name, member: member.environment.in_own_processes([0] if name in own else []))

    def member_for(self, name: str, seed: int) -> tuple[str, MixMember]:
        """The environment with this name; without a name, the seed decides, in proportion to the weights."""
        if not name:
            # Multiples of the golden ratio: even over any range of seeds, and independent of their remainders.
            ends = list(accumulate(self.weights.values()))
            place = seed * _GOLDEN % 2**64 / 2**64 * ends[-1]
            name = list(self.members)[min(bisect_right(ends, place), len(ends) - 1)]
        if name not in self.members:
            raise ConfigError(f"The mix has no environment {name}, only {', '.join(self.members)}.")
        return name, self.members[name]

    def each(self) -> list[EnvironmentSpec]:
        """Its environments."""
        return [member.environment for member in self.members.values()]

    def load(self) -> type:
        """Its own class, because those of its environments differ."""
        return type(self)

    def build(self) -> Any:
        """Raises a ConfigError, because a mix has several environments."""
        raise ConfigError(f"A mix is not one environment: build one of {', '.join(self.members)}.")

    def _changed(self, change: Callable[[str, MixMember], Any]) -> EnvironmentMix:
        """A copy in which each environment is replaced."""
        members = {name: replace(one, environment=change(name, one)) for name, one in self.members.items()}
        copy = EnvironmentMix(members, curriculum=self.curriculum)
        return copy._set(target=self.target, is_agent=any(getattr(spec, "is_agent", False) for spec in copy.each()))

    def _set(self, **values: Any) -> EnvironmentMix:
        for name, value in {"target": "", **vars(self), **values}.items():
            object.__setattr__(self, name, value)
        return self


def _members(environments: Mapping[str, Any] | Iterable[Any]) -> dict[str, MixMember]:
    if isinstance(environments, Mapping):
        named = [(str(name), _member(value)) for name, value in environments.items()]
    else:
        unnamed = [_member(value) for value in environments]
        named = [(EnvironmentSpec(_target(member.environment)).name, member) for member in unnamed]
    if not named:
        raise ConfigError("The mix has no environment: name at least one.")
    members: dict[str, MixMember] = {}
    for name, member in named:
        if not name:
            raise ConfigError("An environment of the mix has an empty name.")
        if name in members:
            raise ConfigError(
                f"Two environments of the mix are called {name}. Give each a name of its own: "
                'EnvironmentMix({"one": ..., "other": ...}).'
            )
        members[name] = member
    return members


def _member(value: Any) -> MixMember:
    if isinstance(value, MixMember):
        return value
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise ConfigError(f"{value} is not an environment of a mix: pass (environment, weight), or a MixMember.")
        return MixMember(value[0], weight=value[1])
    return MixMember(value)


def _target(environment: Any) -> Any:
    if isinstance(environment, EnvironmentSpec):
        return environment.target
    named = isinstance(environment, str | type) or (callable(environment) and not hasattr(environment, "reset"))
    return environment if named else type(environment)
