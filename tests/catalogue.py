"""Every part the rooms hold, in its variants: a new part joins one list here and inherits the tests of its room.

Its closed forms against autograd (``test_contract.py``), its step against its penalty (``retention/test_minimiser.py``),
combinations (``forms/test_recurrent.py``), and both forms against each other (``forms/test_chunk.py``).
"""

import itertools

from miras import Spec, algorithm, bias, memory, retention
from miras.spec import refusals

MEMORIES = [memory.Vector(), memory.Matrix(), *(memory.MLP(depth=depth, expansion=2) for depth in (1, 2, 3, 4))]

BIASES = [
    bias.DotProduct(),
    bias.L2(),
    bias.Lp(p=3),
    bias.Lp(p=1.5),
    bias.Lp(p=3, smooth=False),
    bias.L1(),
    bias.Huber(form="coordinate"),
    bias.Huber(form="coordinate", smooth=True),
    bias.Huber(form="norm"),
    bias.Huber(form="mixture", smooth=True),
    bias.Huber(delta=0.3),
    bias.ValueShift(),
    bias.ValueShift(delta=0.2),
]

RETENTIONS = [
    retention.Keep(),
    retention.L2(at="decayed"),
    retention.L2(at="previous"),
    retention.L2(at="decayed", anchor=True),
    retention.L2(at="previous", anchor=True),
    retention.L2(side="key"),
    retention.L2(at="previous", side="outer"),
    retention.L2(side="key", tied=True),
    retention.L2(schedule="retnet"),
    retention.L2Ball(radius=2.0),
    retention.ElasticNet(a=20.0),
    retention.ElasticNet(a=20.0, smooth=True),
    retention.ElasticNetFTRL(a=20.0),
    retention.ElasticNetFTRL(a=20.0, smooth=True),
    retention.Lq(q=4, link="paper"),
    retention.Lq(q=4, link="paper", anchor=True),
    retention.Lq(q=3, link="exact"),
    retention.Lq(q=1.5, link="exact", anchor=True),
    retention.KL(slice="column"),
    retention.KL(slice="row", c=2.0, chunk="dual"),
    retention.KL(slice="matrix", anchor=True),
    *(retention.FDivergence(g=g) for g in ("kl", "reverse_kl", "chi2", "hellinger")),
    retention.FDivergence(g="hellinger", slice="matrix", c=3.0),
    *(retention.Bregman(link=link) for link in ("identity", "sigmoid", "exp", "tanh")),
]

ALGORITHMS = [
    algorithm.GradientDescent(),
    algorithm.GradientDescent(eta=0.05),
    algorithm.GradientDescent(decoupled=True),
    algorithm.Momentum(),
    algorithm.ImplicitGD(),
    algorithm.MultiStep(n=2),
    algorithm.Newton(),
    algorithm.NonParametric(),
]


def smooth(part):
    """Whether a smooth form stands for the part's own gradient or step, which then is not that of its loss or penalty."""
    return getattr(part, "smooth", False)


def one_of_each(parts):
    """The first instance of every class."""
    return list({type(part): part for part in reversed(parts)}.values())[::-1]


def combinations(memories=MEMORIES, biases=BIASES, retentions=RETENTIONS, algorithms=ALGORITHMS):
    """(parts, refusals) of every combination."""
    for parts in itertools.product(memories, biases, retentions, algorithms):
        yield parts, list(refusals(*parts))


def meaningful(*lists):
    """The specs of every combination that is not refused."""
    for parts, reasons in combinations(*lists):
        if not reasons:
            yield Spec(memory=parts[0], bias=parts[1], retention=parts[2], algorithm=parts[3])
