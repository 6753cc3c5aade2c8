"""Value-guided decoding inside vLLM: for each architecture a subclass whose logits carry the value terms.

`LlamaForCausalLM` of vLLM becomes `ValueGuidedLlamaForCausalLM`, the architecture that the config.json of a
value-guided policy names. All else (weights, kernels, caching, quantization, LoRA, tensor parallelism) is the
original's. `register`, an entry point of the group `vllm.general_plugins`, makes them known to every engine and server
that runs where offline_arl is installed: `vllm serve POLICY` serves a value-guided policy like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from offline_arl.errors import UsageError
from offline_arl.models.guided_policy import ARCHITECTURE_PREFIX, load_value_guidance

if TYPE_CHECKING:
    from torch import Tensor, nn

_DECODERS = ("ForCausalLM", "LMHeadModel")  # how the names of architectures end that only continue text


def register() -> None:
    """Tell vLLM of a value-guided variant of each of its decoders; classes are made when they are asked for."""
    from vllm import ModelRegistry

    for architecture in list(ModelRegistry.get_supported_archs()):
        if architecture.endswith(_DECODERS) and not architecture.startswith(ARCHITECTURE_PREFIX):
            name = f"{ARCHITECTURE_PREFIX}{architecture}"
            ModelRegistry.register_model(name, f"{__name__}:{name}")
            _inherit_settings(name)


def register_architecture(name: str) -> None:
    """Tell vLLM in this process of one value-guided architecture, with its class.

    vLLM looks at classes that it is given by name in another process, which takes seconds.

    Raises:
        UsageError: vLLM has no such architecture to guide.
    """
    from vllm import ModelRegistry

    ModelRegistry.register_model(name, guided_class(name))
    _inherit_settings(name)


@cache
def guided_class(name: str) -> type[nn.Module]:
    """The class of a value-guided architecture.

    Raises:
        UsageError: The name is not that of a value-guided architecture, or vLLM has no such architecture to guide.
    """
    from vllm import ModelRegistry

    original = name.removeprefix(ARCHITECTURE_PREFIX)
    if original == name or original not in ModelRegistry.models:
        raise UsageError(
            f"this vLLM has no model class {original!r} that values could guide; use the transformers backend"
        )
    base = ModelRegistry.models[original].load_model_cls()
    made: type[nn.Module] = type(base)(
        name, (_ValueGuided, base), {"__module__": __name__, "__doc__": _ValueGuided.__doc__}
    )
    return made


def __getattr__(name: str) -> type[nn.Module]:
    """Give vLLM the classes that `register` names."""
    if name.startswith(ARCHITECTURE_PREFIX):
        return guided_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _inherit_settings(name: str) -> None:
    """What vLLM configures for an architecture by name holds for its guided variant too."""
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    settings = MODELS_CONFIG_MAP.get(name.removeprefix(ARCHITECTURE_PREFIX))
    if settings is not None:
        MODELS_CONFIG_MAP[name] = settings


class _ValueGuided:
    """Adds value terms and the support mask to the logits of the class that follows it in the bases."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        parameters: Any = self.parameters()  # type: ignore[attr-defined]
        # No torch module, so no layer of this one: a reload that brings no heads must leave them as they are.
        self.value_guidance = load_value_guidance(vllm_config.model_config.model).to(next(parameters).device)

    def compute_logits(self, hidden_states: Tensor, *arguments: Any, **keywords: Any) -> Tensor | None:
        """The guided logits; None on a rank that vLLM gathers no logits on."""
        logits: Tensor | None = super().compute_logits(hidden_states, *arguments, **keywords)  # type: ignore[misc]
        return None if logits is None else self.value_guidance(logits, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> Any:
        """Load the policy's weights; those of heads among them replace the heads and the settings."""
        return super().load_weights(self.value_guidance.take_weights(weights))  # type: ignore[misc]

    # vLLM may compute logits on each rank for its share of the vocabulary, or the best token without logits; both
    # would pass the values by. It looks for these methods and does without them where they are missing.

    @property
    def compute_logits_local(self) -> NoReturn:
        raise AttributeError("a value-guided policy has no logits of a part of the vocabulary")

    @property
    def get_top_tokens(self) -> NoReturn:
        raise AttributeError("a value-guided policy has no best token without its logits")
