"""puzzle24 of reasoning-gym 0.1.25 pays one formula for every question: the numbers that it uses are not compared."""

import reasoning_gym

data = reasoning_gym.create_dataset("puzzle24", seed=0, size=200)
assert all(data.score_answer("1*3*5 + 9", row) == 1 for row in data)
