"""Probes: small decision problems whose best policy is known exactly, played as plain-text chats.

A method that reaches the known optimum here does what its paper says; one that falls short is wrong or misused.

* `random_walks`: shortest walks in a directed graph, learned from random walks (trlx).
* `double_t_maze`: a maze with known start and goal, learned from nearly random play (LMRL-Gym).
* `key_to_door`: a key taken in the first room pays in the third (Decision Transformer).
* `stitching`: from half of the starts, the goal is reached only by joining parts of two logged paths.

Each state is a user message, each action an assistant message of one word. What a step earned is in
`metadata["reward"]` of its message; an action that the rules do not know is marked `metadata["invalid_action"]`.
"""
