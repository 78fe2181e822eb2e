"""Rewards for whole episodes: calling the user's function, weighted terms, a judge model."""
