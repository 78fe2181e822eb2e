"""Every error turnwise raises on purpose.

    TurnwiseError
    ├── ConfigError          a setting is unknown, unused or impossible
    ├── MissingDependency    an optional package is not installed
    ├── EnvironmentFailure   the user's environment raised or broke its contract
    ├── EngineFailure        the engine could not generate
    ├── TrainingFailure      the run stopped before its last step
    └── RecordError          a run folder is missing, damaged or of another format

Messages say what happened, why, and what to do, in one or two sentences. All of them survive pickling, because they
cross process borders.
"""

from __future__ import annotations


class TurnwiseError(Exception):
    """Base of all errors that turnwise raises on purpose.

    Example:
        >>> issubclass(ConfigError, TurnwiseError)
        True
    """


class ConfigError(TurnwiseError):
    """A setting is unknown, unused or impossible."""


class MissingDependency(TurnwiseError):
    """An optional package is not installed."""


class EnvironmentFailure(TurnwiseError):
    """The user's environment raised, or broke its contract (wrong types, no observation)."""


class EngineFailure(TurnwiseError):
    """The engine could not generate."""


class TrainingFailure(TurnwiseError):
    """The run stopped before its last step."""


class RecordError(TurnwiseError):
    """A run folder is missing, damaged or of another format."""
