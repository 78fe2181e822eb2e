"""Teach a model to say "a", over three turns. About three minutes on two CPU cores: python examples/letters.py"""

from turnsmith import BaseEnvironment, ConfigStore, RayPPOTrainer


class Letters(BaseEnvironment):
    def reset(self) -> str:
        return "Say a"

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        self.step_count += 1
        return "Once more", action.count("a") / max(len(action), 1) / 3, self.step_count == 3, {}


if __name__ == "__main__":
    config = ConfigStore()
    config.model.model_name = "tiny"  # a small random model that turnsmith makes itself
    config.inference.max_tokens = 8
    config.training.learning_rate = 1e-2
    RayPPOTrainer(config, Letters).fit(num_epochs=4)
