"""TRL's side of the learning comparison: `GRPOTrainer(environment_factory=...)` on the word problems, on a CPU.

The same starts, prompts (token for token), episodes a step, sampling and loss as a turnsmith run of the same settings.
Writes one JSON line a step and one an evaluation; `seconds` is the wall clock of training alone, without start-up and
evaluations. With `--json` the evaluations are added to `benchmarks/results/learning_trl.json`. Runs in an environment
of its own, because TRL's pins are not ours:

    python3.11 -m venv trl && trl/bin/pip install torch==2.13.0
    trl/bin/pip install trl==1.16.0 transformers==5.10.4 jmespath . # the core of turnsmith
    trl/bin/python -m benchmarks.learning_trl --model learning/start --out learning/trl.jsonl

`--show` prints the first episodes of each batch, with what the loss counts in [[ ]].
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from benchmarks import results
from benchmarks.word_problems import WordProblems
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_schema

from turnsmith.errors import ToolError
from turnsmith.rollout.evaluation.intervals import estimate_proportion
from turnsmith.tools.parsing import FunctionCallingParser
from turnsmith.tools.tool import tools_of

HELD_OUT = 1_000_000
"""The first seed of the evaluation."""

# SmolLM2's own template with a place for calls and their results, as turnsmith words them for a template without one.
TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '\\n\\n' if not loop.first and messages[loop.index0 - 1].role == 'tool' else '<|im_start|>user\\n' }}
        {{- 'Tool result (' + message.name + '): ' + message.content }}
        {{- '' if not loop.last and messages[loop.index0 + 1].role == 'tool' else '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


class Desk:
    """The calculator for TRL, which offers every public method as a tool and has no `step` for a plain answer."""

    def __init__(self) -> None:
        self._desk = WordProblems()
        self._calls = 0

    def reset(self, seed: int, held_out: bool, **row: Any) -> str:
        self._desk, self._calls = WordProblems({"held_out": held_out}), 0
        return self._desk.reset(seed=seed)

    def calculate(self, expression: str) -> str:
        """Work out an expression such as (12 + 3) * 4.5 / 2.

        Args:
            expression: Numbers, + - * / and brackets.
        """
        self._calls += 1
        try:
            return self._desk.calculate(expression=expression)
        except ToolError as error:  # TRL would tell the model {'error': '...'}; turnsmith tells it the sentence
            return str(error)


class Scores:
    """The reward function, which also keeps what the records tell: TRL's own metrics are means of batches' means."""

    __name__ = "answer"

    def __init__(self) -> None:
        self.kept: list[tuple[float, int, int]] = []

    def __call__(self, completions: list[Any], environments: list[Desk], **row: Any) -> list[float]:
        rewards = [answer(said, desk) for said, desk in zip(completions, environments, strict=True)]
        turns = [sum(message["role"] == "assistant" for message in said) for said in completions]
        self.kept += zip(rewards, [desk._calls for desk in environments], turns, strict=True)
        return rewards

    def take(self) -> dict[str, float]:
        """The means so far; then it starts anew."""
        reward, calls, turns = (sum(column) / len(column) for column in zip(*self.kept, strict=True))
        self.kept = []
        return {"reward": reward, "success": reward, "tool_calls": calls, "turns": turns}


def answer(said: list[dict[str, Any]], desk: Desk) -> float:
    """What the last turn pays: nothing if it is a call, or if no turn was left after one."""
    last = said[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    return desk._desk.step(last["content"])[1]


class Trainer(GRPOTrainer):
    """TRL's trainer, whose evaluations may be greedy, leave the run's random numbers alone, and are not timed."""

    greedy = False
    untimed = 0.0
    scores: Scores

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        began = time.perf_counter()
        with torch.random.fork_rng():
            torch.manual_seed(HELD_OUT)
            self._be_greedy(self.greedy)
            found = super().evaluate(*args, **kwargs)
            self._be_greedy(False)
        self.untimed += time.perf_counter() - began
        return found

    def _be_greedy(self, greedy: bool) -> None:
        if self.use_vllm:
            self.vllm_generation.temperature = 0.0 if greedy else 1.0
        else:
            self.generation_config.do_sample = not greedy


class Records(TrainerCallback):
    def __init__(self, trainer: Trainer, path: Path, batch: int) -> None:
        self.trainer, self.path, self.batch = trainer, path, batch
        self.began = self.seconds = 0.0
        self.kept: dict[str, float] = {}
        self.evaluations: list[dict[str, Any]] = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds = time.perf_counter() - self.began - self.trainer.untimed
        self.kept = self.trainer.scores.take()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        if "completions/mean_length" not in logs:
            return
        about = {
            "tokens": logs["completions/mean_length"],
            "cut": logs["completions/clipped_ratio"],
            "entropy": logs["entropy"],
            "grad_norm": logs["grad_norm"],
        }
        self.write("step", state.global_step, self.kept | about)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **kwargs: Any) -> None:
        tokens = metrics["eval_completions/mean_length"]
        found = self.write("evaluation", state.global_step, self.trainer.scores.take() | {"tokens": tokens})
        self.evaluations.append(found)

    def write(self, kind: str, step: int, about: dict[str, float]) -> dict[str, Any]:
        record = {"kind": kind, "step": step, "episodes": step * self.batch, "seconds": self.seconds, **about}
        line = json.dumps({key: found if isinstance(found, str) else round(found, 5) for key, found in record.items()})
        print(line, flush=True)
        with self.path.open("a") as file:
            file.write(line + "\n")
        return record

    def figures(self, options: argparse.Namespace) -> dict[str, float]:
        """What the docs show, named as in `benchmarks/learning.py`."""
        shown: dict[str, float] = {"seed": options.seed, "steps": options.steps, "episodes_a_step": options.batch}
        shown["held_out"] = options.evaluation_episodes
        for point in self.evaluations:
            right = round(point["success"] * options.evaluation_episodes)
            interval = estimate_proportion([[1.0]] * right + [[0.0]] * (options.evaluation_episodes - right))
            about = {"success": interval.value, "low": interval.low, "high": interval.high, "seconds": point["seconds"]}
            shown |= {f"{name}_{point['episodes']}": found for name, found in about.items()}
        return shown | {"minutes": self.evaluations[-1]["seconds"] / 60}


def starts(first: int, count: int, *, held_out: bool = False) -> Dataset:
    """One row a group; the system prompt is turnsmith's own."""
    desk = WordProblems()
    told = FunctionCallingParser().instructions([tool.definition for tool in tools_of(desk)])
    # The environment's `reset` gives the sum, which TRL appends to the last message.
    prompt = [
        {"role": "system", "content": f"{desk.get_prompt_prefix()}\n\n{told}"},
        {"role": "user", "content": ""},
    ]
    rows = [{"prompt": prompt, "seed": seed, "held_out": held_out} for seed in range(first, first + count)]
    return Dataset.from_list(rows)


def settings(options: argparse.Namespace) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(options.out.parent / "trl-output"),
        seed=options.seed,
        use_cpu=True,
        bf16=options.dtype == "bfloat16",
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        gradient_checkpointing=False,
        # One update a batch: as many micro-batches as make it up, all of them from one round of episodes.
        max_steps=options.steps,
        num_generations=options.group,
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=options.batch // options.micro_batch,
        shuffle_dataset=False,
        # The mean over all tokens of the batch, which verl calls token-mean. TRL's defaults match ours: no KL, clipping
        # at 0.2, advantages over the group's deviation, gradients to norm 1, one update a batch, temperature 1.
        loss_type="dapo",
        learning_rate=options.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        **episodes(options),
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def episodes(options: argparse.Namespace) -> dict[str, Any]:
    return {
        # The episode's tokens, TRL's only limit; that of a turn goes past it, straight to `generate`.
        "max_completion_length": options.episode_tokens,
        "generation_kwargs": {"max_tokens" if options.engine == "vllm" else "max_new_tokens": options.turn_tokens},
        "max_tool_calling_iterations": options.turns - 1,
        "use_transformers_continuous_batching": options.engine == "continuous",
        "use_vllm": options.engine == "vllm",
        "vllm_max_model_length": 1024,
        "per_device_eval_batch_size": min(options.batch, options.evaluation_episodes),
        "num_generations_eval": 1,
        "eval_strategy": "steps" if options.evaluate_every else "no",
        "eval_steps": options.evaluate_every or None,
        "eval_on_start": bool(options.evaluate_every),
    }


def build(options: argparse.Namespace) -> tuple[Trainer, Records]:
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_schema = qwen3_schema  # <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    scores = Scores()
    trainer = Trainer(
        model=options.model,
        reward_funcs=scores,
        args=settings(options),
        train_dataset=starts(options.seed, options.steps * options.batch // options.group),
        eval_dataset=starts(HELD_OUT, options.evaluation_episodes, held_out=True),
        processing_class=tokenizer,
        environment_factory=Desk,
    )
    trainer.scores, trainer.greedy = scores, options.greedy
    records = Records(trainer, options.out, options.batch)
    trainer.add_callback(records)
    return trainer, records


def show(trainer: Trainer, count: int) -> None:
    make = trainer._generate_and_score_completions

    def shown(inputs: Any) -> Any:
        made = make(inputs)
        for row in range(count):
            print("=" * 20, "advantage", round(made["advantages"][row].item(), 3))
            print(trainer._tokenizer.decode(made["prompt_ids"][row][made["prompt_mask"][row].bool()]))
            mask, counted = made["completion_mask"][row].bool(), made.get("tool_mask", made["completion_mask"])[row]
            ids, counted = made["completion_ids"][row][mask].tolist(), counted[mask].tolist()
            edges = [place for place in range(len(ids)) if place == 0 or counted[place] != counted[place - 1]]
            for begin, end in zip(edges, [*edges[1:], len(ids)], strict=True):
                text = trainer._tokenizer.decode(ids[begin:end])
                print(f"[[{text}]]" if counted[begin] else text, end="")
            print()
        return made

    trainer._generate_and_score_completions = shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added here")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32, help="episodes in a step")
    parser.add_argument("--group", type=int, default=8, help="episodes of one start")
    parser.add_argument("--micro-batch", type=int, default=8, help="episodes in one forward pass")
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--turn-tokens", type=int, default=64, help="most tokens of a turn")
    parser.add_argument("--episode-tokens", type=int, default=256, help="most tokens after the opening prompt")
    parser.add_argument("--turns", type=int, default=3, help="most turns")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--engine", choices=["generate", "continuous", "vllm"], default="generate")
    parser.add_argument("--evaluate-every", type=int, default=4, help="steps; 0: never")
    parser.add_argument("--evaluation-episodes", type=int, default=64)
    parser.add_argument("--greedy", action="store_true", help="evaluate greedily and not at temperature 1")
    parser.add_argument("--show", type=int, default=0, help="print this many episodes of each batch")
    results.add_option(parser)
    options = parser.parse_args()
    trainer, records = build(options)
    if options.show:
        show(trainer, options.show)
    trainer.train()
    results.record("learning_trl", records.figures(options), is_wanted=options.json)


if __name__ == "__main__":
    main()
