"""What the checks say about chat templates: real ones, against a table made by reading them, and broken ones."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.inference.conftest import CHATML, load_real_tokenizer, make_byte_tokenizer

from turnsmith.check.environment.checks.chat import check_call_format, check_sampling, check_stop_token, check_template
from turnsmith.check.environment.subject import Subject
from turnsmith.check.environment.template_facts import TemplateFacts, render, spellings
from turnsmith.check.finding import Finding
from turnsmith.config import ConfigStore
from turnsmith.env.examples import Calculator, GuessNumber
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.chat import Chat
from turnsmith.tools.parsing.formats import parser_for

BY_HAND = """
                        qwen3       llama3_2    deepseek_v3            smollm2
system_role             yes         yes         yes                    yes
adds_system_text        no          yes         no                     yes
has_date                no          yes         no                     no
tool_role               yes         yes         yes                    no
shows_tools             yes         yes         no                     no
appends_turns           yes         yes         yes                    yes
keeps_thinking          no          yes         yes                    yes
writes_calls            yes         yes         yes                    no
keeps_text_beside_call  yes         no          no                     no
closes_calls            yes         yes         no                     no
appends_calls           yes         yes         no                     no
repeats_results         yes         yes         no                     no
end_of_turn             <|im_end|>  <|eot_id|>  <｜end▁of▁sentence｜>  <|im_end|>
end_is_eos              yes         yes         yes                    yes
"""  # noqa: RUF001
"""Made by reading the templates; the row `repeats_results` and DeepSeek's `tool_role` were read again after a first
comparison. docs/check.md#a-reward has the reasons."""
FAMILIES, *ROWS = [[*map(str, line.split())] for line in BY_HAND.strip().splitlines()]

OWN_CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') }}"
    "{% for call in m.tool_calls or [] %}CALL{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PYTHON_CALLS = OWN_CALLS.replace("CALL", "<tool_call>{{ call.function }}</tool_call>")
JSON_CALLS = OWN_CALLS.replace("CALL", "<tool_call>{{ call.function | tojson }}</tool_call>")
DROPS_THINKING = CHATML.replace("m['content'] +", "m['content'].split('</think>')[-1].lstrip() +")
SHORTENS = CHATML.replace("m['content'] +", "(m['content'] if loop.last else m['content'][:60]) +")


class LongRules(GuessNumber):
    def reset(self, seed: int = 0) -> str:
        return f"{super().reset(seed)} Think about it for as long as you like, there is no hurry."


def subject(
    template: str = CHATML, environment: type = GuessNumber, eos: str = "<|im_end|>", **settings: object
) -> Subject:
    config = ConfigStore()
    config.inference.max_turns = 3
    for name, value in settings.items():
        setattr(config.inference, name, value)
    chat = Chat(make_byte_tokenizer(template, eos))
    parser = parser_for(config.inference.tool_format, chat.tokenizer)
    return Subject(environment=EnvironmentSpec.of(environment), config=config, chat=chat, parser=parser)


def with_generation_config(found: Subject, folder: Path, **settings: object) -> Subject:
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return replace(found, model_path=str(folder))


USER, NEXT = ({"role": "user", "content": text} for text in ("Who won?", "And then?"))
RESULT = {"role": "tool", "name": "look_up", "tool_call_id": "call00001", "content": "c d"}
CALL = {"name": "look_up", "arguments": {"key": "a b"}}


def facts_of(chat: Chat) -> dict[str, object]:
    """What the checks find about a template, and what only the table on the page of the docs says besides."""
    facts, end, prompt = TemplateFacts.of(chat), chat.show([chat.close_id]), render(chat, [USER]) or "-"
    calls = [message for message in spellings(CALL) if "look_up" in str(render(chat, [USER, message], prompt=False))]
    beside = [str(render(chat, [USER, {**message, "content": "One moment."}])) for message in calls]
    answered = [str(render(chat, [USER, message, RESULT])) for message in calls]
    ends = [f"{prompt}{(render(chat, [USER, one], prompt=False) or '').removeprefix(prompt)}" for one in calls]
    # Qwen3's template writes an empty thinking block only in the last message.
    turns = [turn.replace("<think>\n\n</think>\n\n", "") for turn in ends if facts.closes_calls]
    plain = str(render(chat, [USER, {"role": "assistant", "content": "Nobody."}, NEXT]))
    rounds = [str(render(chat, [USER, one, RESULT, one, RESULT])).split("c d") for one in calls]
    return {name: getattr(facts, name) for name in TemplateFacts.__slots__} | {
        "shows_tools": chat.renders_tools,
        "appends_turns": plain.startswith(f"{prompt}Nobody."),
        "writes_calls": bool(calls),
        "keeps_text_beside_call": any("One moment." in text and "look_up" in text for text in beside),
        "appends_calls": any(text.startswith(turn) for text in answered for turn in turns),
        "repeats_results": any(
            len(parts) == 3 and len({part.rpartition("look_up")[2] for part in parts[:2] if "look_up" in part}) == 1
            for parts in rounds
        ),
        "end_of_turn": end,
        "end_is_eos": chat.close_id == chat.tokenizer.eos_token_id,
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_found_about_a_real_template_is_what_reading_it_shows(family: str) -> None:
    found = facts_of(Chat(load_real_tokenizer(family)))
    shown = {name: {True: "yes", False: "no"}.get(value, value) for name, value in found.items()}
    assert shown == {name: values[FAMILIES.index(family)] for name, *values in ROWS}


@pytest.mark.parametrize(
    ("family", "tool_format", "status"),
    [
        ("qwen3", "native", "passed"),
        ("qwen3", "function_calling", "passed"),
        ("qwen3", "react", "warning"),
        ("llama3_2", "native", "passed"),
        ("llama3_2", "function_calling", "passed"),
        ("deepseek_v3", "native", "passed"),
        ("deepseek_v3", "function_calling", "warning"),
        ("smollm2", "function_calling", "skipped"),
    ],
)
async def test_calls_of_real_templates_parse_back(family: str, tool_format: str, status: str) -> None:
    found = subject(environment=Calculator, tool_format=tool_format)
    tokenizer = load_real_tokenizer(family)
    real = replace(found, chat=Chat(tokenizer), parser=parser_for(tool_format, tokenizer))
    assert (await check_call_format(real)).status == status


async def test_a_template_without_calls_has_none_to_compare() -> None:
    found = await check_call_format(subject(CHATML, Calculator, tool_format="json"))
    assert found.status == "skipped"
    assert found.saw == "The template has no tool calls: they are described in the prompt, in the format json."


@pytest.mark.parametrize(
    ("family", "status"),
    [("qwen3", "warning"), ("llama3_2", "passed"), ("deepseek_v3", "passed"), ("smollm2", "passed")],
)
async def test_a_real_template_that_drops_thinking_is_found_on_transcripts(family: str, status: str) -> None:
    found = subject()
    real = replace(found, chat=Chat(load_real_tokenizer(family)))
    assert (await check_template(real)).status == status


FAULTS: list[tuple[str, Callable[[Subject], Awaitable[Finding]], Subject, str, str]] = [
    ("thinking is dropped", check_template, subject(DROPS_THINKING), "warning", "thinking"),
    ("earlier messages are shortened", check_template, subject(SHORTENS, LongRules), "warning", "transcripts"),
    ("a base model with a chat template", check_stop_token, subject(eos="<|endoftext|>"), "warning", "<|endoftext|>"),
    (
        "calls are written as Python",
        check_call_format,
        subject(PYTHON_CALLS, Calculator, tool_format="native"),
        "failed",
        "not read",
    ),
    ("another parser", check_call_format, subject(JSON_CALLS, Calculator, tool_format="react"), "warning", "react"),
    ("greedy groups", check_sampling, subject(temperature=0.0), "failed", "nothing to learn"),
    ("nucleus sampling", check_sampling, subject(top_p=0.9), "warning", "top_p=0.9"),
    ("top-k sampling", check_sampling, subject(top_k=20), "warning", "top_k=20"),
]


@pytest.mark.parametrize(
    ("check", "broken", "status", "words"), [fault[1:] for fault in FAULTS], ids=[f[0] for f in FAULTS]
)
async def test_a_planted_fault_is_found(
    check: Callable[[Subject], Awaitable[Finding]], broken: Subject, status: str, words: str
) -> None:
    finding = await check(broken)
    assert finding.status == status
    assert words in finding.saw
    assert finding.fix


@pytest.mark.parametrize(
    ("schedule", "correction", "status"),
    [
        ("sync", "auto", "warning"),
        ("colocate_async", "auto", "passed"),
        ("sync", "token", "passed"),
        ("colocate_async", "none", "warning"),
    ],
)
async def test_nucleus_sampling_is_no_fault_if_it_is_corrected_for(schedule: str, correction: str, status: str) -> None:
    found = subject(top_p=0.9)
    found.config.training.schedule, found.config.training.rollout_correction = schedule, correction
    assert (await check_sampling(found)).status == status


async def test_an_end_that_only_the_generation_config_has_is_found(tmp_path: Path) -> None:
    found = with_generation_config(subject(), tmp_path, eos_token_id=[65, 66])
    assert "at which episodes do not stop" in (await check_stop_token(found)).saw


async def test_a_penalty_of_the_generation_config_is_found(tmp_path: Path) -> None:
    found = with_generation_config(subject(), tmp_path, repetition_penalty=1.1)
    finding = await check_sampling(found)
    assert (finding.status, "repetition_penalty=1.1" in finding.saw) == ("warning", True)


async def test_what_a_model_recommends_is_said_and_no_fault(tmp_path: Path) -> None:
    found = with_generation_config(subject(), tmp_path, temperature=0.6, top_p=0.95, top_k=20, do_sample=True)
    finding = await check_sampling(found)
    assert finding.status == "passed"
    assert "temperature 0.6, trained with 1.0; top_p 0.95" in finding.saw


@pytest.mark.parametrize("check", [check_template, check_stop_token, check_sampling, check_call_format])
async def test_a_sound_template_passes(check: Callable[[Subject], Awaitable[Finding]]) -> None:
    assert (await check(subject(JSON_CALLS, Calculator))).status == "passed"
