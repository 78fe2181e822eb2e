"""Does training use the model's own template, stop token, tool calls and sampling?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnsmith.check.environment.model_files import generation_config
from turnsmith.check.environment.scripted import NO_TURN
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.environment.template_facts import NO_TOKENIZER, THOUGHT, TemplateFacts, render, write_call
from turnsmith.check.finding import Finding
from turnsmith.env.host import open_host
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.chat import Chat
from turnsmith.inference.chat.byte_chat import ByteChat
from turnsmith.rollout.attempt import in_mix
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.parsing import FunctionCallingParser, NativeParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trajectory import Trajectory


@environment_check("template", "template", rehearsed=True)
async def check_template(subject: Subject) -> Finding:
    """Play with plain answers and with thinking, and compare the tokens with the template's rendering of the whole.

    A template that rewrites history lets a served model see another conversation than the one it was trained on.
    """
    chat = subject.chat
    if isinstance(chat, ByteChat) or subject.is_agent:
        return Finding("skipped", NO_TOKENIZER)
    facts, starts = TemplateFacts.of(chat), subject.starts(2)
    plain = [one for one in await subject.play(lambda turn, prompt: "ok", starts) if one.turns]
    if not plain:
        return Finding("skipped", NO_TURN)
    changed = [episode for episode in plain if _is_changed(episode, chat)]
    if changed:
        saw = (
            f"Rendered again as a whole, {len(changed)} of {len(plain)} transcripts have another text. {_notes(facts)}"
        )
        fix = "The model is trained on what it saw. A server that renders the history again shows it something else: \
use a template that only appends, or `turnsmith serve`."
        return Finding("warning", saw.strip(), fix, changed)
    thinking = await subject.play(lambda turn, prompt: f"{THOUGHT}ok", starts)
    dropped = [episode for episode in thinking if _is_changed(episode, chat)]
    if dropped and not facts.keeps_thinking:
        saw = f"The template drops the thinking of earlier turns. {_notes(facts)}"
        fix = "In training the thinking of earlier turns stays. Serve the model with `turnsmith serve`, or with a \
template that keeps thinking; else it sees shorter histories than it was trained on."
        return Finding("warning", saw.strip(), fix, dropped)
    return Finding("passed", f"The template only appends, on {len(plain)} transcripts. {_notes(facts)}".strip())


def _is_changed(episode: Trajectory, chat: Chat) -> bool:
    """Whether the template writes the messages of the last prompt differently from how the model saw them."""
    roles = [message["role"] for message in episode.messages]
    if not episode.turns or (not chat.takes_system and roles[0] == "system"):
        return False  # it never began, or the system prompt was put into the first message
    last = len(roles) - 1 - roles[::-1].index("assistant")
    rendered = render(chat, episode.messages[:last])
    return rendered is None or not chat.show(episode.tokens.ids).startswith(rendered)


def _notes(facts: TemplateFacts) -> str:
    notes = {
        "It has no system role: the system prompt is put before the first message.": not facts.system_role,
        "It has no tool role: results are sent as user messages.": not facts.tool_role,
        "It adds a system message of its own if there is none.": facts.adds_system_text,
        "It writes today's date into each prompt, so a run that goes on tomorrow has other prompts.": facts.has_date,
    }
    return " ".join(note for note, is_true in notes.items() if is_true)


@environment_check("stop-token", "stop token", rehearsed=True)
async def check_stop_token(subject: Subject) -> Finding:
    """Look for the end of each turn among the tokens that are trained on, and among those the model ends with.

    A model whose end of turn is not trained, or that has another one, runs every turn to its limit.
    """
    chat = subject.chat
    if isinstance(chat, ByteChat) or subject.is_agent:
        return Finding("skipped", NO_TOKENIZER)
    end = chat.show([chat.close_id])
    episodes = await subject.play(lambda turn, prompt: "ok", subject.starts(2))
    ended = [(episode, turn) for episode in episodes for turn in episode.turns if turn.stop_reason != "length"]
    if not ended:
        saw = f"No turn ended by itself: inference.max_tokens={subject.config.inference.max_tokens} cut each one."
        return Finding("skipped", saw)
    untrained = [
        episode
        for episode, turn in ended
        if episode.tokens.ids[turn.stop - 1] != chat.close_id or not episode.tokens.mask[turn.stop - 1]
    ]
    if untrained:
        saw = f"{end} is not the last token that is trained on in every turn."
        return Finding("failed", saw, "This is a fault of turnsmith's: please report it.", untrained)
    own = generation_config(subject.model_path).get("eos_token_id", [])
    own = set(own if isinstance(own, list) else [own]) | {chat.tokenizer.eos_token_id}
    if chat.close_id not in own:
        names = ", ".join(sorted(chat.show([token]) for token in own if token is not None)) or "no token"
        saw = f"The template ends a turn with {end}, the model with {names}."
        fix = "This may be a base model with the template of a chat model, which has never learned to end a turn: take \
the instruct version, or set eos_token in the tokenizer's config if it has."
        return Finding("warning", saw, fix)
    unknown = {token for token in own if token is not None} - set(chat.stop_token_ids)
    if unknown:
        names = ", ".join(sorted(chat.show([token]) for token in unknown))
        saw = f"The model may also end with {names}, at which episodes do not stop."
        return Finding(
            "warning", saw, "A turn that ends so runs on to its limit. Set eos_token in the tokenizer's config."
        )
    return Finding("passed", f"Every turn ends with {end}, which is trained on and is the model's own end.")


_TEXT = 'A "quoted" <b>text</b>,\nof two lines & é'


@environment_check("call-format", "call format", rehearsed=True)
async def check_call_format(subject: Subject) -> Finding:
    """Let the template write a call of each tool, and read it with the parser of the run.

    Calls that the parser does not read are never run: the model learns that tools do nothing.
    """
    chat, tool_format = subject.chat, subject.config.inference.tool_format
    if isinstance(chat, ByteChat) or subject.is_agent:
        return Finding("skipped", NO_TOKENIZER)
    _, spec, _ = in_mix(subject.starts(1)[0], subject.rollout())
    tools = await offered_definitions(subject, spec.environment)
    if not tools:
        return Finding("skipped", "The environment has no tools.")
    parser = subject.parser or FunctionCallingParser()
    calls = [{"name": tool.name, "arguments": sample_arguments(tool.parameters)} for tool in tools]
    written = [(call, write_call(chat, call)) for call in calls]
    unread = list[str]()
    for call, text in written:
        if text is None:
            continue
        turn = chat.tokenizer.encode(text, add_special_tokens=False)
        read = parser.parse_ids(turn) if isinstance(parser, NativeParser) else parser.parse(chat.text(turn))
        if [(one.name, one.arguments) for one in read.calls] != [(call["name"], call["arguments"])]:
            unread.append(f"{call['name']}: {text.strip()!r}")
    if unread:
        saw = f"With inference.tool_format={tool_format}, {len(unread)} of {len(calls)} calls that the template writes \
are not read as they were written, as {unread[0]}."
        fix = "The model may fall back to the format that it knows: try inference.tool_format=native." * (
            not parser.is_native
        )
        return Finding("failed" if parser.is_native else "warning", saw, fix or "Use inference.tool_format=json.")
    if not any(text for _, text in written):
        saw = f"The template has no tool calls: they are described in the prompt, in the format {tool_format}."
        return Finding("skipped", saw)
    closes = TemplateFacts.of(chat).closes_calls
    note = "" if closes else " The template does not end such a turn; episodes end where the model ends it."
    count = sum(text is not None for _, text in written)
    return Finding("passed", f"{count} calls that the template writes are read as they were written.{note}")


async def offered_definitions(subject: Subject, spec: EnvironmentSpec) -> list[ToolDefinition]:
    """The tools that the first episode offers the model, of the run and of the environment."""
    host, [start] = open_host(spec), subject.starts(1)
    try:
        await host.reset(start.seed, start.task)
        return ToolRegistry([*(subject.tools or ()), *host.tools()]).definitions()
    finally:
        await host.close()


def sample_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit a tool's JSON schema, with the characters that formats trip over.

    Example:
        >>> sample_arguments({"properties": {"count": {"type": "integer"}, "unit": {"enum": ["km", "m"]}}})
        {'count': 3, 'unit': 'km'}
    """
    return {name: _sample(one) for name, one in schema.get("properties", {}).items()}


def _sample(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return _sample(choice)
    kind = schema.get("type", "string")
    if kind == "object":
        return sample_arguments(schema)
    if kind == "array":
        return [_sample(schema.get("items", {}))]
    return {"integer": 3, "number": 2.5, "boolean": True, "null": None}.get(kind, _TEXT)


_OTHERS = ("repetition_penalty", "no_repeat_ngram_size", "min_p", "typical_p", "bad_words_ids", "suppress_tokens")
"""Settings of generation that training does not have."""


@environment_check("sampling", "sampling", quick=True, plays=False, rehearsed=True)
async def check_sampling(subject: Subject) -> Finding:
    """Compare the settings, and whether log-probs are those of the distribution that is sampled from.

    Log-probs of another distribution than the one sampled from make every importance ratio wrong.
    """
    ours, own = subject.config.inference, generation_config(subject.model_path)
    if ours.temperature == 0 and subject.config.training.group_size > 1:
        saw = "inference.temperature=0: the episodes of a group are all the same, so there is nothing to learn from."
        return Finding("failed", saw, "Train with inference.temperature=1; evaluation.temperature may be 0.")
    cut = [f"{name}={value}" for name, value in (("top_p", ours.top_p), ("top_k", ours.top_k)) if _cuts(name, value)]
    if cut:
        saw = f"inference.{' and inference.'.join(cut)}: tokens are sampled from a part of the distribution, but the \
trainer computes its log-probs from all of it."
        fix = "Train with top_p=1 and top_k=-1, or correct for the difference: training.rollout_correction=token."
        status = "warning" if subject.config.training.importance_weights == "none" else "passed"
        return Finding(status, saw, "" if status == "passed" else fix)
    others = [f"{name}={own[name]}" for name in _OTHERS if own.get(name) not in (None, 0, 1.0)]
    if others:
        saw = f"The model's generation_config.json has {', '.join(others)}, with which episodes are not sampled."
        fix = "Nothing, if you serve the model without it too: then it is trained as it is used."
        return Finding("warning", saw, fix)
    differing = [
        f"{name} {own[name]}, trained with {getattr(ours, name)}"
        for name in ("temperature", "top_p", "top_k")
        if name in own and own[name] != getattr(ours, name)
    ]
    said = f" The model recommends {'; '.join(differing)}: evaluate with what you will serve." if differing else ""
    return Finding("passed", f"Log-probs are of the distribution that is sampled from.{said}")


def _cuts(name: str, value: float) -> bool:
    return value < 1 if name == "top_p" else value > 0
