"""Judge the paper's claims, and ours, by the results that are kept: ``docs/results/README.md``, and the tables of two pages.

    python experiments/conclusions.py

Every claim names what it compares; verdicts and numbers come from the files of results.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from miras.lab.conclusions import Claim, Evidence, Judge, found_needles, page
from miras.lab.evidence import valid
from miras.lab.results import set_back
from miras.lab.tables import Table, markdown
from miras.lab.verdicts import (
    BITS,
    NOT_RUN,
    PERCENT,
    PERPLEXITY,
    RATIO,
    Figures,
    Finding,
    Measure,
    Noise,
    against,
    best,
    chance,
    favourite,
    pairwise,
    pooled,
)
from miras.train.metrics import Line

HERE = Path(__file__).resolve().parent
OURS = ("moneta", "yaad", "memora")
BASELINES = ("transformer", "gla", "deltanet", "gated_deltanet", "ttt_linear")
DEEP = ("yaad", "titans_lmm", "moneta", "memora")
COMBINATIONS = (
    *("elastic-net", "elastic-net-huber", "bregman-sigmoid", "bregman-tanh", "f-chi2", "f-hellinger", "value-shift-anchored"),
    *("huber-momentum-anchored", "huber-kl-anchored", "lp-l2-anchored", "lp-momentum-anchored", "l2-anchored"),
    *("hafiza", "ttt_linear-anchored", "ttt_linear-anchored-huber", "ttt_linear-anchored-momentum", "ttt_mlp-anchored"),
)
# Moneta with another p; with another q, by the printed link, and by the exact one
EXPONENTS = [f"moneta-p{p}" for p in ("1", "1.5", "2", "2.8", "3.2", "4")]
RETENTIONS = [f"moneta-q{q}" for q in "235"] + [f"moneta-exact-q{q}" for q in "2345"]
# the last is what models of books are read at, 32 times their length
TEST, FAR, FARTHER = "test/sliding/1x", "test/long/16x", "test/long/65536"
Rule = Callable[[Figures, str, Sequence[str], Measure, Noise | None], Finding]


def over(places: Iterable[str], ask: Callable[[str], dict[str, list[float]]]) -> dict[str, list[float]]:
    """The figures of several stages together."""
    return {model: own for place in places for model, own in ask(place).items()}


def best_of_all(evidence: Evidence, place: str, read: str, measure: Measure) -> Finding:
    """Each of the paper's three against the best of the others."""
    others = (*BASELINES, "titans_lmm")
    ours, rivals = evidence.read(place, read, OURS), evidence.read(place, read, others)
    return against(ours, rivals, OURS, others, measure, evidence.noise_of(place, read))


def better_than_all(place: str, read: str, unit: str, small: str, small_read: str = TEST) -> Claim:
    """The paper's main claim, on one text."""
    judge = partial(best_of_all, place=place, read=read, measure=BITS if unit == "bits" else PERPLEXITY)
    text, _, _ = read.rpartition("/sliding")
    where = {"enwik8/main": "Wikipedia", "books/main": "prose of unseen authors"}[place]
    where = "WikiText-2 (after books, another domain)" if text.startswith("wikitext2") else where
    said = f"With shared steps, which are ours, Moneta, Yaad and Memora predict {where} better than every baseline"
    judged = partial(best_of_all, place=f"{small}/main", read=small_read, measure=BITS)
    return Claim(text=said, by="the paper, varied", page=place.partition("/")[0], judge=judge, small=judged, small_page=small)


def own_steps(evidence: Evidence, place: str, baselines: str, suffix: str = "") -> Finding:
    """The main claim for memories in which each token keeps its own step."""
    wanted = [f"{name}{suffix}" for name in OURS]
    ours, rivals = evidence.read(place, TEST, wanted), evidence.read(baselines, TEST, BASELINES)
    return against(ours, rivals, wanted, BASELINES, BITS, evidence.noise_of(baselines, TEST))


def with_attention(evidence: Evidence, experiment: str, read: str, measure: Measure) -> Finding:
    """Every second layer attention over a window."""
    hybrid, plain = evidence.read(f"{experiment}/hybrids", read), evidence.read(f"{experiment}/main", read)
    return pairwise(hybrid, plain, {f"{name}-h": name for name in OURS}, measure, evidence.noise_of(f"{experiment}/main", read))


def hybrids(experiment: str, read: str, unit: str, small: Judge | None = None) -> Claim:
    """What attention adds, on one text."""
    return Claim(
        text=f"Hybrids with attention predict better than memories alone ({experiment})",
        by="the paper",
        page=experiment,
        judge=partial(with_attention, experiment=experiment, read=read, measure=BITS if unit == "bits" else PERPLEXITY),
        small=small,
    )


def context(evidence: Evidence, short: str, long: str, variant: str, others: Sequence[str]) -> Finding:
    """How many times less surprised, in the experiment's unit, models are after training on sequences eight times as long."""
    before, after = evidence.read(short, TEST), evidence.read(long, TEST)
    gained = {
        name: [statistics.fmean(before[name]) / number for number in after[f"{name}, {variant}"]]
        for name in before
        if f"{name}, {variant}" in after
    }
    ours = {name: gained[name] for name in OURS if name in gained}
    found = against(ours, {name: gained[name] for name in others if name in gained}, OURS, others, RATIO)
    if gained and all(statistics.fmean(own) < 1 for own in gained.values()):
        # who loses least has not gained
        verdict = "open" if found.verdict == "open" else "does not hold here"
        return found._replace(verdict=verdict, said=f"Nobody gains: {found.said}")
    return found


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
    found = against(ours, rivals, ("moneta", "yaad"), others, PERCENT, pooled(scores))
    ends = " A trial ends once its task is solved and counts as solved then: nobody can be ahead of who solves it."
    return found if found is NOT_RUN else found._replace(said=found.said + ends)


def noise(task: str) -> Claim:
    """The claim behind Huber and l_p, on one task."""
    text = f"Moneta's l_p and Yaad's Huber keep recall where 2 of 5 values are wrong better than all others ({task})"
    large, small = (partial(unmoved, task=task, small=small) for small in (False, True))
    return Claim(text=text, by="the paper", page="recall", judge=large, small=small, small_page="recall_small")


def variants(evidence: Evidence, name: str, rivals: Sequence[str], *places: str, judge: Rule = best) -> Finding:
    """Whether a model is the best of those that have one thing changed."""
    bits = over(places, lambda place: evidence.read(place, TEST, (name, *rivals)))
    return judge(bits, name, rivals, BITS, evidence.noise_of(places[0], TEST))


def parts_of_yaad(evidence: Evidence, name: str, *places: str) -> Finding:
    """Yaad without one of its parts."""
    rivals = [f"yaad-{part}" for part in ("no-retention", "fixed-delta", "l2-only", "l1-only", "one-layer", "linear-memory")]
    return variants(evidence, name, rivals, *places, judge=favourite)


def anchors_near(evidence: Evidence, plain: str, anchored: str) -> Finding:
    """Retention towards the initial weights, at the length of training."""
    held, free, pairs = evidence.read(anchored, TEST), evidence.read(plain, TEST), {f"{name}-anchored": name for name in DEEP}
    return pairwise(held, free, pairs, measure_of(evidence, plain), evidence.noise_of(plain, TEST))


def anchors_far(evidence: Evidence, plain: str, anchored: str) -> Finding:
    """The same at 8 to 16 times that length."""
    name = FARTHER if plain.startswith("books/") else FAR
    held, free, pairs = evidence.far(anchored, name), evidence.far(plain, name), {f"{name}-anchored": name for name in DEEP}
    return pairwise(held, free, pairs, measure_of(evidence, plain), evidence.noise(plain, evidence.last(plain, name)))


def measure_of(evidence: Evidence, place: str) -> Measure:
    """What an experiment's texts are measured in, as verdicts tell it."""
    return BITS if evidence.unit(place) == "bits_per_byte" else PERPLEXITY


def equal_decays(evidence: Evidence, name: str, *places: str) -> Finding:
    """Yaad with an anchor and without, both with the decay that plain ones start with, and both with that of anchored ones."""
    pairs = {f"{name}-anchored-decay-1e-4": name, f"{name}-anchored": f"{name}-decay-1e-3"}
    bits = over(places, lambda place: evidence.read(place, TEST))
    return pairwise(bits, bits, pairs, BITS, evidence.noise_of(places[0], TEST))


def anchors(text: str, judge: Callable[[Evidence, str, str], Finding], prose: bool = False) -> Claim:
    """What an anchor does, for large models and for small ones, on Wikipedia or on prose."""
    small = "small_books" if prose else "small"
    large = ("books/main", "books/main") if prose else ("ablations/anchor-plain", "ablations/anchor-anchored")
    return Claim(
        text=f"{text}, on {'prose of unseen authors' if prose else 'Wikipedia'}",
        by="us",
        page=large[0].partition("/")[0],
        judge=lambda found: judge(found, *large),
        small=lambda found: judge(found, f"{small}/main", f"{small}/anchored"),
        small_page=small,
    )


# a run that ends this much worse than the best of its length was thrown off too
LOST = 1.2


def shared_steps(evidence: Evidence, presets: bool) -> Finding:
    """How many runs of 30M parameters were thrown off with own steps and with shared ones, at the same rate and length.

    Shared as ``presets`` have it, or by a sum that the run's options name.
    """
    runs: dict[bool, dict[tuple[object, ...], Line]] = {False: {}, True: {}}
    best: dict[object, float] = {}
    for row in (row for name in ("enwik8", "enwik8_steps") for row in evidence.rows(name)):
        options, model = row["options"], row["model"].removesuffix("-shared")
        if row["status"] not in ("finished", "diverged") or model.split("-")[0] not in DEEP or "model.pace" in options:
            continue
        cell = (model, *(options.get(f"optim.{name}") for name in ("lr", "tokens", "warmup")))
        shares = options.get("model.step_sum")
        if shares == 0.0 or presets == (shares is None):
            runs[shares != 0.0][cell] = row
        if row["status"] == "finished":
            tokens, bits = options.get("optim.tokens"), row["valid"]["bits_per_byte"]
            best[tokens] = min(bits, best.get(tokens, bits))

    def thrown(row: Line) -> bool:
        if row["status"] == "diverged" or set_back(row) is not None:
            return True
        return bool(row["valid"]["bits_per_byte"] > LOST * best[row["options"].get("optim.tokens")])

    own, shared = runs[False], runs[True]
    both = own.keys() & shared.keys()
    if not both:
        return NOT_RUN
    kept = [(thrown(own[cell]), thrown(shared[cell])) for cell in both]
    better, worse = (sum(pair == which for pair in kept) for which in ((True, False), (False, True)))
    alone = [cell for cell in shared if cell not in both]
    sums = sorted({row["options"].get("model.step_sum", "1 (Moneta's to 1/3)") for row in shared.values()}, key=str)
    said = (
        f"Of {len(both)} pairs of runs of one model, rate and length, {sum(one for one, _ in kept)} were thrown off with each "
        f"token's own step, {sum(two for _, two in kept)} with shared ones, which added up to {' or '.join(map(str, sums))}. "
        f"In {better} pairs only the own steps were thrown off, in {worse} only the shared ones: chance alone is as one-sided "
        f"{100 * chance(better, worse):.0f} times in a hundred. Of {len(alone)} shared ones without a counterpart "
        f"{sum(thrown(shared[cell]) for cell in alone)} were thrown off."
    )
    if chance(better, worse) > 0.05:
        return Finding("not told apart", said)
    return Finding("holds here" if better > worse else "does not hold here", said)


def anchored_against_all(evidence: Evidence, experiment: str) -> Finding:
    """Anchored memories against every baseline."""
    ours, others = tuple(f"{name}-anchored" for name in OURS), (*BASELINES, "titans_lmm")
    held, free = evidence.read(f"{experiment}/anchored", TEST, ours), evidence.read(f"{experiment}/main", TEST, others)
    return against(held, free, ours, others, BITS, evidence.noise_of(f"{experiment}/main", TEST))


def off_the_map(evidence: Evidence, rivals: Sequence[str], needed: Sequence[str], *places: str) -> Finding:
    """What validation likes best of what the paper never ran, against the best of its rivals.

    It is chosen by its first seed, and judged by the others where it has any.
    """
    others = over(places, lambda place: evidence.read(place, TEST, rivals))
    chosen_by = over(places, lambda place: evidence.figures(place, valid, COMBINATIONS, lambda seed: seed == 0))
    if not chosen_by or any(name not in others for name in needed):
        return NOT_RUN
    chosen, noise = BITS.best(chosen_by), evidence.noise_of(places[0], TEST)
    fresh = over(places, lambda place: evidence.read(place, TEST, [chosen], lambda seed: seed != 0))
    ours = fresh or over(places, lambda place: evidence.read(place, TEST, [chosen]))
    found = against(ours, others, [chosen], needed, BITS, noise)
    seeds = "another seed than the one that it was chosen by" if fresh else "the seed that it was chosen by"
    return found._replace(said=f"Chosen of {len(chosen_by)} that were run, and judged by {seeds}. {found.said}")


# what a combination must beat, and where small ones were run
RIVALS = ("yaad", "yaad-anchored", "yaad-anchored-as-ttt", "titans_lmm-anchored", *BASELINES)
SMALL = tuple(f"small/{stage}" for stage in ("main", "anchored", "surroundings", "search", "combinations"))
NEAREST = ("yaad-anchored", "gated_deltanet", "ttt_linear")

MARKS = "<!-- made by experiments/conclusions.py -->", "<!-- end -->"
# where the table of the README finds a model: large, and small
OVERVIEW = {
    "transformer": ("enwik8/main:transformer", "small/main:transformer"),
    "gla": ("enwik8/main:gla", "small/main:gla"),
    "deltanet": ("enwik8/main:deltanet", "small/main:deltanet"),
    "gated_deltanet": ("enwik8/main:gated_deltanet", "small/main:gated_deltanet"),
    "ttt_linear": ("enwik8/main:ttt_linear", "small/main:ttt_linear"),
    "moneta, own steps": ("enwik8_steps/main:moneta", "small/own:moneta-own"),
    "yaad, own steps": ("enwik8_steps/main:yaad", "small/own:yaad-own"),
    "memora, own steps": ("enwik8_steps/main:memora", "small/own:memora-own"),
    "titans_lmm, own steps": ("enwik8_steps/main:titans_lmm", "small/own:titans_lmm-own"),
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
    "hafiza (TTT-Linear's memory, anchored)": ("enwik8/anchored:hafiza", "small/surroundings:ttt_linear-anchored"),
}

CLAIMS = (
    Claim(
        text="With each token's own step, as printed, Moneta, Yaad and Memora predict Wikipedia better than every baseline",
        by="the paper",
        page="enwik8_steps",
        judge=lambda found: own_steps(found, "enwik8_steps/main", "enwik8/main"),
        small=lambda found: own_steps(found, "small/own", "small/main", "-own"),
    ),
    better_than_all("enwik8/main", TEST, "bits", "small"),
    better_than_all("books/main", TEST, "perplexity", "small_books"),
    better_than_all("books/main", f"wikitext2:{TEST}", "perplexity", "small_books", f"wikitext2_short:{TEST}"),
    hybrids("enwik8", TEST, "bits", small=partial(with_attention, experiment="small", read=TEST, measure=BITS)),
    hybrids("books", TEST, "perplexity"),
    Claim(
        text="Moneta, Yaad and Memora gain more than every baseline from sequences of 16K instead of 2K (small: more than the "
        "Transformer and Gated DeltaNet from 4096 bytes instead of 512)",
        by="the paper",
        page="context",
        judge=lambda found: context(found, "books/main", "context/lengths", "16k", (*BASELINES, "titans_lmm")),
        small=lambda found: context(found, "small/main", "small/lengths", "4k", ("transformer", "gated_deltanet")),
    ),
    Claim(
        text="Moneta, Yaad and Memora find more needles, 1K to 16K, than every baseline",
        by="the paper",
        page="books",
        judge=needles,
    ),
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
    Claim(
        text="With shared steps, as presets have them (they add up to 1, Moneta's to 1/3), fewer trainings are thrown off",
        by="us",
        page="enwik8",
        judge=lambda found: shared_steps(found, presets=True),
    ),
    Claim(
        text="With shared steps that add up to 2 (Moneta's to 2/3) fewer trainings are thrown off",
        by="us",
        page="enwik8_steps",
        judge=lambda found: shared_steps(found, presets=False),
    ),
    anchors("An anchor predicts better at the length of training", anchors_near),
    anchors("An anchor predicts better at 8 to 16 times that length", anchors_far),
    anchors("An anchor predicts better at the length of training", anchors_near, prose=True),
    anchors("An anchor predicts better at 8 to 16 times that length", anchors_far, prose=True),
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
        text="Hafiza, TTT-Linear's memory anchored, is ahead of it, anchored Yaad and Gated DeltaNet (small: after 8M bytes)",
        by="us",
        page="off_the_map",
        judge=lambda found: variants(found, "hafiza", NEAREST, "off_the_map/main"),
        small=lambda found: variants(found, "ttt_linear-anchored", NEAREST, "small/longer"),
    ),
    Claim(
        text="A combination that the paper never ran, chosen by validation, beats Yaad as the paper has it",
        by="us",
        page="off_the_map",
        judge=lambda found: off_the_map(found, ["yaad"], ["yaad"], "off_the_map/main"),
        small=lambda found: off_the_map(found, ["yaad"], ["yaad"], *SMALL),
    ),
    Claim(
        text="That combination beats Yaad anchored too, and every baseline",
        by="us",
        page="off_the_map",
        judge=lambda found: off_the_map(found, RIVALS, ("yaad", *BASELINES), "off_the_map/main"),
        small=lambda found: off_the_map(found, RIVALS, ("yaad", *BASELINES), *SMALL),
    ),
)


# the rows of the README; all of them are docs/findings.md's
BRIEF = (*BASELINES, "titans_lmm", *OURS, "yaad-anchored", "hafiza (TTT-Linear's memory, anchored)")


def overview(evidence: Evidence, names: Iterable[str] = tuple(OVERVIEW)) -> str:
    """A row a model, bits a byte at the length of training and far beyond.

    The last two columns are those of small models that read four times as many bytes.
    """
    rows = []
    for name in names:
        (large, small), cells = OVERVIEW[name], [name]
        longer = f"small/longer:{small.partition(':')[2]}" if small else ""
        asked = [(place, ask) for place in (small, longer) for ask in (evidence.read, evidence.far)]
        for place, ask in ((large, evidence.read), (large, evidence.far), *asked):
            stage, _, model = place.partition(":")
            own = ask(stage, FAR if ask == evidence.far else TEST, (model,)) if place else {}
            lost = evidence.ended(stage, model) == "diverged"
            cells.append(f"{statistics.fmean(own[model]):.3f}" if model in own else "diverged" if lost else "-")
        rows.append(cells)
    heads = ["model", "30M", "far", "0.6M, 2M bytes", "far", "0.6M, 8M bytes", "far"]
    return markdown(Table(heads, {"": rows}, numeric=True))


def with_overview(text: str, evidence: Evidence, names: Iterable[str] = tuple(OVERVIEW)) -> str:
    """A page with its table."""
    (before, rest), (_, after) = text.split(MARKS[0]), text.split(MARKS[1])
    assert MARKS[1] in rest
    return f"{before}{MARKS[0]}\n\n{overview(evidence, names)}\n\n{MARKS[1]}{after}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE, help="the folder of experiments (default: this one)")
    parser.add_argument("--docs", type=Path, default=HERE.parent / "docs" / "results", help="the folder of pages")
    given = parser.parse_args()
    path, evidence = given.docs / "README.md", Evidence(given.results)
    path.write_text(page(CLAIMS, evidence, given.docs, "python experiments/conclusions.py"))
    print(f"{len(CLAIMS)} claims: {path}")
    for front, names in ((given.docs.parents[1] / "README.md", BRIEF), (given.docs.parent / "findings.md", tuple(OVERVIEW))):
        if front.exists():
            front.write_text(with_overview(front.read_text(), evidence, names))


if __name__ == "__main__":
    main()
