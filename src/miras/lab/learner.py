"""A model that answers the questions of a task: tokens through a language model, real vectors through maps of its own.

B rows, T time, Q questions a row, C channels, D channels of an input vector, V channels of an answer
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..hf import MirasForCausalLM, MirasModel
from .contestant import Contestant
from .tasks import Batch, Questions, Task, TokenTask, Vectors, VectorTask


class Learner(nn.Module, ABC):
    """A model with the loss and the score of its kind of task."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """What is minimised."""

    @abstractmethod
    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What is gained and what there is to gain: their sums over batches divide to the score."""

    @abstractmethod
    def edges(self) -> list[Tensor]:
        """The parameters that depend on the task: embeddings, or the maps in and out."""

    def body(self) -> int:
        """The number of all other parameters."""
        edges = {id(parameter) for parameter in self.edges()}
        return sum(parameter.numel() for parameter in self.parameters() if id(parameter) not in edges)


def at(x: Tensor, where: Tensor) -> Tensor:
    """x ``[B,T,C]`` at the places ``[B,Q]``: ``[B,Q,C]``."""
    return x.gather(1, where[:, :, None].expand(-1, -1, x.shape[2]))


class TokenLearner(Learner):
    """A language model that is asked for logits only where there is a question."""

    def __init__(self, contestant: Contestant, task: TokenTask) -> None:
        super().__init__()
        self.model = MirasForCausalLM(contestant.config(task.vocab))

    def forward(self, batch: Questions) -> Tensor:
        """Logits ``[B,Q,vocab]``."""
        hidden = self.model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        logits: Tensor = self.model.lm_head(at(hidden, batch.where))
        return logits.float()

    def loss(self, batch: Batch) -> Tensor:
        assert isinstance(batch, Questions)
        return F.cross_entropy(self(batch).flatten(0, 1), batch.answers.flatten())

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        assert isinstance(batch, Questions)
        right = self(batch).argmax(-1) == batch.answers
        return right.sum().double(), torch.tensor(float(right.numel()), dtype=torch.float64, device=right.device)

    def edges(self) -> list[Tensor]:
        return [self.model.model.embed_tokens.weight]


class VectorLearner(Learner):
    """A stack between a linear map of the input vectors and one to the answers."""

    def __init__(self, contestant: Contestant, task: VectorTask) -> None:
        super().__init__()
        inputs, answers = task.widths
        self.model = MirasModel(contestant.config(1))
        self.enter = nn.Linear(inputs, contestant.width)
        self.leave = nn.Linear(contestant.width, answers)

    def forward(self, batch: Vectors) -> Tensor:
        """Answers ``[B,Q,V]``."""
        hidden = self.model(inputs_embeds=self.enter(batch.inputs), use_cache=False).last_hidden_state
        answers: Tensor = self.leave(at(hidden, batch.where))
        return answers.float()

    def loss(self, batch: Batch) -> Tensor:
        assert isinstance(batch, Vectors)
        return F.mse_loss(self(batch), batch.answers)

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        assert isinstance(batch, Vectors)
        missed, there = (self(batch) - batch.answers).square().sum().double(), batch.answers.square().sum().double()
        return there - missed, there

    def edges(self) -> list[Tensor]:
        # the table of a language model is there, but nothing is looked up in it
        return [self.model.embed_tokens.weight, *self.enter.parameters(), *self.leave.parameters()]


def learner_of(contestant: Contestant, task: Task) -> Learner:
    """The learner for a task."""
    if isinstance(task, TokenTask):
        return TokenLearner(contestant, task)
    assert isinstance(task, VectorTask)
    return VectorLearner(contestant, task)
