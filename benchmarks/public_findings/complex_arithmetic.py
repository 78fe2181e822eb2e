"""complex_arithmetic of reasoning-gym 0.1.25 pays "nan" in full: min(1.0, nan) is 1.0."""

import reasoning_gym

data = reasoning_gym.create_dataset("complex_arithmetic", seed=0, size=50)
assert all(data.score_answer("nan", row) == 1 for row in data)
