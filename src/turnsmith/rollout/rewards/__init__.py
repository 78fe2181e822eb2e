"""Rewards for whole episodes: the user's reward function, weighted terms, a judge model."""
