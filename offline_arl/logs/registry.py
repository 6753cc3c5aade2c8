"""The built-in log adapters, in the order in which detection asks them.

Order matters: the first adapter that recognizes a record takes the file, so formats with a shape of their own
come before general ones, and OpenAI chat, the most general, is last.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from offline_arl.logs.adapter import LogAdapter

# Names of formats to `module:class` within `offline_arl.logs`, so that one can be had without the others.
BUILT_IN = {
    # Session logs of agents: Claude Code, Codex, Gemini CLI, OpenHands, SWE-agent, ATIF, managed agents.
    "claude_code": "agents.claude_code:ClaudeCodeAdapter",
    "claude_stream": "agents.claude_stream:ClaudeStreamAdapter",
    "codex_rollout": "agents.codex_rollout:CodexRolloutAdapter",
    "codex_exec": "agents.codex_exec:CodexExecAdapter",
    "gemini_cli": "agents.gemini_sessions:GeminiSessionsAdapter",
    "anthropic_managed_agents": "agents.managed_agents:ManagedAgentsAdapter",
    "pi_sessions": "agents.pi_sessions:PiSessionsAdapter",
    "hub_agent_traces": "agents.hub_traces:HubTracesAdapter",
    "openhands_v0": "agents.openhands_v0:OpenHandsV0Adapter",
    "openhands_rows": "agents.openhands_v0:OpenHandsRowsAdapter",
    "openhands_v1": "agents.openhands_v1:OpenHandsV1Adapter",
    "swe_agent": "agents.swe_agent:SweAgentAdapter",
    "mini_swe_agent": "agents.mini_swe_agent:MiniSweAgentAdapter",
    "atif": "agents.atif:AtifAdapter",
    # Inspect, tau-bench, tau2-bench.
    "inspect_ai": "benchmarks.inspect_ai:InspectAdapter",
    "tau2_bench": "benchmarks.tau2_bench:Tau2BenchAdapter",
    "tau_bench": "benchmarks.tau_bench:TauBenchAdapter",
    "tau_transcripts": "benchmarks.tau_transcripts:TauTranscriptsAdapter",
    # Rollouts of RL libraries: NeMo Gym, verifiers, agent-lightning, ART, Minari.
    "nemo_gym": "rollout_stores.nemo_gym:NeMoGymAdapter",
    "verifiers_trace": "rollout_stores.verifiers_traces:VerifiersTraceAdapter",
    "verifiers": "rollout_stores.verifiers_rollouts:VerifiersRolloutAdapter",
    "agent_lightning": "rollout_stores.agent_lightning:AgentLightningAdapter",
    "art": "rollout_stores.art:ARTAdapter",
    "minari": "rollout_stores.minari:MinariAdapter",
    # Spans: OTLP JSON with its conventions, Phoenix, MLflow.
    "otlp": "telemetry.spans_adapter:OTLPAdapter",
    "mlflow": "telemetry.mlflow_traces:MLflowAdapter",
    "phoenix_annotations": "telemetry.phoenix:PhoenixAnnotationsAdapter",
    "otel_spans": "telemetry.spans_adapter:FlatSpansAdapter",
    # Exports of Langfuse, LangSmith, Weave and Braintrust.
    "langfuse": "platforms.langfuse:LangfuseAdapter",
    "langsmith": "platforms.langsmith:LangSmithAdapter",
    "weave": "platforms.weave:WeaveAdapter",
    "braintrust": "platforms.braintrust:BraintrustAdapter",
    # Requests and responses: OpenAI, Anthropic, Gemini, LiteLLM, Helicone, recorded HTTP cassettes.
    "vcr": "providers.cassettes:CassetteAdapter",
    "litellm": "providers.litellm:LiteLLMAdapter",
    "helicone": "providers.helicone:HeliconeAdapter",
    "request_response": "providers.request_pairs:RequestPairsAdapter",
    "gemini_cli_responses": "providers.gemini_calls:GeminiResponsesAdapter",
    "gemini_calls": "providers.gemini_calls:GeminiCallsAdapter",
    "gemini_contents": "providers.gemini_calls:GeminiContentsAdapter",
    "anthropic_chat": "providers.anthropic_chat:AnthropicChatAdapter",
    # Preference, unpaired and supervised training files, ShareGPT and its relatives, OpenAI chat.
    "openai_preferences": "training_sets.openai_preferences:OpenAIPreferenceAdapter",
    "llama_factory": "training_sets.llama_factory:LlamaFactoryAdapter",
    "toucan": "training_sets.function_calling_sets:ToucanAdapter",
    "agent_tuning": "training_sets.agent_tuning:AgentTuningAdapter",
    "sharegpt": "training_sets.sharegpt:ShareGPTAdapter",
    "xlam": "training_sets.function_calling_sets:XLAMAdapter",
    "alpaca": "training_sets.alpaca:AlpacaAdapter",
    "open_instruct": "training_sets.open_instruct:OpenInstructAdapter",
    "verl": "training_sets.verl_prompts:VerlPromptsAdapter",
    "trl": "training_sets.trl_datasets:TRLAdapter",
    "openai_chat": "providers.openai_chat:OpenAIChatAdapter",
}


@cache
def built_in_adapter(name: str) -> LogAdapter:
    """The adapter of a format of `BUILT_IN`, always the same instance."""
    module, _, kind = BUILT_IN[name].partition(":")
    return cast(LogAdapter, getattr(import_module(f"offline_arl.logs.{module}"), kind)())


def built_in_adapters() -> list[LogAdapter]:
    """All built-in adapters."""
    return [built_in_adapter(name) for name in BUILT_IN]
