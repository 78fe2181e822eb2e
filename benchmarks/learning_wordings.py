"""What the runs of `benchmarks.learning` learned of the wordings: success apart for two kinds of held-out problems.

Whoever multiplies the first two numbers and subtracts the last is right wherever the last is the one to subtract,
without reading a word. So success on the other problems shows what was learned beyond that rule.

    python -m benchmarks.learning_wordings learning/runs
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import results
from benchmarks.word_problems import HELD_OUT, WordProblems

from turnsmith import RunFolder
from turnsmith.records.episodes import read_episodes
from turnsmith.rollout.evaluation.result import IN_TRAINING


def subtracts_the_last(seed: int) -> bool:
    """Whether the problem's last number is the one to subtract."""
    problem = WordProblems({"held_out": True})
    told = problem.reset(seed=seed)
    numbers = dict(zip(("each", "groups", "less"), problem.numbers, strict=True))
    [wording] = [one for one in HELD_OUT if one.format(**numbers) == told]
    return wording.rindex("{less}") == max(wording.rindex(f"{{{name}}}") for name in numbers)


def figures(run: RunFolder) -> dict[str, float]:
    """Success before and after training, where that rule is right and where it is wrong, and the rule's own."""
    shown: dict[str, float] = {}
    evaluations = run.read_evaluations()
    for name, record in (("before", evaluations[0]), ("after", evaluations[-1])):
        [file] = (run.path / IN_TRAINING).glob(f"step-{record['step']:08d}-*.parquet")
        episodes = [(episode.seed, episode.total_reward) for episode in read_episodes(file)]
        right = [reward for seed, reward in episodes if seed is not None and subtracts_the_last(seed)]
        wrong = [reward for seed, reward in episodes if seed is not None and not subtracts_the_last(seed)]
        shown |= {f"rule_right_{name}": sum(right) / len(right), f"rule_wrong_{name}": sum(wrong) / len(wrong)}
        shown |= {"rule": len(right) / len(episodes), "rule_wrong_problems": len(wrong)}
    return shown


def main() -> None:
    """Read, print and keep what each run of a folder learned."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder with the runs")
    results.add_option(parser)
    options = parser.parse_args()
    for path in sorted(options.folder.iterdir()):
        shown = figures(RunFolder.open(path))
        print(path.name, {name: round(value, 3) for name, value in shown.items()})
        results.record("learning_wordings", shown, is_wanted=options.json)


if __name__ == "__main__":
    main()
