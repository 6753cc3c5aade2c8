"""The tiny policy on logs of the support desk, broken calls included: what is rendered is what a rollout would hold."""

from __future__ import annotations

import json

from offline_arl.environments.support_desk.logs import write_logs
from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.providers.openai_chat import OpenAIChatAdapter
from offline_arl.models.tiny import train_tiny_tokenizer
from offline_arl.rendering import Renderer


def test_rendered_logs_parse_back_and_extend(tmp_path):
    path = tmp_path / "logs.jsonl"
    write_logs(path, 150, seed=3)
    adapter = OpenAIChatAdapter()
    trajectories = [
        trajectory
        for position, line in enumerate(path.read_bytes().splitlines())
        for trajectory in adapter.convert(RawRecord("logs", "logs", position, line))
    ]
    texts = [message.text for trajectory in trajectories for message in trajectory.messages]
    renderer = Renderer(train_tiny_tokenizer([*texts, json.dumps(trajectories[0].tools_at(0))]))
    broken = 0
    for trajectory in trajectories:
        (segment,) = renderer.render(trajectory)
        steps, tools = trajectory.step_indices(), trajectory.tools_at(0)
        tokens = renderer.prompt(trajectory.messages[: steps[0]], tools)
        for step, start, end in segment.step_spans():
            message = trajectory.messages[steps[step]]
            assert tokens == segment.token_ids[:start].tolist()
            sampled = segment.token_ids[start:end].tolist()
            parsed = renderer.parse(sampled)
            assert parsed.text == message.text
            assert len(parsed.tool_calls) == len(message.tool_calls)
            for found, logged in zip(parsed.tool_calls, message.tool_calls, strict=True):
                assert (found.name, found.arguments) == (logged.name, logged.arguments)
                if logged.arguments is None:
                    assert found.arguments_raw == logged.arguments_raw
                    broken += 1
            tokens += sampled
            if step + 1 < len(steps):
                tokens = renderer.extend(tokens, trajectory.messages[steps[step] + 1 : steps[step + 1]], tools)
        assert tokens == segment.token_ids.tolist()
    assert broken > 0  # the logs have calls whose arguments are not JSON
