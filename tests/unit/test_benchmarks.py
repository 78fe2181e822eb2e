"""Every benchmark with a threshold fails when it is missed. Nothing is measured here; the numbers are made up."""

from __future__ import annotations

import argparse
import ast
import importlib
import mmap
import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from transformers import AutoTokenizer

from turnsmith import Chat, Trajectory
from turnsmith.inference.models.shape import ModelShape

ROOT = Path(__file__).parents[2]


@pytest.fixture
def load(monkeypatch) -> Callable[[str], ModuleType]:
    """Import a benchmark, without the environment variables that it sets for itself."""
    monkeypatch.syspath_prepend(str(ROOT))
    for name in ("TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def test_waiting_misses_with_any_time_out_and_below_its_goodput(load):
    benchmark = load("waiting")
    assert benchmark.misses(0, 0.95) == []
    assert benchmark.misses(1, 0.99) == ["1 calls timed out while they waited"]
    assert len(benchmark.misses(2, 0.94)) == 2


def test_self_play_misses_below_seven_games_of_ten(load):
    benchmark = load("self_play")
    assert benchmark.misses(0.7) == []
    assert benchmark.misses(0.695) == ["the trained model wins 69.5% of its games, below 70%"]


def test_learning_a_task_of_reasoning_gym_misses_below_twenty_points(load):
    benchmark = load("reasoning_gym_learning")
    assert benchmark.misses({"first_success": 0.05, "last_success": 0.26}) == []
    (missed,) = benchmark.misses({"first_success": 0.05, "last_success": 0.24})
    assert missed == "success rose by 19 points, less than 20"


def test_word_problems_are_held_out_by_their_wording(load):
    problems = load("word_problems")
    for held_out, wordings in ((False, problems.TRAINED), (True, problems.HELD_OUT)):
        environment, seen = problems.WordProblems({"held_out": held_out}), set()
        for seed in range(300):
            told = environment.reset(seed=seed)
            each, groups, less = environment.numbers
            seen |= {one for one in wordings if told == one.format(each=each, groups=groups, less=less)}
            assert environment.answer == each * groups - less
        assert seen == set(wordings)
    assert not set(problems.TRAINED) & set(problems.HELD_OUT)


def test_the_start_of_the_learning_benchmark_sees_a_call_and_an_answer(load, tiny_folder):
    chat = Chat(AutoTokenizer.from_pretrained(tiny_folder))
    ids, said = load("learning_start").demonstration(chat, seed=7, share=1.0)
    told = chat.tokenizer.decode([token for token, is_said in zip(ids, said, strict=True) if is_said])
    problem = load("word_problems").WordProblems()
    problem.reset(seed=7)
    assert "{} * {} - {}".format(*problem.numbers) in told
    assert f"The answer is {problem.answer}." in told
    assert load("learning").told(Trajectory(actions=[told], rewards=[1.0])) == {
        "call": "{} * {} - {}".format(*problem.numbers),
        "answer": str(problem.answer),
        "reward": 1,
    }


def test_choices_pay_for_one_word_in_each_turn(load):
    choices = load("choices").Choices()
    assert choices.reset() == "Say yes or no"
    assert choices.step("No!") == ("Say cat or dog", 0.25, False, {})
    assert choices.step("dog") == ("Say red or blue", 0.0, False, {})
    assert choices.step("red or blue")[1] == 0.0
    assert choices.step("up")[1:3] == (0.25, True)


def test_the_driver_misses_above_its_limit_for_each_number_in_flight(load):
    benchmark = load("driver_cost")
    assert benchmark.misses(64, 2.5) == []
    assert benchmark.misses(512, 2.51) == ["512 in flight: 2.51 > 2.5"]
    assert benchmark.misses(1, 2.9) == []
    assert len(benchmark.misses(1, 3.1)) == 1


def test_the_driver_ratio_is_the_median_over_the_faster_loop_by_hand(load, monkeypatch, capsys):
    benchmark = load("driver_cost")
    costs = iter([10.0, 8.0, 16.0, 30.0, 10.0, 20.0, 10.0, 8.0, 24.0])  # in the second round backwards
    monkeypatch.setattr(benchmark, "cost", lambda play, episodes, at_once: next(costs))
    ratios = benchmark.report({"by hand": None, "by hand, Rust encoder": None, "ours": None}, 1, 1, rounds=3)
    assert ratios["ours"] == 3.0, "16 / 8, 30 / 10 and 24 / 8"
    assert "3.00, the median of the rounds" in capsys.readouterr().out


def test_what_is_compared_takes_turns_in_at_least_three_rounds(load, capsys):
    rounds = load("rounds")
    parser = argparse.ArgumentParser()
    rounds.check_rounds(parser, argparse.Namespace(json=True, rounds=3))
    rounds.check_rounds(parser, argparse.Namespace(json=False, rounds=1))
    with pytest.raises(SystemExit):
        rounds.check_rounds(parser, argparse.Namespace(json=True, rounds=2))
    assert "at least 3 rounds" in capsys.readouterr().err
    for name in ("step_and_start", "driver_cost", "first_step", "shared_prompts", "rollout_throughput"):
        source = (ROOT / "benchmarks" / f"{name}.py").read_text()
        assert "in_turn(" in source, name
        assert "median_ratio(" in source, name


def test_growth_is_judged_by_both_slopes_that_are_published(load):
    benchmark = load("cost_growth")
    even = {"turnsmith_slope": 0.9, "verl_slope": 0.88, "turnsmith_last_slope": 1.06, "verl_last_slope": 1.02}
    assert benchmark.misses(even) == []
    assert benchmark.misses(even | {"turnsmith_last_slope": 1.08}) == ["last_slope of CPU time: +0.060 against verl's"]


def test_simulated_schedules_may_be_off_by_less_than_predicted_ones(load):
    schedules = load("schedules")
    assert schedules.misses({"sync_error": -0.14, "colocate_async_predicted_error": -0.24, "rounds": 20}) == []
    missed = schedules.misses({"sync_error": -0.16, "colocate_async_predicted_error": 0.26})
    assert missed == ["sync: -16.0%", "colocate_async_predicted: +26.0%"]


def test_learning_of_an_agent_misses_below_thirty_points(load):
    benchmark = load("agent_learning")
    assert benchmark.misses({"first_mean": 0.15, "last_mean": 0.46}) == []
    assert benchmark.misses({"first_mean": 0.15, "last_mean": 0.44}) == ["success rose by 29 points, less than 30"]


def test_advantages_miss_by_time_over_their_own_floor_and_by_any_number_other_than_zero(load):
    benchmark = load("advantages")
    best = {"floor of GAE": 0.2, "GAE": 1.6, "floor of GRPO": 0.1, "GRPO": 0.15}
    assert benchmark.misses(best, 0.0, is_cpu_time=True) == []
    assert benchmark.misses(best | {"GAE": 1.7}, 0.0, is_cpu_time=True) == ["GAE takes 8.50 x its floor"]
    assert benchmark.misses(best | {"GRPO": 0.16}, 0.0, is_cpu_time=True) == ["GRPO takes 1.60 x its floor"]
    assert benchmark.misses(best | {"GAE": 1.7}, 0.0, is_cpu_time=False) == []
    assert benchmark.misses(best, 1e-9, is_cpu_time=False) == ["advantage 1e-09 on equal rewards"]


def test_a_suspended_episode_may_take_one_and_a_half_times_its_tokens(load):
    benchmark = load("suspended_episodes")
    assert [benchmark.exit_code(ratio) for ratio in (1.2, 1.5, 1.51)] == [0, 0, 1]


def test_goodput_misses_below_its_limit_and_by_changed_rewards(load):
    benchmark = load("goodput")
    assert benchmark.misses(0.01, 0.9, changed_groups=0) == []
    assert benchmark.misses(0.01, 0.89, changed_groups=0) == ["1.0%: goodput 0.890 < 0.9"]
    assert benchmark.misses(0.003, 0.94, changed_groups=0) == ["0.3%: goodput 0.940 < 0.95"]
    assert benchmark.misses(0.05, 0.5, changed_groups=2) == ["5.0%: other rewards in 2 groups"]


def test_memory_may_grow_by_five_kilobytes_a_step_in_all_processes_together(load):
    benchmark = load("memory_growth")
    read = [
        (step, {"raylet": 9e6 + 2_000 * step, "driver": 1e9 if step < 100 else 3_000 * step}) for step in range(200)
    ]
    slopes = benchmark.slopes(read, after=100)
    assert slopes == pytest.approx({"raylet": 2_000, "driver": 3_000})
    assert benchmark.misses({"raylet": 2_000.0, "driver": 3_000.0}) == ""
    assert benchmark.misses({"raylet": 2_000.0, "driver": 3_100.0}) == "5.1 kB a step > 5"


def test_memory_is_read_as_the_process_takes_it(load):
    benchmark = load("memory_growth")
    before = benchmark.private_bytes(os.getpid())
    # Mapped, not allocated: malloc may serve even 16 MiB from what this process has freed before.
    with mmap.mmap(-1, 2**24, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
        taken.write(os.urandom(2**24))
        assert 2**24 <= benchmark.private_bytes(os.getpid()) - before < 2**26


def test_a_step_may_take_as_long_as_verls_and_the_start_less(load):
    benchmark = load("step_and_start")
    assert benchmark.misses({"step": 1.0, "generate": 3.0, "start": 0.8}) == []
    assert benchmark.misses({"step": 1.01, "start": 0.4}) == ["step: 1.01 > 1.0 of verl's"]
    assert benchmark.misses({"step": 0.4, "start": 0.81}) == ["start: 0.81 > 0.8 of verl's"]


def test_the_first_step_may_take_half_of_the_others_time_and_a_step_no_longer(load):
    benchmark = load("first_step")
    runs = {
        name: [benchmark.Measured(dict.fromkeys((*benchmark.PHASES, "first step", "CPU", "step"), took))]
        for name, took in (("this", 3.0), ("other", 6.0))
    }
    ratios = benchmark.compare(runs)
    assert benchmark.misses(ratios) == []
    assert benchmark.misses(ratios | {"first step": 0.51}) == ["first step: 0.51 > 0.5 of the other's"]
    assert benchmark.misses(ratios | {"step": 1.2}) == ["step: 1.20 > 1.1 of the other's"]


def test_throughput_misses_by_the_ratio_that_is_published(load):
    benchmark = load("rollout_throughput")
    assert benchmark.misses({"wall-clock": 0.97, "CPU": 0.9}) == []
    assert len(benchmark.misses({"wall-clock": 0.96, "CPU": 0.99})) == 1


def test_a_step_in_a_process_is_measured_in_pipes(load):
    benchmark = load("isolation")
    assert benchmark.misses({"process": 120.0, "pipe": 10.0}) == []
    assert benchmark.misses({"process": 121.0, "pipe": 10.0}) == ["a step in a process: 12.1 > 12.0 times the pipe"]


def test_check_all_runs_each_and_fails_if_any_missed(load, monkeypatch, capsys):
    check_all = load("check_all")
    codes = {"parsers": 0, "goodput": 1}
    monkeypatch.setattr(check_all, "run", lambda name, arguments, folder: codes[name])
    monkeypatch.setattr(sys, "argv", ["check_all", "parsers", "goodput"])
    with pytest.raises(SystemExit) as caught:
        check_all.main()
    assert caught.value.code
    assert re.findall(r"(\w+) +\d+  (ok|missed)", capsys.readouterr().out) == [("parsers", "ok"), ("goodput", "missed")]
    monkeypatch.setattr(sys, "argv", ["check_all", "parsers"])
    with pytest.raises(SystemExit) as caught:
        check_all.main()
    assert not caught.value.code


def test_all_are_meant_if_none_is_named(load, capsys):
    parser = argparse.ArgumentParser()
    load("results").add_names(parser, {"one": 1, "two turns": 2})
    assert parser.parse_args([]).names == ["one", "two turns"]
    assert parser.parse_args(["two turns"]).names == ["two turns"]
    with pytest.raises(SystemExit):
        parser.parse_args(["three"])
    assert "'three' is none of one, two turns" in capsys.readouterr().err


def test_a_schedule_that_learns_less_beyond_its_interval_is_missed(load):
    heavy_tail, first = load("heavy_tail"), [0.50, 0.52, 0.49, 0.51, 0.50]

    def less(sync: list[float], other: list[float]) -> bool:
        return heavy_tail.learned_less(heavy_tail.compare({"sync": sync, "separate_async": other})["separate_async"])

    assert not less(first, [0.48, 0.55, 0.47, 0.53, 0.46])
    assert less(first, [0.30, 0.31, 0.29, 0.32, 0.30])
    assert not less([0.5], [0.1]), "one seed says nothing"


def judges_itself(source: str) -> bool:
    """Whether a script ends with an exit code that it decides on, and not only with an error message."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("SystemExit", "sys.exit") and node.args:
            (given,) = node.args
            is_message = isinstance(given, ast.JoinedStr) or ast.unparse(given).endswith(("[-3000:]", "[-60:])"))
            if not is_message and not isinstance(given, ast.Constant):
                return True
    return False


def test_check_all_knows_every_benchmark_that_judges_itself(load):
    judging = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if judges_itself(path.read_text())}
    check_all = load("check_all")
    assert judging - {"check_all"} == {*check_all.BENCHMARKS, *check_all.ELSEWHERE}
    assert not set(check_all.BENCHMARKS) & set(check_all.ELSEWHERE)
    assert set(check_all.NEEDS) <= set(check_all.BENCHMARKS)


class Parsed(Exception):
    """The arguments were accepted."""


def test_the_short_forms_are_arguments_that_the_benchmarks_take(load, monkeypatch):
    plain = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser) -> None:
        parser.format_help()
        plain(parser)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    for name, arguments in load("check_all").BENCHMARKS.items():
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(Parsed):
            load(name).main()


def test_the_gateway_misses_above_its_cost_and_its_slope(load):
    benchmark = load("gateway")
    assert benchmark.misses(1.0, 1.1) == []
    assert benchmark.misses(1.01, 1.2) == ["1.01 ms a turn > 1.0", "slope 1.20 > 1.1"]
    assert benchmark.slope_of([(10, 1.0), (100, 10.0), (1000, 100.0)]) == pytest.approx(1.0)
    assert benchmark.slope_of([(10, 1.0), (100, 100.0)]) == pytest.approx(2.0)


def test_a_turn_drifts_if_the_next_prompt_does_not_begin_with_what_was_seen(load):
    benchmark = load("retokenization_drift")
    assert not benchmark.drifts([1, 2], [1, 2, 3])
    assert not benchmark.drifts([1, 2], [1, 2])
    assert benchmark.drifts([1, 2], [1])
    assert benchmark.drifts([1, 2], [1, 3, 2])
    assert benchmark.share([True, False, False, False]) == 0.25
    assert benchmark.misses({"text": 0.0, "cut": 0.004}) == ["cut: 0.4% of the turns drift"]


def test_tokens_are_split_into_two_of_the_vocabulary_with_the_same_text(load):
    split_some, chance = load("retokenization_drift").split_some, random.Random(0)
    vocabulary = {"a", "b", "ab", "abc", "c", "x"}
    assert split_some(["abc", "x"], vocabulary, 0.0, chance) == ["abc", "x"]
    assert split_some(["abc", "x"], vocabulary, 1.0, chance) == [
        "ab",
        "c",
        "x",
    ]  # "bc" is no token, "x" cannot be split
    many = [split_some(["ab"] * 1000, vocabulary, 0.25, chance) for _ in range(4)]
    assert all("".join(one) == "ab" * 1000 for one in many)
    assert 0.2 < sum(len(one) - 1000 for one in many) / 4000 < 0.3


@pytest.mark.nightly
def test_both_ways_see_drift_where_there_is_some_and_only_there(load, smollm2_folder):
    benchmark = load("retokenization_drift")
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    family = benchmark.Family("smollm2", tokenizer, benchmark.Chat(tokenizer))
    close, vocabulary = family.chat.close_id, tokenizer.get_vocab()
    text = "the more the other"
    names = tokenizer.convert_ids_to_tokens(family.encode(text))
    other = benchmark.split_some(names, vocabulary, 1.0, random.Random(0))
    assert len(other) > len(names)
    for tokens, is_other in ((names, False), (other, True)):
        turn = benchmark.Turn([*(vocabulary[name] for name in tokens), close], text)
        assert benchmark.drifts_rendered(family, turn) is is_other
        assert not benchmark.drifts_in_forest(family, turn)


def test_the_plan_misses_beyond_its_limits_by_the_chosen_clock(load):
    benchmark = load("plan_accuracy")
    found = {"a": {"wall": 0.6, "cpu": 0.2, "memory": -0.09}, "b": {"wall": 0.0, "cpu": -0.3, "memory": 0.11}}
    assert benchmark.misses(found, "wall", ["a", "b"]) == ["a: wall +60%", "b: memory +11%"]
    assert benchmark.misses(found, "cpu", ["b", "a"]) == ["b: cpu -30%", "b: memory +11%"]
    assert benchmark.misses({}, "cpu", ["c"]) == ["c: not made"]


def test_a_wider_model_that_was_interrupted_is_built_again(load, tmp_path, monkeypatch):
    benchmark = load("plan_accuracy")
    with monkeypatch.context() as broken:
        broken.setattr("torch.manual_seed", lambda seed: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            benchmark.build_wide(tmp_path)
    assert ModelShape.of_model(str(benchmark.build_wide(tmp_path))).hidden == 256
