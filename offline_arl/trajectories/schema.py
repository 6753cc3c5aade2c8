"""The record types that everything reads: `Trajectory`, `Message` and their parts.

A trajectory is one agent's attempt at one task. The types are msgspec structs: they decode fast, compare by
value, and the JSON Schema in `data_schemas/` is generated from them. In memory a record is self-contained; the
store moves tool lists and system prompts to content-addressed blobs.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA_VERSION = "1.1"

Role = Literal["system", "developer", "user", "assistant", "tool"]
ProducerKind = Literal["model", "human", "script", "environment", "summary", "demonstration", "copy", "unknown"]
OutcomeStatus = Literal["scored", "unscored", "infrastructure_error"]
ScorerKind = Literal["human", "model", "code", "environment", "unknown"]
Direction = Literal["higher_is_better", "lower_is_better", "unknown"]
FeedbackTarget = Literal["trajectory", "trace", "session", "call"]


class TextPart(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """Visible text."""

    text: str


class ReasoningPart(msgspec.Struct, frozen=True, tag="reasoning", omit_defaults=True):
    """Reasoning text; `signature` is a provider's opaque seal, `encrypted` says that the text is not readable."""

    text: str
    signature: str | None = None
    encrypted: bool = False


class ImagePart(msgspec.Struct, frozen=True, tag="image", omit_defaults=True):
    """Reference to an image: a URL, a data URL or a file name, kept as logged."""

    uri: str
    detail: str | None = None


class FilePart(msgspec.Struct, frozen=True, tag="file", omit_defaults=True):
    """Reference to any other attachment, kept as logged."""

    uri: str
    media_type: str | None = None


ContentPart = TextPart | ReasoningPart | ImagePart | FilePart


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of a tool by the assistant.

    `arguments_raw` is the exact string that was logged or sampled (for formats that log an object, its compact
    JSON). `arguments` is the parsed value where it is a JSON object; otherwise it is None and `parse_error` says
    why.
    """

    name: str
    arguments_raw: str
    arguments: dict[str, Any] | None = None
    id: str | None = None
    parse_error: str | None = None


class MessageError(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error attached to a message: a failed tool, a refused call, an API error."""

    type: str
    text: str = ""


class Producer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who made a message. Role alone cannot tell: demonstrations, scripted greetings, compaction summaries and
    copied context carry the role "assistant" and are not training targets.
    """

    kind: ProducerKind = "unknown"
    name: str | None = None


# The one that messages have where nothing is known: as this very object, encoding leaves it out.
UNKNOWN_PRODUCER = Producer()


class TokenRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token ids recorded when a message was sampled.

    `token_ids` are the sampled tokens of the message, ending with the stop token when one was sampled;
    `logprobs` has the same length; `prompt_token_ids` is the whole prompt that the sampler saw, where recorded.
    `fingerprint` names the tokenizer and chat template that made them (`Renderer.fingerprint`).
    """

    token_ids: list[int]
    fingerprint: str
    logprobs: list[float] | None = None
    prompt_token_ids: list[int] | None = None


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens and cost that the log reports for a message; cost in US dollars."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One chat message. `content` is None where the log had null or nothing, [] where it was an empty list.

    `id` is the log's own name for the message or for the model call that made it (a message uuid, span, run or
    observation id): feedback that is kept elsewhere is joined by it.
    """

    role: Role
    content: list[ContentPart] | None = None
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    name: str | None = None
    error: MessageError | None = None
    producer: Producer = UNKNOWN_PRODUCER
    tokens: TokenRecord | None = None
    timestamp: str | None = None
    usage: Usage | None = None
    trainable: bool | None = None
    metadata: dict[str, Any] = {}
    id: str | None = None

    @property
    def text(self) -> str:
        """The visible text of the message, its text parts joined; "" where there is none."""
        return "".join(part.text for part in self.content or () if isinstance(part, TextPart))

    @property
    def reasoning(self) -> str:
        """The readable reasoning of the message; "" where there is none."""
        parts = self.content or ()
        return "".join(part.text for part in parts if isinstance(part, ReasoningPart) and not part.encrypted)


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tools and system prompt in force from message `start` (index into `messages`) until the next context.

    `tools` is the JSON text of the list of tools in OpenAI form (`[{"type": "function", "function": {...}}]`);
    a string, never parsed into a table schema, so that tools of different rows cannot merge. None: not logged.
    """

    start: int
    tools: str | None = None
    tools_id: str | None = None
    system_id: str | None = None


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a trajectory came from. `record` is the 0-based position in `file`; `sha256` is of the raw record."""

    format: str
    file: str | None = None
    record: int | None = None
    sha256: str | None = None


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result that the log or the environment reports.

    `infrastructure_error` is a crash of the harness: it is not a reward of 0 and never a negative example.
    `score` is on the scorer's own scale; `success` is its verdict where there is one.
    """

    status: OutcomeStatus = "unscored"
    success: bool | None = None
    score: float | None = None
    components: dict[str, float] = {}
    scorer: str | None = None


class Score(msgspec.Struct, frozen=True, omit_defaults=True):
    """One judgement of a trajectory or of one message: a score, a thumb, a label, a correction.

    `value` is the number as logged (true and false are 1 and 0), `label` a category. None in both is a judgement
    without a verdict, which is not zero. `direction` says which way is better: a toxicity of 0.9 is not praise.
    `comparison_id` is shared by what was compared with one another. `correction` is the JSON text of what the
    scorer would have had instead.
    """

    name: str
    value: float | None = None
    label: str | None = None
    scorer: str | None = None
    scorer_kind: ScorerKind = "unknown"
    direction: Direction = "unknown"
    message_index: int | None = None
    comment: str | None = None
    correction: str | None = None
    comparison_id: str | None = None
    timestamp: str | None = None
    metadata: dict[str, Any] = {}


class Feedback(msgspec.Struct, frozen=True, omit_defaults=True):
    """A judgement that is kept apart from what it judges, and the id by which the two are joined.

    `target_id` is a trajectory id, a trace or run id (`Trajectory.identifiers`), a session id
    (`Trajectory.session_id`) or the id of a message or model call (`Message.id`; a run that encloses messages:
    `Trajectory.identifiers`), as `target` says.
    """

    target: FeedbackTarget
    target_id: str
    score: Score


class Branch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A branch shares the first `message_index` messages with trajectory `trajectory_id`."""

    trajectory_id: str
    message_index: int


class Trajectory(msgspec.Struct, frozen=True, omit_defaults=True):
    """One agent's attempt at one task.

    `trajectory_id` is made from the source position and the content, so two honest identical attempts stay two.
    `task_id` names the problem, `group_id` the attempts to compare with one another. `terminated` (the task came
    to its own end) and `truncated` (cut by a limit) are kept apart because bootstrapping treats them differently.
    """

    trajectory_id: str
    messages: list[Message]
    source: Source
    task_id: str | None = None
    group_id: str | None = None
    episode_id: str | None = None
    parent_trajectory_id: str | None = None
    branch: Branch | None = None
    task_type: str | None = None
    agent: str | None = None
    model: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    contexts: list[Context] = []
    terminated: bool = False
    truncated: bool = False
    stop_reason: str | None = None
    outcome: Outcome = Outcome()
    metadata: dict[str, Any] = {}
    session_id: str | None = None
    user_id: str | None = None
    identifiers: dict[str, str] = {}
    scores: list[Score] = []
    schema_version: str = SCHEMA_VERSION

    def context_at(self, index: int) -> Context:
        """The context in force at message `index` (the last one that starts at or before it)."""
        found = Context(start=0)
        for context in self.contexts:
            if context.start > index:
                break
            found = context
        return found

    def tools_at(self, index: int) -> list[dict[str, Any]] | None:
        """The parsed tools in force at message `index`, or None where the log has none."""
        text = self.context_at(index).tools
        return None if text is None else msgspec.json.decode(text)

    def step_indices(self) -> list[int]:
        """Message indices of the steps: the assistant messages that the policy under study made.

        Step i is the i-th of them. Demonstrations, scripted turns, summaries and copied context do not count; a
        message of unknown producer counts, because most logs do not say.
        """
        return [index for index, message in enumerate(self.messages) if is_policy_message(message)]


POLICY_KINDS = ("model", "unknown")


def is_policy_message(message: Message) -> bool:
    """Whether a message is a step of the agent: an assistant message not known to come from elsewhere."""
    return message.role == "assistant" and message.producer.kind in POLICY_KINDS


def parse_arguments(raw: str) -> tuple[dict[str, Any] | None, str | None]:
    """Parse the raw argument string of a tool call; returns (arguments, parse_error), one of them None.

    An empty string and "null" are what some models send for "no arguments" and parse to {}.

    >>> parse_arguments('{"order_id": "17"}')
    ({'order_id': '17'}, None)
    >>> parse_arguments('')
    ({}, None)
    >>> parse_arguments('[1]')
    (None, 'arguments are a JSON list, not an object')
    """
    text = raw.strip()
    if text in ("", "null"):
        return {}, None
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        return None, f"invalid JSON: {error}"
    except UnicodeEncodeError:
        return None, "invalid JSON: half of a surrogate pair"
    except RecursionError:
        return None, "invalid JSON: nested too deeply"
    if not isinstance(value, dict):
        return None, f"arguments are a JSON {type(value).__name__}, not an object"
    return value, None


def tool_call(name: str, arguments: str | dict[str, Any], *, id: str | None = None) -> ToolCall:
    """Build a `ToolCall` from a raw string or an object, keeping both forms."""
    if isinstance(arguments, str):
        parsed, problem = parse_arguments(arguments)
        return ToolCall(name=name, arguments_raw=arguments, arguments=parsed, id=id, parse_error=problem)
    raw = msgspec.json.encode(arguments).decode()
    return ToolCall(name=name, arguments_raw=raw, arguments=arguments, id=id)


def text_message(role: Role, text: str | None, *, kind: ProducerKind = "unknown", name: str | None = None) -> Message:
    """Build a message that has text only (None: no content)."""
    content: list[ContentPart] | None = None if text is None else [TextPart(text)]
    return Message(role=role, content=content, producer=Producer(kind, name))
