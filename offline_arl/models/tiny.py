"""A tiny policy that everything can run on: a Llama or Qwen3 of about 1 M parameters with its own tokenizer.

It is a real Hugging Face causal language model with a chat template that knows tools, so whatever works with it
works with any other chat model. The tokenizer is a byte-level BPE trained on the user's own logs; it cuts
identifiers into a letter and pairs of digits, which a small model soon learns to copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from offline_arl.errors import DataError
from offline_arl.trajectories.schema import Trajectory

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3ForCausalLM

TinyArchitecture: TypeAlias = Literal["llama", "qwen3"]

ROLE_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
END_TOKEN = "<|end|>"
PAD_TOKEN = "<|pad|>"
CALL_TOKENS = ("<tool_call>", "</tool_call>")
MAX_TOKENS = 8192

# JSON joints come first so that a call costs few tokens; a run of letters and spaces may merge into one token.
_PIECES = (
    r'\{"name": "|", "arguments": \{"|": "|": |", "|, "'
    r'|"\}\}|"\}|\{"|\}\}'
    r"|[A-Z](?=[0-9])|[0-9]{1,2}|(?:(?![A-Z][0-9])[A-Za-z_' ])+"
    r"""|[^A-Za-z0-9_' \{\}",:]+|."""
)

CHAT_TEMPLATE = """\
{%- if messages[0].role in ('system', 'developer') -%}
  {%- set system = messages[0].content -%}{%- set rest = messages[1:] -%}
{%- else -%}
  {%- set system = '' -%}{%- set rest = messages -%}
{%- endif -%}
{%- if system or tools -%}
{{- '<|system|>' + (system or '') -}}
{%- for tool in tools or [] -%}
  {%- set function = tool.function if tool.function is defined else tool -%}
  {{- '\\n' + function.name + '(' -}}
  {%- for parameter in (function.parameters or {}).properties or {} -%}
    {{- parameter + (', ' if not loop.last else '') -}}
  {%- endfor -%}
  {{- ')' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endif -%}
{%- for message in rest -%}
  {%- if message.role == 'assistant' -%}
    {{- '<|assistant|>' -}}
    {%- generation -%}
      {{- message.content or '' -}}
      {%- for call in message.tool_calls or [] -%}
        {%- set function = call.function if call.function is defined else call -%}
        {{- '<tool_call>{"name": "' + function.name + '", "arguments": ' -}}
        {{- function.arguments if function.arguments is string else function.arguments | tojson -}}
        {{- '}</tool_call>' -}}
      {%- endfor -%}
      {{- '<|end|>' -}}
    {%- endgeneration -%}
  {%- else -%}
    {%- set system_role = message.role in ('system', 'developer') -%}
    {{- '<|tool|>' if message.role == 'tool' else '<|system|>' if system_role else '<|user|>' -}}
    {{- (message.content or '') + '<|end|>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


def train_tiny_tokenizer(texts: Iterable[str], *, vocabulary_size: int = 1024) -> PreTrainedTokenizerFast:
    """Train the byte-level BPE of the tiny policy.

    Args:
        texts: Text of the logs: message contents and serialized calls.
        vocabulary_size: Upper bound on the number of tokens, the 263 base tokens included.

    Raises:
        DataError: `texts` is empty.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [PAD_TOKEN, END_TOKEN, *ROLE_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(CALL_TOKENS),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=3,
    )
    counted = _Counted(texts)
    tokenizer.train_from_iterator(counted, trainer)
    if counted.count == 0:
        raise DataError("no text to train the tiny tokenizer on: the store holds no messages")
    # Call markers are ordinary added tokens: a decoder that skips special tokens must still show them.
    tokenizer.add_tokens(list(CALL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=END_TOKEN,
        additional_special_tokens=list(ROLE_TOKENS),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_TOKENS,
    )


def tokenizer_texts(trajectory: Trajectory) -> Iterator[str]:
    """What the tiny policy's template writes of a trajectory, piece by piece: the text its tokenizer learns from."""
    for message in trajectory.messages:
        for text in (message.reasoning, message.text):
            if text:
                yield text
        for call in message.tool_calls:
            yield f'{{"name": "{call.name}", "arguments": {call.arguments_raw}}}'
    for context in trajectory.contexts:
        for tool in [] if context.tools is None else msgspec.json.decode(context.tools):
            function = tool.get("function", tool)
            properties = (function.get("parameters") or {}).get("properties") or {}
            yield f"\n{function.get('name')}({', '.join(properties)})"


class _Counted:
    """Counts what passes through an iterator, to tell an empty input from a small one."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = iter(texts)
        self.count = 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> str:
        text = next(self._texts)
        self.count += 1
        return text


def build_tiny_policy(
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    hidden_size: int = 128,
    layers: int = 2,
    heads: int = 4,
    intermediate_size: int = 768,
    tie_embeddings: bool = True,
    architecture: TinyArchitecture = "llama",
) -> LlamaForCausalLM | Qwen3ForCausalLM:
    """A randomly initialized policy for `tokenizer`, about 1 M parameters at the defaults, float32.

    `hidden_size / heads` must be at least 32: vLLM's CPU attention has no kernel for smaller heads. `architecture`:
    "qwen3" differs from "llama" in its queries and keys, which are normalized (Henry et al. 2020, arXiv:2010.04245);
    with them a policy of this size learns to copy in fewer updates.
    The weights depend on `seed` alone; the caller's random state is left as it was.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": hidden_size // heads,
        "max_position_embeddings": MAX_TOKENS,
        "tie_word_embeddings": tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.05,
    }
    model: LlamaForCausalLM | Qwen3ForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if architecture == "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**settings))
        else:
            model = LlamaForCausalLM(LlamaConfig(**settings))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model
