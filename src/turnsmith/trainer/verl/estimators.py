"""Our estimators in verl's registry. verl hands them neither values nor anchors, so those go round it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from turnsmith.trainer.advantages import CREDITS, estimate


def verl_name(estimator: str, credit: str) -> str:
    """The name under which verl knows an estimator of ours.

    Example:
        >>> verl_name("grpo", "turn")
        'turnsmith_grpo_turn'
    """
    return f"turnsmith_{estimator}_{credit}"


_extra: dict[str, Any] = {}


@contextmanager
def extra_inputs(**tensors: Any) -> Generator[None]:
    """Give `values` or `anchors` to the estimator that verl calls inside; its registry has no way to pass them."""
    _extra.update(tensors)
    try:
        yield
    finally:
        _extra.clear()


def register_estimators() -> None:
    """Register every estimator with every credit it goes with."""
    from verl.trainer.ppo.core_algos import register_adv_est

    for credit, names in CREDITS.items():
        for estimator in names:
            register_adv_est(verl_name(estimator, credit))(_named(estimator, credit))


def _named(estimator: str, credit: str) -> Any:
    def compute(token_level_rewards: Any, response_mask: Any, config: Any, index: Any, **unused: Any) -> Any:
        return estimate(
            estimator, credit, token_level_rewards, response_mask, index, config.gamma, config.lam, **_extra
        )

    return compute
