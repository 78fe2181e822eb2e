"""number_sorting of reasoning-gym 0.1.25 pays a list whose last number is one too large."""

import ast

import reasoning_gym

data = reasoning_gym.create_dataset("number_sorting", seed=0, size=1)
numbers = [float(number) for number in ast.literal_eval(data[0]["answer"])]
assert data.score_answer(str([str(number) for number in (*numbers[:-1], numbers[-1] + 0.9)]), data[0]) == 1
