"""Whether vLLM holds a tiny model after the trainer's names were sent to it: `python -m ... FAMILY [DROPPED]`.

Prints the parameters that nothing reached, and by how much the log-probs of a text differ from transformers'. What is
between is verl's: the names that the trainer sends, its sender, and its code in vLLM's worker, here in this process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from typing import Any

COMMON: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 257,
    "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},  # with biases
    "qwen3": {"tie_word_embeddings": True, "head_dim": 32, "num_key_value_heads": 2},
    "gemma3_text": {"head_dim": 32, "query_pre_attn_scalar": 32, "num_key_value_heads": 2},
    "phi3": {},  # what others have apart, it has in one
    "qwen3_moe": {**EXPERTS, "head_dim": 32, "num_key_value_heads": 2, "num_experts": 4, "decoder_sparse_step": 1},
    "olmoe": {"num_experts_per_tok": 2, "num_experts": 4},
}


def main(family: str, dropped: str = "") -> None:
    os.environ |= {
        "VERL_PLATFORM": "cpu",
        "VERL_RAY_JOB_ID": f"families-{os.getpid()}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    import torch
    import verl  # noqa: F401  (before vLLM, which it tells the name of its distribution)
    from transformers import AutoConfig, AutoModelForCausalLM
    from verl.utils.model import convert_weight_keys
    from verl.workers.engine.fsdp.utils import unfuse_moe_params
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
    from vllm import LLM, SamplingParams

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **(COMMON | {"num_key_value_heads": 4} | FAMILIES[family]))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for weight in model.parameters():
        weight.data += torch.randn_like(weight) * 0.05
    names = convert_weight_keys(model.state_dict(), model).items()
    sent = [(name, one) for name, one in unfuse_moe_params(names, family) if name != dropped]
    config.architectures = [type(model).__name__]
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        vllm = LLM(
            folder, load_format="dummy", dtype="float32", enforce_eager=True, max_model_len=64, max_num_seqs=2,
            skip_tokenizer_init=True, worker_extension_cls="turnsmith.trainer.verl.vllm_worker.VllmWorker",
        )  # fmt: skip
    (place,) = vllm.collective_rpc("_get_zmq_handle")
    sender = BucketedWeightSender(place, 1, use_shm=True)
    thread = threading.Thread(target=lambda: asyncio.run(sender.async_send_weights(iter(sent))), daemon=True)
    thread.start()
    vllm.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": True})
    thread.join()
    ids = list(range(3, 40))
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = vllm.generate([{"prompt_token_ids": ids}], asked, use_tqdm=False)
    found = torch.tensor([next(iter(entry.values())).logprob for entry in output.prompt_logprobs[1:]])
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    wanted = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    (missing,) = vllm.collective_rpc("turnsmith_missing_weights")
    print("missing:", ", ".join(missing))
    print("difference:", float((found - wanted).abs().max()), flush=True)
    os._exit(0)  # vLLM's own ending takes seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
