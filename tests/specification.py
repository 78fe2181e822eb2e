"""The code blocks of the specification's five documents, and the one table of what is replaced in them.

The documents are in the folder that `TURNSMITH_SPECIFICATION` names, else in `../shared/seeds` beside the clone.
`tests/unit/test_specification.py` executes the blocks, `tests/e2e/test_specification.py` those that train;
`docs/hooks/specification.py` writes this table into `docs/reference/specification.md`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

DOCUMENTS = ("architecture", "extraction-guide", "manifest", "readme", "trainer-notes")
LLAMA = "meta-llama/Llama-2-7b-hf"
Kind = Literal["as typed", "refused", "signature"]
Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Replacement:
    """A text of the documents and what the tests write for it; `{model}` is the folder of a tiny model."""

    old: str
    new: str
    why: str


@dataclass(frozen=True)
class Block:
    """A Python block of a document: `readme-04` is the fourth block of code, of any language, in readme.md."""

    name: str
    begins: str
    """Its first line of code, so that a changed document is noticed."""
    kind: Kind
    shows: str
    """What its test asserts; of a signature, why it cannot run."""
    own: tuple[Replacement, ...] = ()
    """What is replaced in this block alone."""


EVERYWHERE = (
    Replacement("from setup import", "from turnsmith import", "package"),
    Replacement(f'"{LLAMA}"', '"{model}"', "model: a tiny one, with a chat template and again without one"),
    Replacement(f"'{LLAMA}'", "'{model}'", "model"),
    Replacement("'device': 'cuda'", "'device': 'cpu'", "device"),
)
"""Replaced in every block that has it."""
_VLLM = Replacement(
    'backend="vllm"', 'backend="transformers"', "device: vLLM is for GPUs; `test_vllm_engine.py` has it"
)
_VLLM_SETTING = Replacement('.backend = "vllm"', '.backend = "transformers"', "device: vLLM is for GPUs")
_TEN = Replacement("num_epochs=10", "num_epochs=2", "size: two epochs take seconds")
_HUNDRED = Replacement("num_iters_per_epoch=100", "num_iters_per_epoch=2", "size: two epochs take seconds")
_SHELL = "a shell's command: its Python is executed"
_REFUSED_REWARD = "`reward_fn takes verl's DataProto ...: write (trajectory, environment)`"

# fmt: off
BLOCKS = (
    Block("architecture-02", "from abc import ABC, abstractmethod", "as typed", "the quest: rewards 0.1, 0.5, 10, then done; -0.1 for a mistake; the end at `max_steps`; the same in turnsmith's harness"),
    Block("architecture-03", "import torch", "as typed", "texts without their prompts; its log-probs are those of turnsmith's engine, which takes the same arguments"),
    Block("architecture-04", "from typing import List, Dict, Any, Tuple", "as typed", "its harness with turnsmith's engine, and turnsmith's in its place: the same lists", (
        Replacement("from custom_environment import BaseEnvironment", "from turnsmith import BaseEnvironment", "package"),
        Replacement("from inference import InferenceEngine", "from turnsmith import BaseInferenceEngine as InferenceEngine", "package"),
    )),
    Block("architecture-05", "from typing import List, Dict, Any", "as typed", "its rewards equal those of turnsmith's `RewardManager`; called with a DataProto, ones", (
        Replacement("import torch\n", "import torch\nfrom turnsmith import BaseEnvironment\n", "it uses the class and does not import it"),
    )),
    Block("architecture-06", "import torch", "as typed", "its advantages, returns and losses equal those of `turnsmith.algo` (its value loss is twice ours); an update has finite metrics and moves the model"),
    Block("architecture-07", "import torch", "as typed", "an epoch: two episodes, their rewards, metrics of four updates, the average reward", (
        Replacement("from custom_environment import", "from turnsmith import", "package"),
        Replacement("from inference import InferenceEngine", "from turnsmith import create_inference_engine as InferenceEngine", "package"),
        Replacement("from multi_turn_harness import", "from turnsmith import", "package"),
        Replacement("from reward_manager import", "from turnsmith import", "package"),
        Replacement(", device=config['device'])", ")", "device: the engine finds it"),
        Replacement("= inference_engine.model ", "= with_outputs ", "model: the document's PPOTrainer reads `log_probs` and `values`, which no language model returns, for a batch of random numbers"),
        Replacement("'batch_size': 32", "'batch_size': 2", "size"),
        Replacement("'num_epochs': 10", "'num_epochs': 1", "size"),
    )),
    Block("extraction-guide-01", "def compute_ppo_loss(old_log_probs, new_log_probs, advantages, response_mask, config)", "signature", "signatures without bodies"),
    Block("extraction-guide-02", "class VLLMRolloutSPMD:", "signature", "signatures without bodies"),
    Block("extraction-guide-03", "class RLHFDataset(Dataset)", "signature", "signatures without bodies"),
    Block("extraction-guide-06", "from torch.utils.data import Dataset", "as typed", "a row has its prompt, tokens, state and action; as a run's dataset it is told to override `start`", (
        Replacement("from your_project.data.rl_dataset import RLHFDataset", "from turnsmith import CustomEnvironmentDataset as RLHFDataset", "package"),
    )),
    Block("extraction-guide-07", "from your_project.training.reward import compute_reward", "as typed", "called with a real DataProto, the rewards of its environment", (
        Replacement("from your_project.training.reward import compute_reward", "from readme import compute_reward", "package: the reader's own, that of readme.md"),
    )),
    Block("extraction-guide-08", "from your_project.training.ray_trainer import RayPPOTrainer", "refused", "its reward is verl's: " + _REFUSED_REWARD, (
        Replacement("from your_project.training.ray_trainer import", "from turnsmith import", "package"),
        Replacement("from your_project.custom.env_dataset import CustomEnvDataset", "from turnsmith import CustomEnvironmentDataset as CustomEnvDataset", "package"),
        Replacement("from your_project.custom.reward_manager import CustomRewardManager\n", "", "package: the block above it"),
    )),
    Block("extraction-guide-10", 'python -c "', "as typed", "the size and a sample are printed", (
        Replacement("from custom.env_dataset import CustomEnvDataset", "from turnsmith import CustomEnvironmentDataset as CustomEnvDataset", "package"),
        Replacement("from your_environment import YourEnvironment\n", "", "package: the reader's own"),
        Replacement('python -c "\n', "", _SHELL),
        Replacement('\n"\n', "\n", _SHELL),
    )),
    Block("extraction-guide-11", 'python -c "', "as typed", "`Reward manager working` is printed", (
        Replacement("from custom.reward_manager import CustomRewardManager\n", "", "package: the block above it"),
        Replacement('python -c "\n', "", _SHELL),
        Replacement('\n"\n', "\n", _SHELL),
    )),
    Block("extraction-guide-12", "python main.py --config-path=config --config-name=test_config", "refused", "main.py is the block above: " + _REFUSED_REWARD, (
        Replacement("python main.py --config-path=config --config-name=test_config", "run_main()", _SHELL),
    )),
    Block("manifest-03", "env = MyEnv(config.environment)", "as typed", "trains with the estimator of manifest-05: steps, epochs, the rewards of the function", (
        Replacement("reward_fn=...", "reward_fn=compute_reward", "`...` stands for a function: that of readme.md"),
    )),
    Block("manifest-04", "registry = ToolRegistry()", "as typed", "the model's calls are run, its turns returned, and the manager's summary counts them"),
    Block("manifest-05", 'config.training.adv_estimator = "grpo"  # or "gae", etc.', "as typed", "the setting, and that a trainer takes it"),
    Block("manifest-06", 'config.inference.backend = "vllm"  # or "sglang"', "as typed", "the setting"),
    Block("manifest-07", "config.ray.use_ray = True", "as typed", "the settings, and that a trainer takes them"),
    Block("manifest-08", "env = MyEnv(config.environment)", "as typed", "the environment's step, `(True, 'value')` of the tool, an output, None as the result of a turn without a call", (
        Replacement('"model", backend="vllm"', '"{model}", backend="transformers"', "model, and device: vLLM is for GPUs"),
    )),
    Block("readme-01", "from setup import BaseEnvironment, EnvironmentConfig", "as typed", "what its methods return, and an episode: a reward of 1 a turn"),
    Block("readme-02", "from setup import ConfigStore", "as typed", "every setting is a known one and survives a file", (
        _VLLM_SETTING,
    )),
    Block("readme-03", "def compute_reward(trajectory, environment):", "as typed", "the sum of the rewards"),
    Block("readme-04", "from setup import RayPPOTrainer", "as typed", "trains: two epochs, each episode scored by the function", (
        _TEN,
        Replacement("env = MyEnvironment(config.environment)", "env = MyEnvironment(small(config).environment)", "size"),
    )),
    Block("readme-06", "config = ConfigStore()", "as typed", "the settings; the others have defaults"),
    Block("readme-07", "class MyEnv(BaseEnvironment):", "as typed", "the four methods; the system prompt reaches the model"),
    Block("readme-08", "trajectory = Trajectory()", "as typed", "the lists; without the dots, the total reward"),
    Block("readme-09", "from setup import algo", "as typed", "GAE equals architecture.md's; GRPO is the group's z-score"),
    Block("readme-10", "policy_loss, metrics = algo.compute_policy_loss(", "as typed", "the losses of architecture.md (the value loss is half of it), with a gradient"),
    Block("readme-11", "penalized_rewards, kl_value = algo.apply_kl_penalty(", "as typed", "rewards less 0.01 times the KL; the coefficient grows"),
    Block("readme-12", "from setup import create_inference_engine", "as typed", "one text, tokens of shape (1, n), a warning for each of vLLM's own settings", (
        _VLLM,
    )),
    Block("readme-13", "engine = create_inference_engine(", "refused", "`SGLang runs as a server ...: write create_inference_engine('http://...', backend='sglang')`"),
    Block("readme-14", "from setup import MultiTurnInferenceEngine", "as typed", "a turn; then an episode to the limit of turns, each with its reward of 1", (
        Replacement("max_turns=5", "max_turns=2", "size"),
        Replacement("max_tokens=256", "max_tokens=16", "size"),
    )),
    Block("readme-15", "from setup import BatchInferenceManager", "as typed", "a text for each prompt", (
        Replacement("max_tokens=256", "max_tokens=16", "size"),
    )),
    Block("readme-16", "from setup import RayPPOTrainer", "as typed", "a trainer with this reward and these tasks"),
    Block("readme-17", "trainer.fit(num_epochs=10)", "as typed", "two epochs, then two of two steps: epochs and steps follow the calls", (
        _TEN,
        _HUNDRED,
    )),
    Block("readme-18", 'trainer.save_checkpoint(Path("./checkpoints/epoch_5"))', "as typed", "the checkpoint is there, loading returns to its step, each record has its epoch and loss"),
    Block("readme-19", "trainer.cleanup()  # Release GPU memory", "as typed", "no process of the run is left"),
    Block("readme-20", "from setup import BaseEnvironment, ConfigStore, RayPPOTrainer", "as typed", "five epochs; each episode is scored by the sum of its rewards", (
        Replacement("config = ConfigStore()", "config = small(ConfigStore())", "model and size: it names no model, and the default takes a download"),
    )),
    Block("trainer-notes-02", "trainer = VERLRayPPOTrainer(", "signature", "verl's own constructor, with its parameters' defaults"),
    Block("trainer-notes-03", "trainer.fit()                      # Main training loop", "as typed", "trains for the epochs of the config"),
    Block("trainer-notes-05", "obs = env.reset()", "signature", "a sketch: `return` outside of a function"),
    Block("trainer-notes-06", "def reward_fn(data: DataProto) -> torch.Tensor:", "refused", "as a trainer's reward: " + _REFUSED_REWARD),
    Block("trainer-notes-07", "class CustomRayPPOTrainer(VERLRayPPOTrainer):", "signature", "a sketch: `...` among the parameters"),
    Block("trainer-notes-09", "trainer = CustomRayPPOTrainer(", "refused", "`multi_turn_engine is not taken ...: leave it out`", (
        Replacement("    ...,\n", "    config,\n    env,\n", "`...` stands for the other arguments"),
    )),
    Block("trainer-notes-10", "def _create_verl_config(config: ConfigStore):", "signature", "a body of `pass`: `--dry-run` prints this config"),
    Block("trainer-notes-11", "def _default_role_mapping():", "signature", "a body of `pass`: verl's roles are set up by the trainer"),
    Block("trainer-notes-12", "def _default_resource_pool():", "signature", "a body of `pass`: verl's pools are set up by the trainer"),
    Block("trainer-notes-13", "from setup import ConfigStore, create_trainer, SimpleGameEnvironment", "as typed", "trains for the config's epochs with the model's own tokenizer", (
        Replacement("config = ConfigStore()", "config = small(ConfigStore())", "model and size: it names no model, and the default takes a download"),
        Replacement("config.training.num_epochs = 10", "config.training.num_epochs = 2", "size: two epochs take seconds"),
    )),
)
# fmt: on
"""Every Python block of the five documents, in their order."""
RUNNABLE = tuple(block for block in BLOCKS if block.kind != "signature")


def documents() -> Path | None:
    """The folder of the five documents; None if there is none."""
    named = os.environ.get("TURNSMITH_SPECIFICATION")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "seeds"
    return folder if named or folder.is_dir() else None


needs_documents = pytest.mark.skipif(
    documents() is None, reason="the five documents are not here: TURNSMITH_SPECIFICATION names their folder"
)


@lru_cache(maxsize=1)
def texts() -> dict[str, str]:
    """The Python blocks of all documents, by name."""
    folder, found = documents(), dict[str, str]()
    assert folder is not None
    for document in DOCUMENTS:
        text = (folder / f"{document}.md").read_text(encoding="utf-8")
        for number, block in enumerate(re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.M | re.S), start=1):
            indent, language, code = block.groups()
            if language == "python":
                found[f"{document}-{number:02d}"] = re.sub(f"^{indent}", "", code, flags=re.M)
    return found


def code_of(block: Block, model: str, *, vllm: bool = False) -> str:
    """The text of a block with what the table replaces; with `vllm`, the engine is the document's."""
    code = texts()[block.name]
    for one in (*EVERYWHERE, *(one for one in block.own if not (vllm and one is _VLLM))):
        assert one in EVERYWHERE or one.old in code, f"{block.name} has no {one.old!r}"
        code = code.replace(one.old, one.new.replace("{model}", model))
    return code


@dataclass
class Script:
    """What a reader types: block after block, in one namespace."""

    model: str = "tiny"
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})  # classes are sent by value
    executed: list[str] = field(default_factory=list[str])
    vllm: bool = False
    """Whether to leave `backend="vllm"` as it is."""

    def run(self, name: str, **given: Any) -> Any:
        """Execute a block, with names that its document leaves to the reader; returns a view of all names."""
        self.names.update(given)
        block = next(block for block in RUNNABLE if block.name == name)
        self.executed.append(name)
        exec(compile(code_of(block, self.model, vllm=self.vllm), name, "exec"), self.names)  # noqa: S102
        return self

    def __getitem__(self, name: str) -> Any:
        return self.names[name]


def executes(*names: str) -> Callable[[Test], Test]:
    """Mark a test with the blocks that it executes and asserts something of."""

    def mark(test: Test) -> Test:
        vars(test)["blocks"] = names
        return test

    return mark


def executed_by(module: Any) -> list[str]:
    """The blocks that the tests of a module execute."""
    return [name for test in vars(module).values() if callable(test) for name in getattr(test, "blocks", ())]


def without_template(model: str, folder: Path) -> str:
    """A copy of a model without a chat template, as Llama 2's base model is."""
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)
