"""Rollouts of RL libraries."""
