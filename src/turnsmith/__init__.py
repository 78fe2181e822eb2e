"""Train a language model in your own multi-turn environment, on verl and Ray.

Names are loaded on first use, so that `import turnsmith` is fast and loads no torch, ray, verl or vllm. `__init__.pyi`
lists them, once, for this module and for type checkers.

Example:
    >>> import turnsmith
    >>> turnsmith.ConfigStore().training.adv_estimator
    'grpo'
"""

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_ELSEWHERE = {
    "InferenceEngine": "create_inference_engine(model_path)",
    "PPOTrainer": "RayPPOTrainer(config, environment, reward_fn), or the formulas in turnsmith.algo",
    "PolicyValueModel": "config.model.model_name: verl loads the policy and, for adv_estimator='gae', the critic",
    "PPOBatch": "a reward_fn(trajectory, environment): verl holds the batch",
    "VERLRayPPOTrainer": "RayPPOTrainer(config, environment), which runs verl's trainer",
    "RLHFDataset": "dataset=[...], rows that reset(task) gets, or CustomEnvironmentDataset",
    "compute_reward": "a reward_fn(trajectory, environment) for RayPPOTrainer",
}
"""Names of the specification whose work something else does here."""


def __getattr__(name: str) -> object:
    if name in _ELSEWHERE:  # Python shows the text of an ImportError, and not that of an AttributeError
        raise ImportError(f"turnsmith has no {name}. Write {_ELSEWHERE[name]}.")
    return _load(name)


__version__ = "0.1.0"
