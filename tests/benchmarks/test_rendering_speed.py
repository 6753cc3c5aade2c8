"""Tokens a second of rendering and microseconds of extending, for the tiny policy. Run by `make bench`."""

from __future__ import annotations

import json
import time

from offline_arl.models.tiny import train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.trajectories.schema import Context, Message, Source, TextPart, Trajectory, text_message, tool_call

TRAJECTORIES = 2000
LIMIT_S = 10.0
PARAMETERS = {"type": "object", "properties": {"order_id": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("get_order", "refund_order", "change_address", "escalate")
]


def _trajectory(number: int) -> Trajectory:
    messages = [
        text_message("system", "You are a support agent. Be brief and follow the policy."),
        text_message("user", f"Hello, where is order {number}?"),
    ]
    for step in range(3):
        call_id = f"call_{step}"
        call = tool_call("get_order", {"order_id": str(number + step)}, id=call_id)
        messages.append(Message(role="assistant", tool_calls=[call]))
        answer = json.dumps({"order_id": str(number + step), "status": "shipped", "days": number % 7})
        messages.append(Message(role="tool", content=[TextPart(answer)], tool_call_id=call_id, name="get_order"))
    messages += [text_message("assistant", f"Order {number} has shipped."), text_message("user", "Thanks, bye.")]
    return Trajectory(str(number), messages, Source("bench"), contexts=[Context(0, json.dumps(TOOLS))])


def test_two_thousand_trajectories_render_within_ten_seconds() -> None:
    trajectories = [_trajectory(number) for number in range(TRAJECTORIES)]
    tokenizer = train_tiny_tokenizer(message.text for item in trajectories[:200] for message in item.messages)
    renderer = Renderer(tokenizer)
    began = time.perf_counter()
    segments = [segment for trajectory in trajectories for segment in renderer.render(trajectory)]
    rendering = time.perf_counter() - began
    tokens = sum(map(len, segments))
    (_, _, end), *_ = segments[0].step_spans()
    prefix = segments[0].token_ids[:end].tolist()
    began = time.perf_counter()
    for trajectory in trajectories:
        renderer.extend(prefix, trajectory.messages[3:4], TOOLS)
    extending = time.perf_counter() - began
    print(
        f"rendering: {TRAJECTORIES} trajectories, {tokens} tokens in {rendering:.2f} s "
        f"({tokens / rendering / 1000:.0f} k tokens/s); extend {1e6 * extending / TRAJECTORIES:.0f} us"
    )
    assert rendering < LIMIT_S
