"""The coefficient of the KL penalty: fixed, or adapted to a target KL.

Reference implementation: training uses verl's `FixedKLController` and `AdaptiveKLController`, and
`tests/unit/algo/test_against_verl.py` checks that the adaptive ones agree.
"""

from __future__ import annotations

import math


class KLController:
    """Coefficient of the KL penalty (Ziegler et al. 2019, https://arxiv.org/abs/1909.08593).

    If adaptive, after each batch:

        e     = clip(current_kl / target_kl - 1, -0.2, 0.2)
        value = value * (1 + e * min(n_steps / horizon, 1))

    Two differences from verl. verl has no `min`, so a batch larger than five horizons can make its coefficient
    negative, which rewards moving away from the reference. And a NaN KL leaves our value as it is; verl's becomes NaN
    for good.

    Args:
        init_kl_coef: Initial value.
        target_kl: The KL that the adaptive controller aims for.
        adaptive: Whether `update` changes the value at all.
        horizon: Number of episodes over which a correction takes full effect.

    Example:
        >>> controller = KLController(init_kl_coef=0.01, target_kl=0.01, adaptive=True)
        >>> controller.update(current_kl=0.015, n_steps=1024)
        >>> round(controller.value, 6)
        0.010205
    """

    def __init__(
        self, init_kl_coef: float, target_kl: float = 0.1, adaptive: bool = False, horizon: float = 10_000
    ) -> None:
        if adaptive and not (target_kl > 0 and horizon > 0):
            raise ValueError(
                f"target_kl ({target_kl}) and horizon ({horizon}) of an adaptive controller must be positive"
            )
        self.value = float(init_kl_coef)
        self.target_kl = target_kl
        self.adaptive = adaptive
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """Adapt the value after a batch of `n_steps` episodes with mean KL `current_kl`."""
        if not self.adaptive or math.isnan(current_kl):
            return
        error = min(max(current_kl / self.target_kl - 1, -0.2), 0.2)
        self.value *= 1 + error * min(n_steps / self.horizon, 1)
