"""Judge the paper's claims, and ours, by the results that are kept: ``docs/results/README.md``.

    python experiments/conclusions.py

Every claim names what it compares; verdicts and numbers come from the files of results.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from miras.lab.conclusions import (
    BITS,
    PERCENT,
    PERPLEXITY,
    RATIO,
    Claim,
    Evidence,
    Finding,
    Judge,
    Measure,
    against,
    favourite,
    found_needles,
    page,
    pairwise,
)
from miras.lab.evidence import valid
from miras.lab.tables import Table, markdown
from miras.train.metrics import Line

HERE = Path(__file__).resolve().parent
OURS = ("moneta", "yaad", "memora")
BASELINES = ("transformer", "gla", "deltanet", "gated_deltanet", "ttt_linear")
DEEP = ("yaad", "titans_lmm", "moneta", "memora")
COMBINATIONS = (
    *("elastic-net", "elastic-net-huber", "bregman-sigmoid", "bregman-tanh", "f-chi2", "f-hellinger", "value-shift-anchored"),
    *("huber-momentum-anchored", "huber-kl-anchored", "lp-l2-anchored", "lp-momentum-anchored", "l2-anchored"),
    *("ttt_linear-anchored", "ttt_linear-anchored-huber", "ttt_linear-anchored-momentum", "ttt_mlp-anchored"),
)
# Moneta with another p; with another q, by the printed link, and by the exact one
EXPONENTS = [f"moneta-p{p}" for p in ("1", "1.5", "2", "2.8", "3.2", "4")]
RETENTIONS = [f"moneta-q{q}" for q in "235"] + [f"moneta-exact-q{q}" for q in "2345"]
TEST, FAR = "test/sliding/1x", "test/long/16x"


def over(places: Iterable[str], ask: Callable[[str], dict[str, list[float]]]) -> dict[str, list[float]]:
    """The figures of several stages together."""
    return {model: own for place in places for model, own in ask(place).items()}


def best_of_all(evidence: Evidence, place: str, read: str, measure: Measure) -> Finding:
    """Each of the paper's three against the best of the others."""
    others = (*BASELINES, "titans_lmm")
    return against(evidence.read(place, read, OURS), evidence.read(place, read, others), OURS, others, measure)


def better_than_all(place: str, read: str, unit: str, small: str, small_read: str = TEST) -> Claim:
    """The paper's main claim, on one text."""
    judge = partial(best_of_all, place=place, read=read, measure=BITS if unit == "bits" else PERPLEXITY)
    text, _, _ = read.rpartition("/sliding")
    where = {"enwik8/main": "Wikipedia", "books/main": "prose of unseen authors"}[place]
    where = "WikiText-2 (after books, another domain)" if text.startswith("wikitext2") else where
    said = f"With shared steps, which are ours, Moneta, Yaad and Memora predict {where} better than every baseline"
    judged = partial(best_of_all, place=f"{small}/main", read=small_read, measure=BITS)
    return Claim(text=said, by="the paper, varied", page=place.partition("/")[0], judge=judge, small=judged, small_page=small)


def as_published(evidence: Evidence) -> Finding:
    """The main claim for memories in which each token keeps its own step."""
    ours = evidence.read("enwik8_steps/main", TEST, OURS)
    return against(ours, evidence.read("enwik8/main", TEST, BASELINES), OURS, BASELINES, BITS)


def mixed(evidence: Evidence, experiment: str, read: str, measure: Measure) -> Finding:
    """Every second layer attention over a window."""
    hybrid, plain = evidence.read(f"{experiment}/hybrids", read), evidence.read(f"{experiment}/main", read)
    return pairwise(hybrid, plain, {f"{name}-h": name for name in OURS}, measure)


def hybrids(experiment: str, read: str, unit: str, small: Judge | None = None) -> Claim:
    """What attention adds, on one text."""
    return Claim(
        text=f"Hybrids with attention predict better than memories alone ({experiment})",
        by="the paper",
        page=experiment,
        judge=partial(mixed, experiment=experiment, read=read, measure=BITS if unit == "bits" else PERPLEXITY),
        small=small,
    )


def context(evidence: Evidence, short: str, long: str, variant: str) -> Finding:
    """How many times less surprised, in the experiment's unit, models are after training on sequences eight times as long."""
    before, after = evidence.read(short, TEST), evidence.read(long, TEST)
    gained = {
        name: [statistics.fmean(before[name]) / number for number in after[f"{name}, {variant}"]]
        for name in before
        if f"{name}, {variant}" in after
    }
    others = ("transformer", "gated_deltanet")
    ours = {name: gained[name] for name in OURS if name in gained}
    return against(ours, {name: gained[name] for name in others if name in gained}, OURS, others, RATIO)


def needles(evidence: Evidence) -> Finding:
    """All needles, of all kinds and lengths."""
    found = evidence.figures("books/main", found_needles)
    others = (*BASELINES, "titans_lmm")
    split = [{name: found[name] for name in names if name in found} for names in (OURS, others)]
    return against(split[0], split[1], OURS, others, PERCENT)


def unmoved(evidence: Evidence, task: str, small: bool) -> Finding:
    """Wrong values among the right ones; each of the others counts as it did best, behind whichever output gate."""
    scores, others = evidence.task(task, "2 of 5 wrong", small=small), (*BASELINES, "titans_lmm", "memora")
    rivals = {}
    for name in others:
        own = {label: values for label, values in scores.items() if label == name or label.startswith(f"{name}, output_gate")}
        if own:
            rivals[name] = own[PERCENT.best(own)]
    ours = {name: scores[name] for name in ("moneta", "yaad") if name in scores}
    return against(ours, rivals, ("moneta", "yaad"), others, PERCENT)


def noise(task: str) -> Claim:
    """The claim behind Huber and l_p, on one task."""
    text = f"Moneta's l_p and Yaad's Huber keep recall where 2 of 5 values are wrong better than all others ({task})"
    large, small = (partial(unmoved, task=task, small=small) for small in (False, True))
    return Claim(text=text, by="the paper", page="recall", judge=large, small=small, small_page="recall_small")


def variants(evidence: Evidence, name: str, rivals: list[str], *places: str) -> Finding:
    """Whether a model is better than each that has one thing changed."""
    bits = over(places, lambda place: evidence.read(place, TEST, (name, *rivals)))
    return favourite(bits, name, rivals, BITS, evidence.beside(places[0].partition("/")[0], TEST))


def parts_of_yaad(evidence: Evidence, name: str, *places: str) -> Finding:
    """Yaad without one of its parts."""
    rivals = [f"yaad-{part}" for part in ("no-retention", "fixed-delta", "l2-only", "l1-only", "one-layer", "linear-memory")]
    return variants(evidence, name, rivals, *places)


def anchors_near(evidence: Evidence, plain: str, anchored: str) -> Finding:
    """Retention towards the initial weights, at the length of training."""
    held, free = evidence.read(anchored, TEST), evidence.read(plain, TEST)
    return pairwise(held, free, {f"{name}-anchored": name for name in DEEP}, BITS)


def anchors_far(evidence: Evidence, plain: str, anchored: str) -> Finding:
    """The same at 8 to 16 times that length."""
    held, free = evidence.far(anchored, FAR), evidence.far(plain, FAR)
    return pairwise(held, free, {f"{name}-anchored": name for name in DEEP}, BITS)


def equal_decays(evidence: Evidence, name: str, *places: str) -> Finding:
    """Yaad with an anchor and without, both with the decay that plain ones start with, and both with that of anchored ones."""
    pairs = {f"{name}-anchored-decay-1e-4": name, f"{name}-anchored": f"{name}-decay-1e-3"}
    bits = over(places, lambda place: evidence.read(place, TEST))
    return pairwise(bits, bits, pairs, BITS)


def anchors(text: str, judge: Callable[[Evidence, str, str], Finding]) -> Claim:
    """What an anchor does, for large models and for small ones."""
    large, small = ("ablations/anchor-plain", "ablations/anchor-anchored"), ("small/main", "small/anchored")
    return Claim(
        text=text,
        by="us",
        page="ablations",
        judge=lambda found: judge(found, *large),
        small=lambda found: judge(found, *small),
    )


# a run that ends this much worse than the best of its length was thrown off too
LOST = 1.2


def shared_steps(evidence: Evidence) -> Finding:
    """How many runs of 30M parameters were thrown off with own steps and with shared ones, at the same rate and length."""
    runs: dict[bool, dict[tuple[object, ...], Line]] = {False: {}, True: {}}
    best: dict[object, float] = {}
    for row in (row for name in ("enwik8", "enwik8_steps") for row in evidence.rows(name)):
        options, model = row["options"], row["model"].removesuffix("-shared")
        if row["status"] not in ("finished", "diverged") or model.split("-")[0] not in DEEP or "model.pace" in options:
            continue
        cell = (model, *(options.get(f"optim.{name}") for name in ("lr", "tokens", "warmup")))
        runs[options.get("model.step_sum") != 0.0][cell] = row
        if row["status"] == "finished":
            tokens, bits = options.get("optim.tokens"), row["valid"]["bits_per_byte"]
            best[tokens] = min(bits, best.get(tokens, bits))

    def thrown(row: Line) -> bool:
        if row["status"] == "diverged":
            return True
        return bool(row["valid"]["bits_per_byte"] > LOST * best[row["options"].get("optim.tokens")])

    own, shared = runs[False], runs[True]
    both = own.keys() & shared.keys()
    if not both:
        return Finding("open", "Not run yet.")
    with_own, with_shared = (sum(thrown(found[cell]) for cell in both) for found in (own, shared))
    alone = [cell for cell in shared if cell not in both]
    sums = sorted({row["options"].get("model.step_sum", "the recipe's sum") for row in shared.values()}, key=str)
    said = (
        f"Of {len(both)} pairs of runs of one model, rate and length, {with_own} were thrown off with each token's own step, "
        f"{with_shared} with shared ones (which added up to {' or '.join(map(str, sums))}); of {len(alone)} shared ones "
        f"without a counterpart {sum(thrown(shared[cell]) for cell in alone)}."
    )
    fewer = "holds here" if with_shared == 0 else "holds in part"
    return Finding(fewer if with_shared < with_own else "does not hold here", said)


def anchored_against_all(evidence: Evidence, experiment: str) -> Finding:
    """Anchored memories against every baseline."""
    ours, others = tuple(f"{name}-anchored" for name in OURS), (*BASELINES, "titans_lmm")
    held, free = evidence.read(f"{experiment}/anchored", TEST, ours), evidence.read(f"{experiment}/main", TEST, others)
    return against(held, free, ours, others, BITS)


def off_the_map(evidence: Evidence, *places: str) -> Finding:
    """What validation likes best of what the paper never ran, against Yaad, in its surroundings too, and every baseline."""
    rivals = ("yaad", "yaad-anchored", "yaad-anchored-as-ttt", "titans_lmm-anchored", *BASELINES)
    others = over(places, lambda place: evidence.read(place, TEST, rivals))
    chosen_by = over(places, lambda place: evidence.figures(place, valid, COMBINATIONS))
    if not chosen_by or "yaad" not in others:
        return Finding("open", "Not run yet.")
    best = BITS.best(chosen_by)
    return against(over(places, lambda place: evidence.read(place, TEST, [best])), others, [best], ["yaad"], BITS)


MARKS = "<!-- made by experiments/conclusions.py -->", "<!-- end -->"
# where the table of the README finds a model: large, and small
OVERVIEW = {
    "transformer": ("enwik8/main:transformer", "small/main:transformer"),
    "gla": ("enwik8/main:gla", "small/main:gla"),
    "deltanet": ("enwik8/main:deltanet", "small/main:deltanet"),
    "gated_deltanet": ("enwik8/main:gated_deltanet", "small/main:gated_deltanet"),
    "ttt_linear": ("enwik8/main:ttt_linear", "small/main:ttt_linear"),
    "moneta, as published": ("enwik8_steps/main:moneta", ""),
    "yaad, as published": ("enwik8_steps/main:yaad", ""),
    "memora, as published": ("enwik8_steps/main:memora", ""),
    "titans_lmm, as published": ("enwik8_steps/main:titans_lmm", ""),
    "titans_lmm": ("enwik8/main:titans_lmm", "small/main:titans_lmm"),
    "moneta": ("enwik8/main:moneta", "small/main:moneta"),
    "yaad, steps that add up to 2": ("enwik8_steps/shared:yaad-shared", ""),
    "yaad": ("enwik8/main:yaad", "small/main:yaad"),
    "memora": ("enwik8/main:memora", "small/main:memora"),
    "titans_lmm-anchored": ("enwik8/anchored:titans_lmm-anchored", "small/anchored:titans_lmm-anchored"),
    "moneta-anchored": ("enwik8/anchored:moneta-anchored", "small/anchored:moneta-anchored"),
    "yaad-anchored": ("enwik8/anchored:yaad-anchored", "small/anchored:yaad-anchored"),
    "memora-anchored": ("enwik8/anchored:memora-anchored", "small/anchored:memora-anchored"),
    "TTT-Linear's memory with a decay": ("", "small/surroundings:ttt_linear-decaying"),
    "TTT-Linear's memory, anchored": ("", "small/surroundings:ttt_linear-anchored"),
}

CLAIMS = (
    Claim(
        text="With each token's own step, as published, Moneta, Yaad and Memora predict Wikipedia better than every baseline",
        by="the paper",
        page="enwik8_steps",
        judge=as_published,
    ),
    better_than_all("enwik8/main", TEST, "bits", "small"),
    better_than_all("books/main", TEST, "perplexity", "small_books"),
    better_than_all("books/main", f"wikitext2:{TEST}", "perplexity", "small_books", f"wikitext2_short:{TEST}"),
    hybrids("enwik8", TEST, "bits", small=partial(mixed, experiment="small", read=TEST, measure=BITS)),
    hybrids("books", TEST, "perplexity"),
    Claim(
        text="They gain more than others from sequences of 16K instead of 2K (small: 4096 bytes instead of 512)",
        by="the paper",
        page="context",
        judge=lambda found: context(found, "books/main", "context/lengths", "16k"),
        small=lambda found: context(found, "small/main", "small/lengths", "4k"),
    ),
    Claim(text="They find more needles, 1K to 16K, than every baseline", by="the paper", page="books", judge=needles),
    noise("noisy_recall"),
    noise("noisy_vectors"),
    Claim(
        text="Of Moneta's exponents p = 3 is best",
        by="the paper",
        page="ablations",
        judge=lambda found: variants(found, "small-moneta", EXPONENTS, "ablations/p"),
        small=lambda found: variants(found, "moneta", EXPONENTS, "small/main", "small/exponents"),
    ),
    Claim(
        text="Of Moneta's q and links, q = 4 as printed is best",
        by="the paper",
        page="ablations",
        judge=lambda found: variants(found, "small-moneta", RETENTIONS, "ablations/p", "ablations/q"),
        small=lambda found: variants(found, "moneta", RETENTIONS, "small/main", "small/exponents"),
    ),
    Claim(
        text="Every part of Yaad contributes",
        by="the paper",
        page="ablations",
        judge=lambda found: parts_of_yaad(found, "small-yaad", "ablations/yaad"),
        small=lambda found: parts_of_yaad(found, "yaad", "small/main", "small/yaad"),
    ),
    Claim(text="Shared steps keep deep memories from being thrown off", by="us", page="enwik8_steps", judge=shared_steps),
    anchors("An anchor predicts better at the length of training", anchors_near),
    anchors("An anchor predicts better at 8 to 16 times that length", anchors_far),
    Claim(
        text="It is the anchor that does, not the decay which anchored memories start with (Yaad, at the length of training)",
        by="us",
        page="ablations",
        judge=lambda found: equal_decays(found, "small-yaad", "ablations/yaad"),
        small=lambda found: equal_decays(found, "yaad", *(f"small/{stage}" for stage in ("main", "anchored", "controls"))),
    ),
    Claim(
        text="Anchored, Moneta, Yaad and Memora predict Wikipedia better than every baseline",
        by="us",
        page="enwik8",
        judge=partial(anchored_against_all, experiment="enwik8"),
        small=partial(anchored_against_all, experiment="small"),
    ),
    Claim(
        text="TTT-Linear's memory with an anchor stays ahead of what is nearest to it (small: after 8M bytes instead of 2M)",
        by="us",
        page="off_the_map",
        judge=lambda found: variants(found, "ttt_linear-anchored", ["yaad-anchored", "gated_deltanet"], "off_the_map/main"),
        small=lambda found: variants(
            found, "ttt_linear-anchored", ["yaad-anchored", "gated_deltanet", "ttt_linear"], "small/longer"
        ),
    ),
    Claim(
        text="A combination off the map, chosen by validation, is better than Yaad and every baseline",
        by="us",
        page="off_the_map",
        judge=lambda found: off_the_map(found, "off_the_map/main"),
        small=lambda found: off_the_map(
            found, *(f"small/{stage}" for stage in ("main", "anchored", "surroundings", "search", "combinations"))
        ),
    ),
)


def overview(evidence: Evidence) -> str:
    """The table of the README: a row a model, bits a byte of large ones, and of small ones also far beyond their training.

    The last two columns are those of small models that read four times as many bytes.
    """
    rows = []
    for name, (large, small) in OVERVIEW.items():
        cells = [name]
        longer = f"small/longer:{small.partition(':')[2]}" if small else ""
        asked = [(place, ask) for place in (small, longer) for ask in (evidence.read, evidence.far)]
        for place, ask in ((large, evidence.read), *asked):
            stage, _, model = place.partition(":")
            own = ask(stage, FAR if ask == evidence.far else TEST, (model,)) if place else {}
            lost = evidence.ended(stage, model) == "diverged"
            cells.append(f"{statistics.fmean(own[model]):.3f}" if model in own else "diverged" if lost else "-")
        rows.append(cells)
    heads = ["model", "30M", "0.6M, 2M bytes", "far", "0.6M, 8M bytes", "far"]
    return markdown(Table(heads, {"": rows}, numeric=True))


def with_overview(text: str, evidence: Evidence) -> str:
    """The README with its table."""
    (before, rest), (_, after) = text.split(MARKS[0]), text.split(MARKS[1])
    assert MARKS[1] in rest
    return f"{before}{MARKS[0]}\n\n{overview(evidence)}\n\n{MARKS[1]}{after}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE, help="the folder of experiments (default: this one)")
    parser.add_argument("--docs", type=Path, default=HERE.parent / "docs" / "results", help="the folder of pages")
    given = parser.parse_args()
    path, evidence = given.docs / "README.md", Evidence(given.results)
    path.write_text(page(CLAIMS, evidence, given.docs, "python experiments/conclusions.py"))
    print(f"{len(CLAIMS)} claims: {path}")
    front = given.docs.parents[1] / "README.md"
    if front.exists():
        front.write_text(with_overview(front.read_text(), evidence))


if __name__ == "__main__":
    main()
