"""A random model with 0.1 million parameters, built in a second: for tests and for trying out an environment.

It is untrained, but a real Llama with a real tokenizer, so transformers, vLLM and verl load it like any other. One
token is one printable ASCII character or a newline; its chat template is ChatML.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turnsmith.errors import MissingDependency
from turnsmith.models.saving import save_model

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML. Appending a message never changes the text before it."""

SPECIAL_TOKENS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|unknown|>")
PAD_ID, START_ID, END_ID, UNKNOWN_ID = range(len(SPECIAL_TOKENS))
CHARACTERS = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))


def build_tiny(folder: str | Path, seed: int = 0) -> None:
    """Build the tiny model and its tokenizer in a folder.

    Args:
        folder: Where to write; created if it does not exist.
        seed: The same seed gives the same weights.

    Raises:
        MissingDependency: If torch or transformers is not installed.
    """
    try:
        import torch
        from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise MissingDependency("Building the tiny model needs torch: pip install 'turnsmith[cpu]'.") from error
    config = LlamaConfig(
        vocab_size=len(SPECIAL_TOKENS) + len(CHARACTERS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of size 32, the smallest that vLLM's attention supports
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=START_ID,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
        dtype=torch.float32,
    )
    # A separate generator, so that building a model leaves the caller's random state unchanged.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    # No sampling defaults: they would change the log-probs that training compares.
    model.generation_config = GenerationConfig(bos_token_id=START_ID, eos_token_id=END_ID, pad_token_id=PAD_ID)
    save_model(model, _tokenizer(config.max_position_embeddings), folder)


def _tokenizer(max_length: int) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    # BPE without merges: every character is a token.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIAL_TOKENS[UNKNOWN_ID]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL_TOKENS[START_ID],
        eos_token=SPECIAL_TOKENS[END_ID],
        pad_token=SPECIAL_TOKENS[PAD_ID],
        unk_token=SPECIAL_TOKENS[UNKNOWN_ID],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
