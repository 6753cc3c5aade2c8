"""The built-in log adapters, in the order in which detection asks them.

Order matters: the first adapter that recognizes a record takes the file, so formats with a shape of their own
come before general ones, and OpenAI chat, the most general, is last.
"""

from __future__ import annotations

from offline_arl.logs.adapter import LogAdapter


def built_in_adapters() -> list[LogAdapter]:
    """New instances of all built-in adapters."""
    return [
        *_harness_sessions(),
        *_benchmarks(),
        *_rollout_stores(),
        *_telemetry(),
        *_observability(),
        *_provider_calls(),
        *_training_sets(),
    ]


def _harness_sessions() -> list[LogAdapter]:
    """Session logs of agents: Claude Code, Codex, Gemini CLI, OpenHands, SWE-agent, ATIF, managed agents."""
    from offline_arl.logs.agents.atif import AtifAdapter
    from offline_arl.logs.agents.claude_code import ClaudeCodeAdapter
    from offline_arl.logs.agents.claude_stream import ClaudeStreamAdapter
    from offline_arl.logs.agents.codex_exec import CodexExecAdapter
    from offline_arl.logs.agents.codex_rollout import CodexRolloutAdapter
    from offline_arl.logs.agents.gemini_sessions import GeminiSessionsAdapter
    from offline_arl.logs.agents.hub_traces import HubTracesAdapter
    from offline_arl.logs.agents.managed_agents import ManagedAgentsAdapter
    from offline_arl.logs.agents.mini_swe_agent import MiniSweAgentAdapter
    from offline_arl.logs.agents.openhands_v0 import OpenHandsRowsAdapter, OpenHandsV0Adapter
    from offline_arl.logs.agents.openhands_v1 import OpenHandsV1Adapter
    from offline_arl.logs.agents.pi_sessions import PiSessionsAdapter
    from offline_arl.logs.agents.swe_agent import SweAgentAdapter

    return [
        ClaudeCodeAdapter(),
        ClaudeStreamAdapter(),
        CodexRolloutAdapter(),
        CodexExecAdapter(),
        GeminiSessionsAdapter(),
        ManagedAgentsAdapter(),
        PiSessionsAdapter(),
        HubTracesAdapter(),
        OpenHandsV0Adapter(),
        OpenHandsRowsAdapter(),
        OpenHandsV1Adapter(),
        SweAgentAdapter(),
        MiniSweAgentAdapter(),
        AtifAdapter(),
    ]


def _benchmarks() -> list[LogAdapter]:
    """Inspect, tau-bench, tau2-bench."""
    from offline_arl.logs.benchmarks.inspect_ai import InspectAdapter
    from offline_arl.logs.benchmarks.tau2_bench import Tau2BenchAdapter
    from offline_arl.logs.benchmarks.tau_bench import TauBenchAdapter
    from offline_arl.logs.benchmarks.tau_transcripts import TauTranscriptsAdapter

    return [InspectAdapter(), Tau2BenchAdapter(), TauBenchAdapter(), TauTranscriptsAdapter()]


def _rollout_stores() -> list[LogAdapter]:
    """Rollouts of RL libraries: NeMo Gym, verifiers, agent-lightning, ART, Minari."""
    from offline_arl.logs.rollout_stores.agent_lightning import AgentLightningAdapter
    from offline_arl.logs.rollout_stores.art import ARTAdapter
    from offline_arl.logs.rollout_stores.minari import MinariAdapter
    from offline_arl.logs.rollout_stores.nemo_gym import NeMoGymAdapter
    from offline_arl.logs.rollout_stores.verifiers_rollouts import VerifiersRolloutAdapter
    from offline_arl.logs.rollout_stores.verifiers_traces import VerifiersTraceAdapter

    return [
        NeMoGymAdapter(),
        VerifiersTraceAdapter(),
        VerifiersRolloutAdapter(),
        AgentLightningAdapter(),
        ARTAdapter(),
        MinariAdapter(),
    ]


def _telemetry() -> list[LogAdapter]:
    """Spans: OTLP JSON with its conventions, Phoenix, MLflow."""
    from offline_arl.logs.telemetry.mlflow_traces import MLflowAdapter
    from offline_arl.logs.telemetry.phoenix import PhoenixAnnotationsAdapter
    from offline_arl.logs.telemetry.spans_adapter import FlatSpansAdapter, OTLPAdapter

    return [OTLPAdapter(), MLflowAdapter(), PhoenixAnnotationsAdapter(), FlatSpansAdapter()]


def _observability() -> list[LogAdapter]:
    """Exports of Langfuse, LangSmith, Weave and Braintrust."""
    from offline_arl.logs.platforms.braintrust import BraintrustAdapter
    from offline_arl.logs.platforms.langfuse import LangfuseAdapter
    from offline_arl.logs.platforms.langsmith import LangSmithAdapter
    from offline_arl.logs.platforms.weave import WeaveAdapter

    return [LangfuseAdapter(), LangSmithAdapter(), WeaveAdapter(), BraintrustAdapter()]


def _provider_calls() -> list[LogAdapter]:
    """Requests and responses: OpenAI, Anthropic, Gemini, LiteLLM, Helicone, recorded HTTP cassettes."""
    from offline_arl.logs.providers.anthropic_chat import AnthropicChatAdapter
    from offline_arl.logs.providers.cassettes import CassetteAdapter
    from offline_arl.logs.providers.gemini_calls import (
        GeminiCallsAdapter,
        GeminiContentsAdapter,
        GeminiResponsesAdapter,
    )
    from offline_arl.logs.providers.helicone import HeliconeAdapter
    from offline_arl.logs.providers.litellm import LiteLLMAdapter
    from offline_arl.logs.providers.request_pairs import RequestPairsAdapter

    return [
        CassetteAdapter(),
        LiteLLMAdapter(),
        HeliconeAdapter(),
        RequestPairsAdapter(),
        GeminiResponsesAdapter(),
        GeminiCallsAdapter(),
        GeminiContentsAdapter(),
        AnthropicChatAdapter(),
    ]


def _training_sets() -> list[LogAdapter]:
    """Preference, unpaired and supervised training files, ShareGPT and its relatives, OpenAI chat."""
    from offline_arl.logs.providers.openai_chat import OpenAIChatAdapter
    from offline_arl.logs.training_sets.agent_tuning import AgentTuningAdapter
    from offline_arl.logs.training_sets.alpaca import AlpacaAdapter
    from offline_arl.logs.training_sets.function_calling_sets import ToucanAdapter, XLAMAdapter
    from offline_arl.logs.training_sets.llama_factory import LlamaFactoryAdapter
    from offline_arl.logs.training_sets.open_instruct import OpenInstructAdapter
    from offline_arl.logs.training_sets.openai_preferences import OpenAIPreferenceAdapter
    from offline_arl.logs.training_sets.sharegpt import ShareGPTAdapter
    from offline_arl.logs.training_sets.trl_datasets import TRLAdapter
    from offline_arl.logs.training_sets.verl_prompts import VerlPromptsAdapter

    return [
        OpenAIPreferenceAdapter(),
        LlamaFactoryAdapter(),
        ToucanAdapter(),
        AgentTuningAdapter(),
        ShareGPTAdapter(),
        XLAMAdapter(),
        AlpacaAdapter(),
        OpenInstructAdapter(),
        VerlPromptsAdapter(),
        TRLAdapter(),
        OpenAIChatAdapter(),
    ]
