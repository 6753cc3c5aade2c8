"""Session logs of agents and agent harnesses."""
