"""The language model in Hugging Face's house: importing this registers it with AutoConfig, AutoModel, AutoModelForCausalLM."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from .cache import MirasCache
from .configuration import SIZES, MirasConfig
from .modeling import MirasForCausalLM, MirasModel, MirasPreTrainedModel
from .tokenizer import byte_tokenizer

AutoConfig.register("miras", MirasConfig, exist_ok=True)
AutoModel.register(MirasConfig, MirasModel, exist_ok=True)
AutoModelForCausalLM.register(MirasConfig, MirasForCausalLM, exist_ok=True)

__all__ = [
    "SIZES",
    "MirasCache",
    "MirasConfig",
    "MirasForCausalLM",
    "MirasModel",
    "MirasPreTrainedModel",
    "byte_tokenizer",
]
