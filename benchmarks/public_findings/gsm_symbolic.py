"""gsm_symbolic of reasoning-gym 0.1.25 never reads a sign, and reads "28,080" as 28."""

import reasoning_gym

data = reasoning_gym.create_dataset("gsm_symbolic", seed=0, size=1)
assert data.score_answer(f"-{data[0]['answer']}", data[0]) == 1
assert data.score_answer("-5", {**data[0], "answer": "-5"}) < 1
assert data.score_answer("28,080", {**data[0], "answer": "28080"}) < 1
