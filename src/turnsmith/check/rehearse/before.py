"""What a rehearsal checks before it starts a run: the full layout, importing the environment elsewhere, evaluation."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from turnsmith.check.environment.checks import CHECKS
from turnsmith.check.environment.checks.settings import check_space
from turnsmith.check.environment.subject import EnvironmentCheck, Subject
from turnsmith.check.finding import Finding
from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.records.yaml_text import dump_yaml
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.trainer.config.layout import all_nodes, layout_words
from turnsmith.trainer.validation import Validation
from turnsmith.trainer.verl.validate import MARK

_SECONDS = 300.0
_MOST_OPENED = 256
_IMPORT = "import sys; from turnsmith.env.spec import EnvironmentSpec; EnvironmentSpec(sys.argv[1]).load()"


def check_full_layout(config: ConfigStore, model_path: str, folder: Path) -> Finding:
    """Check the whole layout, not the scaled one, with verl's own validation."""
    file = folder / "full.yaml"
    file.write_text(dump_yaml(to_dict(config)), encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "TURNSMITH_RUN"))}
    command = [sys.executable, "-m", "turnsmith.trainer.verl.validate", str(file), model_path]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=_SECONDS, check=False)
    _, refused, reason = done.stdout.rpartition(MARK)
    if refused or done.returncode:
        saw = f"{refused}{reason}" if refused else done.stderr.strip().splitlines()[-1]
        return Finding("failed", saw, "Change the settings that it names.")
    return Finding("passed", f"{layout_words(config)}: accepted by turnsmith and by verl.")


def check_import(environment: EnvironmentSpec, config: ConfigStore) -> Finding:
    """Import the environment as another node would: in a process that does not have this working folder."""
    named = [spec.target for spec in environment.each() if isinstance(spec.target, str)]
    files = [name for name in named if name.rpartition(":")[0].endswith(".py")]
    here = str(Path.cwd())
    path = os.pathsep.join(part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part != here)
    for name in named:
        if name in files or "://" in name:
            continue
        command = [sys.executable, "-c", _IMPORT, name]
        with tempfile.TemporaryDirectory() as elsewhere:
            done = subprocess.run(
                command, cwd=elsewhere, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
                timeout=_SECONDS, check=False,
            )  # fmt: skip
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1]
            saw = f"{name} can only be imported in {here}, and other nodes have another folder: {why}"
            fix = f"Install its module on every node (pip install .), or name it as {here}/FILE.py:NAME, if every node \
has that file."
            return Finding("failed" if all_nodes(config) > 1 else "warning", saw, fix)
    told = f" Every node needs {', '.join(one.rpartition(':')[0] for one in files)}." if files else ""
    return Finding("passed", f"{environment.name} was imported without the working folder.{told}")


def checks_here(config: ConfigStore) -> list[EnvironmentCheck]:
    """The quick checks of an environment that need no model; the disk is left out if it is on other machines."""
    return [check for check in CHECKS if check.rehearsed and not (check is check_space and is_elsewhere(config))]


def places_here(config: ConfigStore) -> ConfigStore:
    """The settings with a folder for runs on this machine, because that of a cluster may be elsewhere."""
    if not is_elsewhere(config):
        return config
    config = copy.deepcopy(config)
    config.ray.address, config.checkpoint.output_dir = None, str(Path.cwd())
    return config


async def check_evaluation(subject: Subject) -> Finding:
    """Reset from the held-out starts of the run."""
    config = subject.config
    if not config.evaluation.every:
        return Finding("skipped", "evaluation.every=0")
    if subject.is_agent or subject.tasks:
        return Finding("skipped", "An agent's starts, and rows of data, are not opened here.")
    rows = Validation.of(None, subject.environment).held_out(min(config.evaluation.episodes, _MOST_OPENED))
    starts = [EpisodeStart(f"eval-{row['index']}", f"eval-{row['index']}", row["seed"], row["task"]) for row in rows]
    opened = await subject.openings(starts)
    failed = [episode for episode in opened if not episode.tokens.prompt_length]
    if failed:
        saw = f"{len(failed)} of {len(opened)} starts of an evaluation fail, as seed {failed[0].seed}: \
{failed[0].error}"
        return Finding("failed", saw, "Make `reset` work for the seeds of evaluation (from 1,000,000 on).", failed[:3])
    return Finding("passed", f"{len(opened)} starts of an evaluation were opened.")


def is_elsewhere(config: ConfigStore) -> bool:
    """Whether the folder of the run is on other machines only."""
    return bool(config.ray.address) and not Path(config.checkpoint.output_dir).expanduser().is_dir()
