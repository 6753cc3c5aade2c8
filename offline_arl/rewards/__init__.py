"""Rewards: from the outcome and the actions of a trajectory to per-step rewards and returns."""
