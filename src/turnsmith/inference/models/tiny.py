"""A random model with 0.1 million parameters, built in a second: for tests and for trying out an environment.

It is untrained, but a real Llama with a real tokenizer, so transformers, vLLM and verl load it like any other. One
token is one printable ASCII character or a newline; its chat template is ChatML.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turnsmith.errors import MissingDependency
from turnsmith.importing import install_line
from turnsmith.inference.models.shape import save_model

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML. Appending a message never changes the text before it."""

SPECIAL_TOKENS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|unknown|>")
PAD_ID, START_ID, END_ID, UNKNOWN_ID = range(len(SPECIAL_TOKENS))
_POSITIONS = 8192
CHARACTERS = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))


def build_tiny(folder: str | Path, seed: int = 0) -> None:
    """Build the tiny model and its tokenizer in a folder.

    Args:
        folder: Where to write; created if it does not exist.
        seed: The same seed gives the same weights.

    Raises:
        MissingDependency: If torch or transformers is not installed.
    """
    tokenizer = _tokenizer(_POSITIONS)
    model = _random_model(len(tokenizer), _POSITIONS, {"bos": START_ID, "eos": END_ID, "pad": PAD_ID}, seed)
    save_model(model, tokenizer, folder)


def build_tiny_like(
    folder: str | Path, source: str, positions: int = 8192, *, trust_remote_code: bool = False, seed: int = 0
) -> None:
    """Build a tiny model with the tokenizer, chat template and vocabulary of another one, whose weights are not read.

    Args:
        folder: Where to write; created if it does not exist.
        source: The folder or Hugging Face id of the other model: its config and its tokenizer are enough.
        positions: The longest sequence that the model is for, in tokens.
        trust_remote_code: Whether code that comes with the other model may run.
        seed: The same seed gives the same weights.

    Raises:
        OSError: The config or the tokenizer of the other model cannot be read.
    """
    from transformers import AutoConfig, AutoTokenizer

    config: Any = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    text = config.get_text_config()
    ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    save_model(_random_model(max(text.vocab_size, len(tokenizer)), positions, ids, seed), tokenizer, folder)


def _random_model(vocabulary: int, positions: int, ids: dict[str, int | None], seed: int) -> Any:
    try:
        import torch
        from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise MissingDependency(f"Building the tiny model needs torch: {install_line('cpu')}.") from error
    special: dict[str, Any] = {f"{name}_token_id": token for name, token in ids.items()}
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of size 32, the smallest that vLLM's attention supports
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        dtype=torch.float32,
        **special,
    )
    # A separate generator, so that building a model leaves the caller's random state unchanged.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    # No sampling defaults: they would change the log-probs that training compares.
    model.generation_config = GenerationConfig(**special)
    return model


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
