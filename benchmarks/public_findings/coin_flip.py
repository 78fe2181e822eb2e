"""coin_flip of reasoning-gym 0.1.25 pays "0" in full: it is a prefix of "0.3125", divided by the shorter length."""

import reasoning_gym

data = reasoning_gym.create_dataset("coin_flip", seed=0, size=200)
paid = [data.score_answer("0", row) == 1 for row in data if row["answer"] != "0"]
assert sum(paid) > 150, sum(paid)
