"""How often the 95 % interval of a success rate contains the true rate, by simulation.

Each start has a chance of success of its own, drawn from a beta distribution whose mean is the true rate; episodes of a
start are correlated by that. Prints a line for each number of starts, rate and correlation. Misses if an interval with
at least 25 starts contains the rate in less than 90 % of the draws, or one with 10 starts in less than 85 %.

    python -m benchmarks.interval_coverage
"""

from __future__ import annotations

import argparse
import random
import sys

from benchmarks import results

from turnsmith.rollout.evaluation.intervals import estimate_proportion

STARTS, RATES, CORRELATIONS = (10, 25, 64), (0.1, 0.5), (0.01, 0.5)
EPISODES = 8
"""Of a start."""
FEW = 10


def coverage(starts: int, rate: float, correlation: float, draws: int, seed: int) -> float:
    """The share of drawn evaluations whose interval contains the rate."""
    draw, covered = random.Random(seed), 0
    spread = 1 / correlation - 1
    for _ in range(draws):
        chances = [draw.betavariate(rate * spread, (1 - rate) * spread) for _ in range(starts)]
        found = estimate_proportion([[float(draw.random() < chance) for _ in range(EPISODES)] for chance in chances])
        covered += found.low <= rate <= found.high
    return covered / draws


def main() -> int:
    """Draw, print, keep and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draws", type=int, default=2000, help="evaluations drawn for each line")
    parser.add_argument("--seed", type=int, default=0)
    results.add_option(parser)
    options = parser.parse_args()
    shown: dict[str, float] = {"draws": options.draws, "episodes": EPISODES}
    missed = 0
    for starts in STARTS:
        for rate in RATES:
            for correlation in CORRELATIONS:
                found = coverage(starts, rate, correlation, options.draws, options.seed)
                shown[f"starts_{starts}_rate_{rate:g}_correlation_{correlation:g}"] = found
                print(f"{starts} starts, rate {rate:g}, correlation {correlation:g}: {found:.1%}")
                if found < (0.85 if starts == FEW else 0.9):
                    print("missed: the interval is too narrow")
                    missed += 1
    for name, few in (("few", True), ("many", False)):
        covered = [one for key, one in shown.items() if key.startswith("starts_") and (f"_{FEW}_" in key) == few]
        shown |= {f"{name}_least": min(covered), f"{name}_most": max(covered)}
    results.record("interval_coverage", shown, is_wanted=options.json)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
