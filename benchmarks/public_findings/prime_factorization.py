"""prime_factorization of reasoning-gym 0.1.25 raises for an answer with a full stop."""

import reasoning_gym

data = reasoning_gym.create_dataset("prime_factorization", seed=0, size=1)
try:
    data.score_answer("139.", data[0])
except ValueError:
    raise SystemExit from None
raise AssertionError
