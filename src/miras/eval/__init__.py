"""What a model is worth: perplexity of any text, the paper's zero-shot sets, needles in haystacks."""

from .harness import harness
from .likelihood import Likelihood, Request, encode_pairs, likelihoods
from .modes import Sliding, Streaming
from .perplexity import Bucket, Loss, Perplexity, perplexity
from .tasks import TASKS
from .text import Document, Text, documents_of, text_of
from .zero_shot import Answer, Metric, TaskResult, ZeroShot, zero_shot

__all__ = [
    "TASKS",
    "Answer",
    "Bucket",
    "Document",
    "Likelihood",
    "Loss",
    "Metric",
    "Perplexity",
    "Request",
    "Sliding",
    "Streaming",
    "TaskResult",
    "Text",
    "ZeroShot",
    "documents_of",
    "encode_pairs",
    "harness",
    "likelihoods",
    "perplexity",
    "text_of",
    "zero_shot",
]
