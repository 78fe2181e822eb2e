"""Train a language model in your own multi-turn environment, on verl and Ray.

Names are loaded on first use, so that `import turnsmith` is fast and loads no torch, ray, verl or vllm. `__init__.pyi`
lists them, once, for this module and for type checkers.

Example:
    >>> import turnsmith
    >>> turnsmith.ConfigStore().training.adv_estimator
    'grpo'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
