"""How often the tokens of a conversation change if its history is rendered again from text, as a table.

Agent Lightning and rLLM's SDK ask the server for the token ids of each turn (`return_token_ids`), and send the text of
the history with the next request; the server renders it through the chat template again. A turn drifts if that
prompt does not begin with the ids that the engine saw and sampled before. The same turns go through turnsmith's
`Forest`, which keeps the sampled ids and makes tokens of what is new only.

The transcripts are made, not sampled:

- The texts are paragraphs of this project's documentation. *Canonical* turns are the tokens that the tokenizer chooses
  for them, which no model is bound to. *Other tokens*: each token is replaced, with a probability that is printed, by
  two tokens with the same text, as a model that samples may do.
- Tool calls have such texts as arguments. Their JSON is spaced as the template spaces it, or without spaces.
- Turns that are cut off end after any of their tokens. Thinking is written in the form of Qwen3's template, the only
  one here that has it.
- With `--sampled N`, N responses of SmolLM2-135M at temperature 1 follow, as they came, with the share of their tokens
  that the tokenizer would not have chosen.

Both ways see the same ids. Texts and tool calls are handed to the template as vLLM's parsers hand them out: arguments
as an object, but for DeepSeek, whose template takes their text. Exits 1 if a turn drifts in ours.

Run: python -m benchmarks.retokenization_drift [--turns 500] [--split 0.001] [--sampled 32 --tokens 64]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.unit.inference.conftest import load_real_tokenizer

from turnsmith.gateway.forest import Forest
from turnsmith.gateway.request import ChatMessage, ModelRequest, RequestedCall
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.tools.parsing import PlainTextParser

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = {"qwen3": "Qwen3", "llama3_2": "Llama 3.2", "deepseek_v3": "DeepSeek V3"}
ANSWERS_WITH = {"user": "Go on.", "tool": "Done: 3 lines."}
OPENING = {"role": "user", "content": "Tell me about it."}


@dataclass(frozen=True)
class Turn:
    """One turn of the model: what it sampled, and what a client is handed out for it."""

    ids: list[int]
    text: str
    call: tuple[str, str] | None = None
    """Name and arguments, as the model wrote them."""
    reasoning: str = ""

    @property
    def next_role(self) -> str:
        """Who speaks next."""
        return "tool" if self.call else "user"


@dataclass(frozen=True)
class Family:
    """A tokenizer with its template, and how its models write a tool call."""

    name: str
    tokenizer: Any
    chat: Chat

    def encode(self, text: str) -> list[int]:
        """The canonical tokens of what a model writes, in which markers are tokens of their own."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def write_call(self, name: str, arguments: str) -> str:
        """A call as the model writes it."""
        if self.name == "llama3_2":
            return f'{{"name": "{name}", "parameters": {arguments}}}'
        if self.name == "deepseek_v3":
            opened = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"  # noqa: RUF001
            return f"{opened}{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"  # noqa: RUF001
        return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'

    def message(self, turn: Turn) -> dict[str, Any]:
        """The turn as a message for the template."""
        if turn.call is None:
            thinking = {"reasoning_content": turn.reasoning} if turn.reasoning else {}
            return {"role": "assistant", "content": turn.text, **thinking}
        is_text = self.name == "deepseek_v3"
        arguments = turn.call[1] if is_text else json.loads(turn.call[1])
        calls = [{"id": "call_1", "type": "function", "function": {"name": turn.call[0], "arguments": arguments}}]
        return {"role": "assistant", "content": None if is_text else turn.text, "tool_calls": calls}


def drifts(seen: Sequence[int], prompt: Sequence[int]) -> bool:
    """Whether the next prompt does not begin with the tokens that were seen before."""
    return list(prompt[: len(seen)]) != list(seen)


def drifts_rendered(family: Family, turn: Turn) -> bool:
    """Whether a turn drifts if the template renders the text of the history again."""
    render: Callable[..., Any] = family.tokenizer.apply_chat_template
    settings = {"add_generation_prompt": True, "return_dict": False, "tokenize": True}
    seen = [*render([OPENING], **settings), *turn.ids]
    following = {"role": turn.next_role, "content": ANSWERS_WITH[turn.next_role], "tool_call_id": "call_1"}
    return drifts(seen, render([OPENING, family.message(turn), following], **settings))


def drifts_in_forest(family: Family, turn: Turn) -> bool:
    """Whether it drifts in turnsmith; the client sends back what it got, with its JSON written anew."""
    forest = Forest(family.chat, PlainTextParser())
    opening = ChatMessage("user", OPENING["content"])
    prompt = forest.prompt(ModelRequest((opening,)))
    seen = prompt.ids + array("i", turn.ids)
    calls = (RequestedCall(*turn.call, "call_1"),) if turn.call else ()
    forest.add(prompt, Generation(turn.ids, [0.0] * len(turn.ids)), ChatMessage("assistant", turn.text, calls))
    rewritten = tuple(RequestedCall(call.name, json.dumps(call.parsed_arguments()), call.id) for call in calls)
    following = ChatMessage(turn.next_role, ANSWERS_WITH[turn.next_role], call_id="call_1" if calls else "")
    history = (opening, ChatMessage("assistant", turn.text, rewritten), following)
    return drifts(seen, forest.prompt(ModelRequest(history)).ids)


def paragraphs() -> list[str]:
    """Texts of the documentation."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [part.strip() for page in pages for part in page.read_text().split("\n\n")]
    return [text for text in texts if 80 <= len(text) <= 800 and "<" not in text]  # no markers of templates


def split_some(tokens: Sequence[str], vocabulary: Any, probability: float, chance: random.Random) -> list[str]:
    """Replace tokens by two with the same text, each with a probability; those that cannot be split stay."""
    result: list[str] = []
    for token in tokens:
        places = range(1, len(token)) if chance.random() < probability else ()
        pairs = [(token[:at], token[at:]) for at in places if token[:at] in vocabulary and token[at:] in vocabulary]
        result.extend(chance.choice(pairs) if pairs else (token,))
    return result


def made_turns(family: Family, count: int, split: float, chance: random.Random) -> Iterator[tuple[str, list[Turn]]]:
    """The made transcripts: for each kind of turn, its name and turns."""
    texts, tokenizer, close = paragraphs(), family.tokenizer, family.chat.close_id
    vocabulary = tokenizer.get_vocab()
    plain = [chance.choice(texts) for _ in range(count)]
    canonical = [family.encode(text) for text in plain]
    yield "text, canonical tokens", [Turn([*ids, close], text) for ids, text in zip(canonical, plain, strict=True)]
    names = [split_some(tokenizer.convert_ids_to_tokens(ids), vocabulary, split, chance) for ids in canonical]
    other = [[vocabulary[name] for name in one] for one in names]
    yield "text, some other tokens", [Turn([*ids, close], text) for ids, text in zip(other, plain, strict=True)]
    ended = [f"{text}\n" for text in plain]
    yield "text that ends with a line break", [Turn([*family.encode(text), close], text) for text in ended]
    cut = [ids[: chance.randrange(1, len(ids))] for ids in canonical]
    yield "text that was cut off", [Turn(ids, family.chat.text(ids)) for ids in cut]
    calls = [{"path": f"docs/{place}.md", "line": place, "text": text[:80]} for place, text in enumerate(plain)]
    for kind, separators in (("spaced as in the template", (", ", ": ")), ("without spaces", (",", ":"))):
        written = [json.dumps(call, separators=separators, ensure_ascii=False) for call in calls]
        ids = [family.encode(family.write_call("edit", one)) for one in written]
        turns = [Turn([*one, close], "", ("edit", text)) for one, text in zip(ids, written, strict=True)]
        yield f"tool call, JSON {kind}", turns
    if family.name == "qwen3":
        thoughts = zip(plain, reversed(plain), strict=True)
        written = [(f"<think>\n{thought}\n</think>\n\n{text}", thought, text) for thought, text in thoughts]
        turns = [Turn([*family.encode(all_), close], text, reasoning=thought) for all_, thought, text in written]
        yield "thinking, then a user message", turns


def share(flags: Sequence[bool]) -> float:
    """The share of turns that drift."""
    return sum(flags) / len(flags)


def misses(ours: dict[str, float]) -> list[str]:
    """The kinds of turns that drift in ours."""
    return [f"{kind}: {value:.1%} of the turns drift" for kind, value in ours.items() if value > 0]


async def sampled_turns(count: int, tokens: int) -> tuple[Family, list[Turn], float]:
    """Responses of SmolLM2, and the share of their tokens that the tokenizer would not have chosen."""
    from turnsmith.inference.engines.transformers_engine import TransformersEngine
    from turnsmith.inference.models import resolve

    tokenizer = load_real_tokenizer("smollm2")
    chat = Chat(tokenizer)
    family, engine = Family("smollm2", tokenizer, chat), TransformersEngine(resolve("smollm2"), max_concurrency=16)
    questions = random.Random(1).sample(paragraphs(), count)
    asked = [chat.open([{"role": "user", "content": f"Go on: {text[:40]}"}]) for text in questions]
    try:
        made = await asyncio.gather(
            *(
                engine.generate(
                    ids, Sampling(tokens, stop_token_ids=chat.stop_token_ids, seed=place), session=str(place)
                )
                for place, ids in enumerate(asked)
            )
        )
    finally:
        engine.close()
    turns = [Turn(list(one.token_ids), chat.text(one.token_ids)) for one in made]
    others = total = 0
    for turn in turns:
        ids = turn.ids[:-1] if chat.is_closed(turn.ids) else turn.ids
        chosen = _bounds(family, family.encode(chat.text(ids, keep_controls=True)))
        own = _bounds(family, ids)
        others, total = others + len(own - chosen), total + len(ids)
    return family, turns, others / total


def _bounds(family: Family, ids: Sequence[int]) -> set[tuple[int, str]]:
    """Each token with its place in the text."""
    found, place = set[tuple[int, str]](), 0
    for name in family.tokenizer.convert_ids_to_tokens(list(ids)):
        found.add((place, name))
        place += len(name)
    return found


def print_row(kind: str, cells: Sequence[str]) -> None:
    """A row of the table."""
    print("| " + " | ".join([kind, *cells]) + " |", flush=True)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=500, help="turns of each kind")
    parser.add_argument("--sampled", type=int, default=0, help="responses of SmolLM2 to sample (default: none)")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of each of them")
    parser.add_argument("--split", type=float, default=0.001, help="probability of another token")
    args = parser.parse_args()
    families = [Family(name, tokenizer := load_real_tokenizer(name), Chat(tokenizer)) for name in FAMILIES]
    theirs: dict[str, dict[str, float]] = {}
    ours: dict[str, float] = {}
    for family in families:
        for kind, turns in made_turns(family, args.turns, args.split, random.Random(0)):
            theirs.setdefault(kind, {})[family.name] = share([drifts_rendered(family, turn) for turn in turns])
            ours[kind] = max(ours.get(kind, 0.0), share([drifts_in_forest(family, turn) for turn in turns]))
    print(f"{args.turns} turns of each kind; other tokens with probability {args.split:g}\n")
    print_row("turn", [*FAMILIES.values(), "turnsmith, all three"])
    print_row("---", ["---:"] * (len(FAMILIES) + 1))
    for kind, shares in theirs.items():
        cells = [f"{shares[name]:.1%}" if name in shares else "-" for name in FAMILIES]
        print_row(kind, [*cells, f"{ours[kind]:.1%}"])
    if args.sampled:
        family, turns, others = asyncio.run(sampled_turns(args.sampled, args.tokens))
        rendered = share([drifts_rendered(family, turn) for turn in turns])
        ours["sampled"] = share([drifts_in_forest(family, turn) for turn in turns])
        tokens = sum(len(turn.ids) for turn in turns)
        print(f"\nSmolLM2-135M, {len(turns)} responses of {tokens / len(turns):.0f} tokens on average, temperature 1:")
        print(f"rendered again {rendered:.1%}, turnsmith {ours['sampled']:.1%}; {others:.2%} of the tokens are others")
    for miss in misses(ours):
        print(f"missed: {miss}")
    return 1 if misses(ours) else 0


if __name__ == "__main__":
    raise SystemExit(main())
