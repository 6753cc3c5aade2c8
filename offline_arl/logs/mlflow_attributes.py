r"""The attributes of MLflow's spans: what the traced function of a model call got and gave, in its own shape.

In a trace every attribute is JSON text once more (`"mlflow.spanType": "\"LLM\""`); `mlflow_traces` has decoded that.
"""

from __future__ import annotations

from offline_arl.logs.answer_shapes import read_answer
from offline_arl.logs.genai_semconv import CallContent
from offline_arl.logs.message_shapes import read_messages, read_prompt
from offline_arl.logs.spans import Span
from offline_arl.logs.tool_shapes import tools_text
from offline_arl.logs.values import as_list
from offline_arl.trajectories.schema import Message

_INPUTS, _OUTPUTS = "mlflow.spanInputs", "mlflow.spanOutputs"
_CHAT_MESSAGES, _CHAT_TOOLS = "mlflow.chat.messages", "mlflow.chat.tools"


def read(span: Span) -> CallContent | None:
    """The messages of a model call; None where inputs and outputs were not logged.

    Raises:
        RecordRefusedError: They are there and cannot be read.
    """
    attributes = span.attributes
    prompt = read_prompt(attributes.get(_INPUTS), _INPUTS)
    answer = read_answer(attributes.get(_OUTPUTS), _OUTPUTS)
    used = {key for key in (_INPUTS, _OUTPUTS, _CHAT_MESSAGES) if key in attributes}
    messages: list[Message] = [] if prompt is None else prompt.messages
    choices: list[Message] = [] if answer is None else answer.choices
    if not messages:
        # Version 2 had the whole conversation here, the answer last.
        logged = read_messages(as_list(attributes.get(_CHAT_MESSAGES)), _CHAT_MESSAGES)
        is_answered = bool(logged) and logged[-1].role == "assistant"
        messages = logged[:-1] if is_answered else logged
        choices = choices or (logged[-1:] if is_answered else [])
    if not messages and not choices:
        return None
    tools = tools_text(attributes.get(_CHAT_TOOLS)) or (None if prompt is None else prompt.tools)
    if tools is not None:
        used |= {key for key in (_CHAT_TOOLS, "tools") if key in attributes}
    metadata = {} if prompt is None else prompt.settings
    if answer is not None:
        messages = [*messages, *answer.before]
        metadata = {**metadata, **answer.rest}
        for choice, reason in zip(choices, answer.stop_reasons, strict=False):
            if reason is not None:
                choice.metadata.setdefault("finish_reason", reason)
    return CallContent(messages, choices, tools, used, metadata)
