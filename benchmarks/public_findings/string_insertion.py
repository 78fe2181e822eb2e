"""string_insertion of reasoning-gym 0.1.25: in nearly all questions the answer is the text as it was given."""

import reasoning_gym

data = reasoning_gym.create_dataset("string_insertion", seed=0, size=500)
assert sum(data.score_answer(row["metadata"]["string"], row) for row in data) > 0.8 * 500
