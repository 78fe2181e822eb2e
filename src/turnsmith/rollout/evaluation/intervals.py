"""Means, success rates and pass@k with confidence intervals, and a paired permutation test.

Episodes from the same start are correlated: values are grouped into *clusters*, one per start, and every interval is
clustered by start. All intervals are at 95 %; a bound that cannot be estimated is nan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

Clusters = Sequence[Sequence[float]]
"""One list per start, with one value per episode; none is empty."""

_UPPER = 0.975
"""The upper quantile of a two-sided 95 % interval."""
_MAX_ENUMERATED = 20
_SAMPLES = 20_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % confidence interval.

    Example:
        >>> Estimate(0.5, 0.3, 0.7).has_interval, Estimate(0.5).has_interval
        (True, False)
        >>> print(Estimate(0.4213, 0.35, 0.49))
        0.421 (0.35 to 0.49)
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval; a single start, or values that are all the same, give none."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __str__(self) -> str:
        interval = f" ({self.low:.3g} to {self.high:.3g})" if self.has_interval else ""
        return "unknown" if math.isnan(self.value) else f"{self.value:.3g}{interval}"


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The mean difference of pairs, and the two-sided p-value of the hypothesis that there is none."""

    difference: Estimate
    p_value: float
    pairs: int
    is_exact: bool
    """Whether all sign permutations were counted; otherwise 20,000 were sampled."""


def estimate_mean(clusters: Clusters) -> Estimate:
    """The mean over episodes, with Student's t interval and cluster-robust standard errors.

        mean +- t_{G-1} sqrt( G/(G-1) sum_g (sum_{i in g} (x_i - mean))^2 ) / n        G starts, n episodes

    With one episode per start this is the usual t interval. If all values are the same there is no variance to estimate
    and so no interval.

    Example:
        >>> estimate_mean([[1.0], [0.0], [1.0], [0.0]])
        Estimate(value=0.5, low=-0.41869..., high=1.41869...)
        >>> estimate_mean([[1.0, 1.0], [0.0, 0.0]]).has_interval, estimate_mean([[1.0]]).has_interval
        (True, False)
    """
    number = sum(map(len, clusters))
    if number == 0:
        return Estimate()
    mean = math.fsum(x for cluster in clusters for x in cluster) / number
    error = _clustered_error(clusters, mean, number)
    if not error > 0:
        return Estimate(mean)
    half_width = t_quantile(_UPPER, len(clusters) - 1) * error
    return Estimate(mean, mean - half_width, mean + half_width)


def estimate_proportion(clusters: Clusters) -> Estimate:
    """The proportion of ones among zeros and ones, with Wilson's score interval.

    Several episodes per start are fewer independent samples: n is divided by the design effect (the clustered variance
    over that of independent episodes) and corrected for the degrees of freedom it is estimated with (Korn and Graubard
    1998). The effective sample size is at least the number of starts and at most the number of episodes.

    Example:
        >>> estimate_proportion([[1], [0], [1], [0]])
        Estimate(value=0.5, low=0.15003..., high=0.84996...)
        >>> estimate_proportion([[1, 1], [0, 0]]) == estimate_proportion([[1], [0]])
        True
        >>> estimate_proportion([[0], [0], [0]])
        Estimate(value=0.0, low=0.0, high=0.56149...)
    """
    number = sum(map(len, clusters))
    if number == 0:
        return Estimate()
    proportion = math.fsum(x for cluster in clusters for x in cluster) / number
    return _wilson(proportion, _effective_sample_size(clusters, proportion, number))


def estimate_pass_at(clusters: Clusters, k: int) -> Estimate:
    """pass@k: the probability that at least one of k episodes from a start succeeds, averaged over starts.

    The unbiased estimator of Chen et al. 2021 (https://arxiv.org/abs/2107.03374): 1 - C(n - c, k) / C(n, k) for a start
    with c successes in n episodes. Starts with fewer than k episodes are left out.

    Example:
        >>> estimate_pass_at([[1, 0, 0, 0], [0, 0, 0, 0]], k=2).value
        0.25
    """
    starts = [(len(cluster), round(sum(cluster))) for cluster in clusters if len(cluster) >= k]
    mean = estimate_mean([[1 - math.comb(n - c, k) / math.comb(n, k)] for n, c in starts])
    return Estimate(mean.value, max(0.0, mean.low), min(1.0, mean.high)) if mean.has_interval else mean


def compare_pairs(differences: Sequence[float]) -> PairedTest:
    """Test paired differences against zero: a two-sided sign-flip permutation test.

    If there is no true difference, each sign is a coin flip. The p-value is the share of all sign assignments whose sum
    is at least as far from 0 as the observed one. If all non-zero differences have the same size, as with successes and
    failures, this is the sign test (McNemar's exact test), computed in closed form. Otherwise up to 20 differences are
    enumerated, and beyond that 20,000 assignments are sampled with a fixed seed.

    Example:
        >>> compare_pairs([1.0, 1.0, 1.0, 0.0, 1.0, 1.0]).p_value
        0.0625
        >>> compare_pairs([0.5, -0.25, 1.0]).p_value
        0.5
    """
    nonzero = [difference for difference in differences if difference != 0]
    is_exact = True
    if not nonzero:
        p_value = 1.0
    elif len(set(map(abs, nonzero))) == 1:
        p_value = _sign_test(sum(difference > 0 for difference in nonzero), len(nonzero))
    else:
        is_exact = len(nonzero) <= _MAX_ENUMERATED
        p_value = _enumerate_signs(nonzero) if is_exact else _sample_signs(nonzero)
    return PairedTest(estimate_mean([[difference] for difference in differences]), p_value, len(differences), is_exact)


def t_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t distribution for a probability of at least one half.

    Example:
        >>> round(t_quantile(0.975, 9), 4), round(t_quantile(0.975, 1), 3)
        (2.2622, 12.706)
    """
    z = NormalDist().inv_cdf(probability)
    if degrees > 200:  # the Cornish-Fisher expansion, whose error is below 1e-8 here
        first = (z**3 + z) / 4
        second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / degrees + second / degrees**2 + third / degrees**3
    low, high = 0.0, math.pi / 2  # bisection over the angle whose tangent is t / sqrt(degrees)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, degrees) < 2 * probability - 1 else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(degrees)


def _t_within(angle: float, degrees: int) -> float:
    """P(|t| < sqrt(degrees) tan(angle)), as the finite sum for integer degrees of freedom."""
    cosine = math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(1 + odd, degrees, 2):
        total += term
        term *= cosine * cosine * power / (power + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _clustered_error(clusters: Clusters, mean: float, number: int) -> float:
    starts = len(clusters)
    if starts < 2:
        return math.nan
    sums = [math.fsum(x - mean for x in cluster) for cluster in clusters]
    squares = math.fsum(residual * residual for residual in sums)
    # Rounding leaves a residue: equal values must not get an interval of width 1e-17.
    tiny = (1e-12 * max(abs(x) for cluster in clusters for x in cluster)) ** 2
    return math.sqrt(starts / (starts - 1) * squares) / number if squares > tiny else 0.0


def _effective_sample_size(clusters: Clusters, proportion: float, number: int) -> float:
    """The number of independent episodes that would be as informative."""
    starts = len(clusters)
    if starts == number:
        return number
    error = _clustered_error(clusters, proportion, number)
    variance = proportion * (1 - proportion)
    if not error > 0 or not variance > 0:
        return starts  # no variance to estimate the correlation from: assume that it is complete
    design_effect = error**2 / (variance / (number - 1))
    degrees_correction = (t_quantile(_UPPER, number - 1) / t_quantile(_UPPER, starts - 1)) ** 2
    return min(max(number / design_effect * degrees_correction, starts), number)


def _wilson(proportion: float, number: float) -> Estimate:
    z2 = NormalDist().inv_cdf(_UPPER) ** 2
    center = (proportion + z2 / (2 * number)) / (1 + z2 / number)
    variance = proportion * (1 - proportion) / number + z2 / (4 * number**2)
    half_width = math.sqrt(z2 * variance) / (1 + z2 / number)
    low = 0.0 if proportion == 0 else max(0.0, center - half_width)
    return Estimate(proportion, low, 1.0 if proportion == 1 else min(1.0, center + half_width))


def _sign_test(positive: int, number: int) -> float:
    ways = total = 1  # binomial coefficients, each from the one before, as integers
    for place in range(min(positive, number - positive)):
        ways = ways * (number - place) // (place + 1)
        total += ways
    return min(1.0, 2 * total / 2**number)


def _enumerate_signs(differences: Sequence[float]) -> float:
    import numpy as np

    sums = np.zeros(1)
    for size in map(abs, differences):
        sums = np.concatenate([sums + size, sums - size])
    return float(np.mean(np.abs(sums) >= _observed_sum(differences)))


def _sample_signs(differences: Sequence[float]) -> float:
    import numpy as np

    random, sizes = np.random.default_rng(0), np.abs(np.asarray(differences))
    block = max(1, 4_000_000 // len(differences))  # bounds the memory of one block of signs
    as_far = 0
    for begin in range(0, _SAMPLES, block):
        shape = (min(block, _SAMPLES - begin), len(differences))
        signs = random.integers(0, 2, size=shape, dtype=np.int8) * 2.0 - 1.0
        as_far += int(np.count_nonzero(np.abs(signs @ sizes) >= _observed_sum(differences)))
    return (as_far + 1) / (_SAMPLES + 1)  # the observed signs are one of the assignments


def _observed_sum(differences: Sequence[float]) -> float:
    """The distance of the observed sum from 0, less a tolerance for rounding."""
    return abs(math.fsum(differences)) - 1e-9 * math.fsum(map(abs, differences))
