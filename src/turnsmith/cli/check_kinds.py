"""What `turnsmith check` runs: checks of an environment, of these machines, of a queued run, or a forecast of one."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnsmith.cli.agent import Played
from turnsmith.text import hide_progress_bars

if TYPE_CHECKING:
    from turnsmith.check.environment.subject import EnvironmentCheck, Subject
    from turnsmith.check.finding import Result
    from turnsmith.check.report import Report

Say = Callable[[str], None]


def of_environment(args: argparse.Namespace, say: Say) -> Report:
    """Play episodes of the environment."""
    from turnsmith.check.audit.checks import AUDIT
    from turnsmith.check.audit.search import run_search
    from turnsmith.check.audit.tracing import without_accepted
    from turnsmith.check.environment.checks import CHECKS
    from turnsmith.check.environment.scripted import play_model
    from turnsmith.check.environment.subject import Subject
    from turnsmith.check.finding import check_codes
    from turnsmith.check.report import Report
    from turnsmith.rollout.spec import check_isolation

    played = _played(args)
    config, tasks = played.config, played.tasks()
    every = [*AUDIT, *sorted(CHECKS, key=lambda one: one.code == "interleaved")]  # the slowest one last
    check_codes(args.only, every)
    checks = [one for one in every if (one.code in args.only if args.only else args.audit or not one.audit)]
    spec = played.spec().isolated()
    check_isolation(spec)
    spec.check_tasks(tasks or ())
    subject = Subject(
        environment=spec,
        config=config,
        success_reward=args.success_reward,
        tasks=tasks,
        validation_tasks=played.validation_tasks(),
        attempts=_attempts(args.attempts),
        seconds=(50.0 if args.seconds is None else args.seconds) / 2,
        seed=config.training.seed,
    )
    report = Report(f"{spec.name} ({args.model or 'no model'})", facts={"environment": spec.name, "model": args.model})
    report.results = _run_checks(subject, checks, say, with_model=args.model is not None)
    if args.audit:
        report.results = without_accepted(report.results, spec)
        if (found := subject.known(run_search)) is not None and found.left_out:
            report.shown.append(f"\n{found.left_out} ways to play were not tried in {subject.seconds:g} s (--seconds).")
    if known := [one for one in subject.known(play_model) or () if one.turns]:
        from turnsmith.check.plan.workload import EpisodeSample

        report.facts["sample"] = EpisodeSample.of_episodes(known, "turnsmith check").as_dict()
    return report


def _attempts(file: str | None) -> list[dict[str, Any]] | None:
    """The lines of `--attempts`."""
    from turnsmith.trainer.task_file import read_tasks

    return None if file is None else list(read_tasks(file))


def _run_checks(subject: Subject, checks: Sequence[EnvironmentCheck], say: Say, *, with_model: bool) -> list[Result]:
    """Run the checks, with the model if there is one."""
    from turnsmith.check.environment.run import run_checks

    # The search of an audit takes half of its time at most.
    seconds = 2 * subject.seconds if any(check.audit for check in checks) and not with_model else math.inf

    def begin(check: EnvironmentCheck) -> None:
        say(check.name)

    if not with_model:
        from turnsmith.concurrency.loop_thread import LoopThread

        with closing(LoopThread("turnsmith-check")) as loop:
            return loop.run(run_checks(subject, checks, begin=begin, seconds=seconds))
    from turnsmith.cli.engine import model_name_or_path, open_engine
    from turnsmith.inference.http_client import is_url
    from turnsmith.inference.models import resolve
    from turnsmith.tools.parsing.formats import parser_for

    hide_progress_bars()
    say("loading the model")
    config = subject.config
    path = None if is_url(model_name_or_path(config)) else resolve(config.model.model_name, config.model.local_path)
    with open_engine(config) as engine:
        parser = parser_for(config.inference.tool_format, engine.tokenizer)
        subject = replace(subject, chat=engine.chat, engine=engine.engine, parser=parser, model_path=path)
        return engine.run(run_checks(subject, checks, begin=begin, seconds=seconds))


def of_machine(args: argparse.Namespace, say: Say) -> Report:
    """Train and kill on these machines."""
    from turnsmith.check.machine.run import MachineChecks
    from turnsmith.cli.train import read_config

    words = [args.environment, *args.overrides] if args.environment else args.overrides  # there is no environment
    config = read_config(args.config, args.model or "tiny", words)
    folder = _folder(args, "machine")
    report = MachineChecks(config, folder, say, args.only).run()
    _keep(report, folder)
    report.shown.append(f"To report a problem, attach {folder / 'check.json'}.")
    return report


def of_rehearsal(args: argparse.Namespace, say: Say) -> Report:
    """Run the settings of a queued run, scaled down to this machine."""
    from turnsmith.check.rehearse.run import Rehearsal

    if args.config:
        args.usage_error("--rehearse FILE has the settings of the run, and --config is not needed")
    played = _played(args, args.rehearse)
    assert played.environment is not None
    folder = _folder(args, "rehearsal")
    hide_progress_bars()
    rehearsal = Rehearsal(
        played.config,
        played.environment,
        args.words,
        folder,
        tasks=played.tasks(),
        validation_tasks=played.validation_tasks(),
        scaled=args.scaled or (),
        minutes=args.minutes or 15.0,
        say=say,
    )
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run is ended too
    try:
        report = rehearsal.run(only_before=args.no_run)
    finally:
        signal.signal(signal.SIGTERM, before)
    _keep(report, folder)
    return report


def of_plan(args: argparse.Namespace, say: Say) -> Report:
    """Forecast memory and time."""
    from turnsmith.check.plan.gpu import Hardware
    from turnsmith.check.plan.reference import reference
    from turnsmith.check.plan.report import cpu_report, gpu_report
    from turnsmith.check.plan.workload import EpisodeSample
    from turnsmith.trainer.config.check import check

    played = _played(args)
    config, hardware = played.config, args.hardware or "cpu"
    config.model.device = "cpu" if hardware == "cpu" else "cuda"
    check(config)
    hide_progress_bars()
    if hardware != "cpu":
        sample = EpisodeSample.of_settings(config) if args.source is None else EpisodeSample.of_file(args.source)
        return gpu_report(config, sample, Hardware.named(hardware, args.hardware_file))
    environment = None if played.environment is None else played.spec()
    say("measuring this machine")
    known = reference(fresh=args.calibrate)
    if environment is None or args.source is not None:
        sample = EpisodeSample.of_file(args.source)
    else:
        from turnsmith.check.plan.cpu import played_sample
        from turnsmith.cli.engine import open_engine

        say("playing episodes")
        with open_engine(config) as engine:
            sample = played_sample(config, engine, environment, played.tasks())
    say("measuring the model")
    return cpu_report(config, sample, known, environment)


def _played(args: argparse.Namespace, file: str | None = None) -> Played:
    """The environment and reward to check, with the settings of a file."""
    from turnsmith.cli.train import read_config

    return Played.of(
        args,
        lambda words: read_config(file or args.config, args.model, words),
        required=args.source is None,
    )


def _folder(args: argparse.Namespace, kind: str) -> Path:
    """A new folder for runs and logs."""
    from turnsmith.errors import ConfigError

    parent = Path(args.output_dir or "checks").expanduser()
    parent.mkdir(parents=True, exist_ok=True)
    if not args.name:
        return Path(tempfile.mkdtemp(dir=parent, prefix=f"{kind}-")).absolute()
    folder = (parent / args.name).absolute()
    if folder.exists():
        raise ConfigError(f"{folder} is there already: choose another --name.")
    folder.mkdir()
    return folder


def _keep(report: Report, folder: Path) -> None:
    """Write a report beside the runs and logs that it is about."""
    try:
        (folder / "check.json").write_text(json.dumps(report.as_dict(), indent=1, default=str) + "\n", encoding="utf-8")
        (folder / "check.txt").write_text("\n".join(report.lines(verbose=True)) + "\n", encoding="utf-8")
        report.shown.append(f"Runs and logs are in {folder}, and all rows in its check.txt.")
    except OSError as error:
        report.shown.append(f"The report could not be written: {error}.")
