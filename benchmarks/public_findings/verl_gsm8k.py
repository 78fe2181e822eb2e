"""verl 0.9.1's scorer of GSM8K pays a right answer nothing if a paragraph follows it."""

from verl.utils.reward_score import gsm8k

assert gsm8k.compute_score("#### 57", "57") == 1
assert gsm8k.compute_score("#### 57\n" + "That is all there is to say. " * 20, "57") == 0
