"""The token that ends the model's turn."""

from __future__ import annotations

from turnsmith.check.byte_chat import ByteChat
from turnsmith.check.finding import Check, Finding
from turnsmith.check.generation_config import generation_config
from turnsmith.check.subject import Subject
from turnsmith.check.template_facts import NO_TOKENIZER


async def check_stop_token(subject: Subject) -> Finding:
    """Look for the end of each turn among the tokens that are trained on, and among those the model ends with."""
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


STOP_TOKEN = Check(
    "stop token",
    "Looks where the turns of two episodes end, and what generation_config.json says.",
    "A model whose end of turn is not trained, or that has another one, runs every turn to its limit.",
    check_stop_token,
)
