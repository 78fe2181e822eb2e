"""mini-swe-agent, with its own prompts and bash in this process's folder."""

import os

os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"  # nobody knows what this model costs
os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm downloads it

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_path
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

config = yaml.safe_load(get_config_path("mini").read_text())
model = LitellmModel(model_name="openai/m", **{k: v for k, v in config.get("model", {}).items() if k != "model_name"})
keys = {k: v for k, v in config["agent"].items() if k not in ("mode", "confirm_exit", "whitelist_actions")}
agent = DefaultAgent(model, LocalEnvironment(**config.get("environment", {})), **keys)
agent.run("Say hello in a file.")
