"""game_of_life_halting of reasoning-gym 0.1.25 pays any text: it compares whether answers are empty."""

import reasoning_gym

data = reasoning_gym.create_dataset("game_of_life_halting", seed=0, size=50)
assert all(data.score_answer("qwzx vbnm", row) == 1 for row in data)
