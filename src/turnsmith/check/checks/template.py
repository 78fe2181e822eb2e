"""The chat template, on transcripts of this environment."""

from __future__ import annotations

from turnsmith.check.byte_chat import ByteChat
from turnsmith.check.finding import Check, Finding
from turnsmith.check.scripted import NO_TURN
from turnsmith.check.subject import Subject
from turnsmith.check.template_facts import NO_TOKENIZER, THOUGHT, TemplateFacts, render
from turnsmith.inference.chat import Chat
from turnsmith.trajectory import Trajectory


async def check_template(subject: Subject) -> Finding:
    """Play with plain answers and with thinking, and compare the tokens with the template's rendering of the whole."""
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


TEMPLATE = Check(
    "template",
    "Plays two starts with plain answers and with thinking, and renders each transcript again as a whole.",
    "A template that rewrites history lets a served model see another conversation than the one it was trained on.",
    check_template,
)
