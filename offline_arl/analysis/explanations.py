"""What each finding of validation means for who trains on the store, in plain words."""

from __future__ import annotations

from collections.abc import Mapping

# By the codes of `trajectories.validate.CODES`.
MEANINGS: Mapping[str, str] = {
    "empty_id": "Splits, feedback and marks of copies go by the id, so the record was refused.",
    "no_messages": "There is nothing to learn from, so the record was refused.",
    "contradictory_end": (
        "The value after the last step is 0 where a task ended and must be estimated where it was cut off. "
        "With both, value learning would be wrong, so the record was refused."
    ),
    "number_not_finite": "One infinite reward makes every loss that it enters infinite, so the record was refused.",
    "index_out_of_range": "A score or a list of tools would be given to the wrong message, so the record was refused.",
    "unreadable_tools": "Without its tools, a prompt cannot be rendered as the agent saw it; the record was refused.",
    "logprobs_mismatch": (
        "Log-probabilities that do not belong to their tokens make importance ratios meaningless; "
        "the record was refused."
    ),
    "invalid_json": (
        "The tool cannot have run as called. Cloned, it teaches malformed calls; rewards subtract a penalty at such "
        "steps, and value learning sees what it led to."
    ),
    "unknown_tool": (
        "Either the agent made up a tool, or the log lists only some of its tools. In the first case cloning teaches "
        "the made-up tool; in the second the prompt that is trained on lacks a tool."
    ),
    "invalid_arguments": (
        "The call breaks the schema of its tool. If the tool took it anyway, the logged schema is out of date; if "
        "not, cloning teaches calls that fail."
    ),
    "unanswered_call": (
        "What the tool said is missing, so the next turn answers something that the policy does not see. Chat "
        "templates and servers may refuse such a conversation."
    ),
    "unnamed_result": (
        "With parallel calls it is not known which result belongs to which. Harmless where every turn has one call."
    ),
    "orphan_result": (
        "The call was cut away (by truncation or compaction) or the log lost it. The policy would learn to read "
        "results of calls that it never made."
    ),
    "repeated_result": (
        "A retry or a replayed history was logged twice, or a result came in pieces. The policy sees the answer twice."
    ),
    "reused_call_id": (
        "Results are matched by id, so a result may be given to the wrong call. Common where a server numbers calls "
        "anew in each turn, and harmless if results follow their calls."
    ),
    "time_reversal": (
        "Messages may lie in the wrong order, or clocks of several machines were mixed. In the wrong order, an "
        "action would be explained by what came after it. Splits by time are not to be trusted."
    ),
    "impossible_reward": (
        "The verdict and the score say different things, or a crash of the harness has a result. Filtered cloning and "
        "value learning would go by different truths; settle which one holds before training."
    ),
    "empty_message": "A step with neither text nor call: cloned, it teaches the policy to stop at once.",
    "no_policy_step": (
        "No turn of the agent is in it (only demonstrations, summaries or copies), so training takes nothing from it."
    ),
}
