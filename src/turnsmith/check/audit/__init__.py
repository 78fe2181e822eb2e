"""The audit of a reward: what is paid without being deserved, and what is right and not paid."""
