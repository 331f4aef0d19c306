"""What a model is worth: perplexity of any text, the paper's zero-shot sets, needles in haystacks."""

from .harness import harness
from .likelihood import Likelihood, Request, encode_pairs, likelihoods
from .modes import Sliding, Streaming
from .needle import Cell, NeedleResult, Outcome, needle
from .needles import NEEDLE_TASKS, Haystack, Needle, haystack_of, labelled, make_needle, training_needles
from .perplexity import Bucket, Loss, Perplexity, perplexity
from .tasks import TASKS
from .text import Document, Text, documents_of, text_of
from .zero_shot import Answer, Metric, TaskResult, ZeroShot, zero_shot

__all__ = [
    "NEEDLE_TASKS",
    "TASKS",
    "Answer",
    "Bucket",
    "Cell",
    "Document",
    "Haystack",
    "Likelihood",
    "Loss",
    "Metric",
    "Needle",
    "NeedleResult",
    "Outcome",
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
    "haystack_of",
    "labelled",
    "likelihoods",
    "make_needle",
    "needle",
    "perplexity",
    "text_of",
    "training_needles",
    "zero_shot",
]
