"""Masks against TRL's: its training templates mark assistant turns with generation tags.

TRL's marks also take in line breaks around a turn, which no policy samples. All else must agree.
"""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from offline_arl.rendering import Renderer
from offline_arl.trajectories.schema import Context


@pytest.mark.parametrize(
    ("family", "template"),
    [("qwen2.5", "qwen2_5_training"), ("qwen3", "qwen3_training"), ("qwen3.5", "qwen3_5_think_training")],
)
def test_masks_agree_with_generation_tags_up_to_line_breaks(
    family, template, tokenizer_of, trl_template_of, airline, tools
):
    tokenizer = tokenizer_of(family)
    renderer = Renderer(tokenizer, chat_template=trl_template_of(template))
    for original in airline[:4]:
        last = original.step_indices()[-1]
        trajectory = msgspec.structs.replace(
            original, messages=original.messages[: last + 1], contexts=[Context(0, json.dumps(tools))]
        )
        (segment,) = renderer.render(trajectory)
        messages = [
            {
                "role": message.role,
                "content": message.text,
                "tool_calls": [
                    {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                    for call in message.tool_calls
                ],
            }
            for message in trajectory.messages
        ]
        marked = tokenizer.apply_chat_template(
            messages,
            tools=tools,
            chat_template=renderer.chat_template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        ids, mask = np.array(marked["input_ids"]), np.array(marked["assistant_masks"], dtype=bool)
        ids, mask = ids[: len(segment)], mask[: len(segment)]
        np.testing.assert_array_equal(segment.token_ids, ids)
        assert not (segment.action_mask & ~mask).any()
        surplus = tokenizer.decode(ids[mask & ~segment.action_mask])
        # Qwen 3.5's generation prompt ends in an open thought, which TRL marks too.
        assert surplus.replace("<think>", "").strip("\n") == ""
        assert ("<think>" in surplus) == (family == "qwen3.5")
