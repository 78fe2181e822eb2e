"""What a number of episodes says about a model, and how sure that is. Pure functions of numbers.

Episodes of one start are alike, so they are not independent: numbers come in as *clusters*, one for each start, and
every interval counts starts, not episodes. All intervals are for 95 %; nan stands for a limit that cannot be given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

Clusters = Sequence[Sequence[float]]
"""One list for each start, one number in it for each of its episodes; none is empty."""

_CONFIDENCE = 0.95
_TAIL = 1 - (1 - _CONFIDENCE) / 2
_MOST_FLIPS = 20
_DRAWS = 20_000


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
        return f"{self.value:.3g}{interval}"


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The mean difference of pairs, and how likely one at least as large is if there is none in truth."""

    difference: Estimate
    p_value: float
    pairs: int
    is_exact: bool
    """Whether all ways to swap the two sides were counted, or 20,000 of them drawn."""


def estimate_mean(clusters: Clusters) -> Estimate:
    """The mean over episodes with Student's interval, its error clustered by start.

        mean +- t_{G-1} sqrt( G/(G-1) sum_g (sum_{i in g} (x_i - mean))^2 ) / n        G starts, n episodes

    With one episode a start that is the usual interval. Where all numbers are the same there is no spread to estimate
    from, so there is no interval.

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
    reach = t_quantile(_TAIL, len(clusters) - 1) * error
    return Estimate(mean, mean - reach, mean + reach)


def estimate_share(clusters: Clusters) -> Estimate:
    """The share of ones among zeros and ones, with Wilson's interval.

    Several episodes of a start count as fewer independent ones: n is divided by the design effect, how much larger the
    clustered variance is than that of independent episodes, and corrected for the few starts it is measured from (Korn
    and Graubard 1998). There are never fewer independent episodes than starts, nor more than episodes.

    Example:
        >>> estimate_share([[1], [0], [1], [0]])
        Estimate(value=0.5, low=0.15003..., high=0.84996...)
        >>> estimate_share([[1, 1], [0, 0]]) == estimate_share([[1], [0]])
        True
        >>> estimate_share([[0], [0], [0]])
        Estimate(value=0.0, low=0.0, high=0.56149...)
    """
    number = sum(map(len, clusters))
    if number == 0:
        return Estimate()
    share = math.fsum(x for cluster in clusters for x in cluster) / number
    return _wilson(share, _independent(clusters, share, number))


def estimate_pass_at(clusters: Clusters, k: int) -> Estimate:
    """pass@k: how likely at least one of k episodes of a start succeeds; the mean over starts.

    The unbiased estimator of Chen et al. 2021 (https://arxiv.org/abs/2107.03374), 1 - C(n - c, k) / C(n, k) for a start
    with c successes in n episodes. A start with fewer than k episodes is left out.

    Example:
        >>> estimate_pass_at([[1, 0, 0, 0], [0, 0, 0, 0]], k=2).value
        0.25
    """
    starts = [(len(cluster), round(sum(cluster))) for cluster in clusters if len(cluster) >= k]
    found = estimate_mean([[1 - math.comb(n - c, k) / math.comb(n, k)] for n, c in starts])
    return Estimate(found.value, max(0.0, found.low), min(1.0, found.high)) if found.has_interval else found


def compare_pairs(differences: Sequence[float]) -> PairedTest:
    """Whether differences of pairs are more than chance: two-sided, by swapping the two sides of each pair.

    If nothing differs in truth, each difference is as likely to have the other sign. Of all ways to set the signs, the
    p-value is the share whose sum is at least as far from 0. With differences of one size, such as successes and
    failures, that is the sign test (McNemar's exact test), counted without listing; up to 20 others are listed; for
    more, 20,000 ways are drawn with a fixed seed.

    Example:
        >>> compare_pairs([1.0, 1.0, 1.0, 0.0, 1.0, 1.0]).p_value
        0.0625
        >>> compare_pairs([0.5, -0.25, 1.0]).p_value
        0.5
    """
    moved = [difference for difference in differences if difference != 0]
    sizes = {abs(difference) for difference in moved}
    is_exact = True
    if not moved:
        p_value = 1.0
    elif len(sizes) == 1:
        p_value = _sign_test(sum(difference > 0 for difference in moved), len(moved))
    else:
        is_exact = len(moved) <= _MOST_FLIPS
        p_value = _flip_all(moved) if is_exact else _flip_some(moved)
    return PairedTest(estimate_mean([[difference] for difference in differences]), p_value, len(differences), is_exact)


def t_quantile(share: float, degrees: int) -> float:
    """Where the distribution function of Student's t reaches `share`, of at least one half.

    Example:
        >>> round(t_quantile(0.975, 9), 4), round(t_quantile(0.975, 1), 3)
        (2.2622, 12.706)
    """
    z = NormalDist().inv_cdf(share)
    if degrees > 200:  # Cornish-Fisher; off by less than 1e-8 here
        first = (z**3 + z) / 4
        second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / degrees + second / degrees**2 + third / degrees**3
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(degrees)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, degrees) < 2 * share - 1 else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(degrees)


def _t_within(angle: float, degrees: int) -> float:
    """How likely |t| stays below sqrt(degrees) tan(angle): the finite sum for whole degrees of freedom."""
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
    squares = math.fsum(one * one for one in sums)
    # Rounding alone leaves something: equal numbers must not get an interval of 1e-17.
    tiny = (1e-12 * max(abs(x) for cluster in clusters for x in cluster)) ** 2
    return math.sqrt(starts / (starts - 1) * squares) / number if squares > tiny else 0.0


def _independent(clusters: Clusters, share: float, number: int) -> float:
    """How many independent episodes would say as much."""
    starts = len(clusters)
    if starts == number:
        return number
    error = _clustered_error(clusters, share, number)
    spread = share * (1 - share)
    if not error > 0 or not spread > 0:
        return starts  # nothing to measure dependence by: take it to be complete
    effect = error**2 / (spread / (number - 1))
    few_starts = (t_quantile(_TAIL, number - 1) / t_quantile(_TAIL, starts - 1)) ** 2
    return min(max(number / effect * few_starts, starts), number)


def _wilson(share: float, number: float) -> Estimate:
    z2 = NormalDist().inv_cdf(_TAIL) ** 2
    middle = (share + z2 / (2 * number)) / (1 + z2 / number)
    reach = math.sqrt(z2 * (share * (1 - share) / number + z2 / (4 * number**2))) / (1 + z2 / number)
    low = 0.0 if share == 0 else max(0.0, middle - reach)
    return Estimate(share, low, 1.0 if share == 1 else min(1.0, middle + reach))


def _sign_test(ups: int, number: int) -> float:
    ways = total = 1  # in whole numbers: each term of Pascal's row from the one before
    for place in range(min(ups, number - ups)):
        ways = ways * (number - place) // (place + 1)
        total += ways
    return min(1.0, 2 * total / 2**number)


def _flip_all(moved: Sequence[float]) -> float:
    import numpy as np

    sums = np.zeros(1)
    for size in map(abs, moved):
        sums = np.concatenate([sums + size, sums - size])
    return float(np.mean(np.abs(sums) >= _reached(moved)))


def _flip_some(moved: Sequence[float]) -> float:
    import numpy as np

    random, sizes = np.random.default_rng(0), np.abs(np.asarray(moved))
    block = max(1, 4_000_000 // len(moved))
    as_far = 0
    for begin in range(0, _DRAWS, block):
        signs = random.integers(0, 2, size=(min(block, _DRAWS - begin), len(moved)), dtype=np.int8) * 2.0 - 1.0
        as_far += int(np.count_nonzero(np.abs(signs @ sizes) >= _reached(moved)))
    return (as_far + 1) / (_DRAWS + 1)  # the signs as they were found are one of the ways


def _reached(moved: Sequence[float]) -> float:
    """How far from 0 the sum is, less what rounding may hide."""
    return abs(math.fsum(moved)) - 1e-9 * math.fsum(map(abs, moved))
