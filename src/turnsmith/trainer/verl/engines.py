"""verl's FSDP engines with what turnsmith needs of them, the same on a CPU and on GPUs."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from verl.utils.device import get_device_name
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead, FSDPEngineWithValueHead

from turnsmith.trainer.verl.resharding import ReshardingManager

_VALUE_MODEL = "ValueForTokenClassification"
"""Any name with this end makes verl's loader of language models load a model with one value for each token."""


class _Engine(FSDPEngine):
    """What both engines change."""

    def initialize(self) -> None:
        """Build the model; its checkpoints may be of any number of ranks."""
        super().initialize()
        self.checkpoint_manager = ReshardingManager(
            model=self.module,
            optimizer=self.optimizer,
            lr_scheduler=self.lr_scheduler,
            processing_class=self.model_config.get_processor(),
            checkpoint_config=self.checkpoint_config,
            trust_remote_code=self.model_config.trust_remote_code,
        )

    def _build_fsdp_module(self, module: Any) -> Any:
        given, model = self.engine_config, module.config
        is_tied = getattr(model, "tie_word_embeddings", False)
        stays = get_device_name() == "cpu" and (given.forward_only or given.offload_policy)
        changed: dict[str, Any] = {}
        if stays:  # verl would move it to pinned memory, which only a machine with an accelerator has
            changed |= {"forward_only": False, "offload_policy": False}
        if getattr(module, "_verl_fused_kernels_backend", None) is not None and not is_tied:
            # verl's fused forward reads `lm_head.weight` without calling lm_head. FSDP2 gathers the weights of what it
            # wrapped when that is called, so of a head that verl wraps by itself it would be this rank's part only.
            # verl does not wrap a tied head, and the embeddings not either, unless they are named like the layers.
            model.tie_word_embeddings = True
            changed["wrap_policy"] = {**given.wrap_policy, _LAYERS: _wrapped(module, given.wrap_policy)}
        self.engine_config = _with(given, changed)
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = given
            if _LAYERS in changed.get("wrap_policy", {}):
                model.tie_word_embeddings = is_tied
            if stays:
                self._is_offload_param = self._is_offload_optimizer = False
                self._uses_fsdp2_cpu_offload_policy = True


_LAYERS = "transformer_layer_cls_to_wrap"


def _wrapped(module: Any, policy: dict[str, Any]) -> list[str]:
    """The names of the classes that FSDP2 is to wrap: of layers and of embeddings."""
    layers = policy.get(_LAYERS) or module._no_split_modules
    embeddings = {type(one).__name__ for one in module.modules() if isinstance(one, nn.Embedding)}
    return [*([layers] if isinstance(layers, str) else layers), *embeddings]


def _with(config: Any, changed: dict[str, Any]) -> Any:
    """A copy of a config of verl's, whose fields cannot be set."""
    config = copy.copy(config)
    vars(config).update(changed)
    return config


class LanguageModelEngine(_Engine, FSDPEngineWithLMHead):
    """The actor and the reference."""


class ValueModelEngine(_Engine, FSDPEngineWithValueHead):
    """The critic."""

    def _build_module(self) -> Any:
        # verl's loader of value heads always asks for flash_attention_2; that of language models asks the config.
        model, config, named = self.model_config, self.model_config.hf_config, self.model_config.hf_config.architectures
        config.num_labels, config.classifier_dropout, config.hidden_dropout = 1, 0.0, "0"
        config.summary_dropout_prob = 0.0
        config.architectures, model.model_type = [_VALUE_MODEL], "language_model"
        try:
            return super()._build_module()
        finally:
            config.architectures, model.model_type = named, "value_model"
