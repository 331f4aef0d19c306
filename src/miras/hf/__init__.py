"""The language model in Hugging Face's house: importing this registers it with AutoConfig, AutoModel, AutoModelForCausalLM."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

from .cache import MirasCache
from .configuration import SIZES, MirasConfig
from .fla_checkpoint import from_fla
from .kept import KeptMemory
from .modeling import MirasForCausalLM, MirasModel, MirasPreTrainedModel
from .tokenizer import byte_tokenizer

AutoConfig.register("miras", MirasConfig, exist_ok=True)
AutoModel.register(MirasConfig, MirasModel, exist_ok=True)
AutoModelForCausalLM.register(MirasConfig, MirasForCausalLM, exist_ok=True)
# Trainer and pipelines look up by a class's name what kind of model it is
MODEL_MAPPING_NAMES["miras"] = MirasModel.__name__
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["miras"] = MirasForCausalLM.__name__

__all__ = [
    "SIZES",
    "KeptMemory",
    "MirasCache",
    "MirasConfig",
    "MirasForCausalLM",
    "MirasModel",
    "MirasPreTrainedModel",
    "byte_tokenizer",
    "from_fla",
]
