"""Shared-prompt forward pass on a CPU: a prompt that several episodes share is computed once.

verl runs every episode of a group through the model from its first token, and computes logits for every position of the
prompt, of which only the last is used. Here a group is packed into one row: the prompt, then all of its responses, each
of which attends to the prompt and to itself. The results are the same up to rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from verl.utils import tensordict_utils as tu
from verl.utils import torch_functional

from turnsmith.trainer.verl.engines import LanguageModelEngine


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A row of the model's input: a prompt, and the episodes that continue it."""

    prompt: tuple[int, ...]
    episodes: list[int]
    """The indices of the episodes in the micro-batch."""
    length: int


@dataclass(frozen=True, slots=True)
class TokenPositions:
    """Where in the model's output the response tokens are predicted."""

    row: torch.Tensor
    column: torch.Tensor
    target: torch.Tensor
    """The index of each of them in the concatenated tokens of all episodes, which verl expects."""
    labels: torch.Tensor
    episode: torch.Tensor


def pack_rows(prompts: Sequence[Sequence[int]], responses: Sequence[int], width: int) -> list[PackedRow]:
    """Decide which episodes share a row.

    Args:
        prompts: The prompt of each episode.
        responses: The length of each episode's response.
        width: Hidden size of the model: the larger it is, the less attention matters, which is quadratic in the row.

    Example:
        >>> [row.episodes for row in pack_rows([[1] * 50, [2] * 50, [1] * 50], [10, 10, 10], width=64)]
        [[0, 2], [1]]
        >>> [row.episodes for row in pack_rows([[1], [1]], [900, 900], width=64)]
        [[0], [1]]
    """
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for episode, prompt in enumerate(prompts):
        groups[tuple(prompt)].append(episode)
    rows: list[PackedRow] = []
    for prompt, episodes in groups.items():
        alone = [PackedRow(prompt, [episode], len(prompt) + responses[episode]) for episode in episodes]
        together = PackedRow(prompt, episodes, len(prompt) + sum(responses[episode] for episode in episodes))
        is_less = _work(together.length, width) < sum(_work(row.length, width) for row in alone)
        rows += [together] if is_less else alone
    return rows


def _work(length: int, width: int) -> int:
    """Relative cost of a row: per layer and token, 24 w^2 for the weights and 4 w l for attention."""
    return length * (6 * width + length)


def logits_at(logits: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """`logits[row, column]`, with the same gradient every time.

    The first tokens of all responses in a row are predicted at one place, the end of their prompt. The backward pass of
    plain indexing adds to such a place from several threads, in any order, so that its last bits vary.
    """
    return logits.flatten(0, 1).index_select(0, row * logits.shape[1] + column)


class SharedPromptEngine(LanguageModelEngine):
    """The engine for language models, with another layout of a micro-batch around the model."""

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The model's inputs, and what `prepare_model_outputs` needs to undo the layout."""
        inputs, output_args = super().prepare_model_inputs(micro_batch)
        prompts = micro_batch["prompts"].offsets().diff().tolist()
        if not self._applies(micro_batch, inputs) or min(prompts) == 0:
            return inputs, output_args
        episodes = [ids.tolist() for ids in micro_batch["input_ids"].unbind()]
        responses = [len(ids) - prompt for ids, prompt in zip(episodes, prompts, strict=True)]
        texts = [ids[:prompt] for ids, prompt in zip(episodes, prompts, strict=True)]
        rows = pack_rows(texts, responses, self.model_config.hf_config.hidden_size)
        if all(len(row.episodes) == 1 for row in rows):
            rows.sort(key=lambda row: row.episodes)
        else:
            inputs = _shared_inputs(rows, episodes)
        keep = inputs["input_ids"].shape[1] - min(prompts) + 1
        output_args["places"] = _places(rows, episodes, prompts, inputs["input_ids"].shape[1] - keep)
        # No loss is computed inside the prompt, so it needs no logits there.
        return inputs | {"logits_to_keep": keep}, output_args

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Any
    ) -> Any:
        """Log-probs, and the entropy if requested, in verl's order; 0 for tokens of a prompt."""
        places: TokenPositions | None = output_args.get("places")
        if places is None:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        logits = logits_at(output.logits, places.row, places.column).float()
        if not output_args["temperature_is_one"]:
            logits = logits / output_args["temperature"][places.episode, None].clamp(min=1e-8)
        offsets = micro_batch["input_ids"].offsets()

        def in_place(values: torch.Tensor) -> torch.Tensor:
            whole = values.new_zeros(int(offsets[-1])).index_put((places.target,), values)
            return torch.nested.nested_tensor_from_jagged(whole, offsets)

        chosen = logits.gather(1, places.labels[:, None])[:, 0]
        found = {"log_probs": in_place(chosen - logits.logsumexp(-1))}
        if tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False):
            found["entropy"] = in_place(torch_functional.entropy_from_logits(logits))
        return found

    def _applies(self, micro_batch: Any, inputs: dict[str, Any]) -> bool:
        """Whether this class supports the model and the request."""
        config = self.model_config.hf_config
        layers = set(getattr(config, "layer_types", None) or ["full_attention"])
        asked = ("calculate_sum_pi_squared", "distillation_use_topk", "distillation_only")
        return (
            layers == {"full_attention"}
            and inputs.keys() == {"input_ids", "attention_mask", "position_ids"}
            and inputs["position_ids"].dim() == 2
            and not tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
            and not any(tu.get_non_tensor_data(data=micro_batch, key=name, default=False) for name in asked)
        )


def _shared_inputs(rows: list[PackedRow], episodes: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(row.length for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    positions = torch.zeros_like(ids)
    # Padding attends to itself: a fully masked row would make softmax return NaN.
    sees = torch.eye(longest, dtype=torch.bool).repeat(len(rows), 1, 1, 1)
    for number, row in enumerate(rows):
        prompt = len(row.prompt)
        ids[number, :prompt] = torch.tensor(row.prompt)
        positions[number, :prompt] = torch.arange(prompt)
        sees[number, 0, :prompt, :prompt].fill_(True).tril_()
        begin = prompt
        for episode in row.episodes:
            said = episodes[episode][prompt:]
            end = begin + len(said)
            ids[number, begin:end] = torch.tensor(said, dtype=torch.long)
            positions[number, begin:end] = torch.arange(prompt, prompt + len(said))
            sees[number, 0, begin:end, :prompt] = True
            sees[number, 0, begin:end, begin:end].fill_(True).tril_()
            begin = end
    return {"input_ids": ids, "attention_mask": sees, "position_ids": positions}


def _places(rows: list[PackedRow], episodes: list[list[int]], prompts: list[int], skipped: int) -> TokenPositions:
    found: list[tuple[int, int, int, int, int]] = []
    begins = [0]
    for ids in episodes:
        begins.append(begins[-1] + len(ids))
    for number, row in enumerate(rows):
        before = len(row.prompt) - 1  # the prompt's last position predicts the first token of all its episodes
        begin = len(row.prompt)
        for episode in row.episodes:
            said = episodes[episode][len(row.prompt) :]
            columns = [before, *range(begin, begin + len(said) - 1)][: len(said)]
            first = begins[episode] + prompts[episode] - 1
            found += [
                (number, column - skipped, first + place, label, episode)
                for place, (column, label) in enumerate(zip(columns, said, strict=True))
            ]
            begin += len(said)
    return TokenPositions(*(torch.tensor(column, dtype=torch.long) for column in zip(*found, strict=True)))
