"""``miras train``: from a configuration to a run folder with a model in it."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from accelerate.utils import set_seed
from transformers.utils.logging import disable_progress_bar

from ..data.corpus import Corpus, is_prepared, prepare, prepared
from ..data.sequences import spread
from ..data.sources import Files, Source, source_of
from ..data.tokenizer import Tokenizer, tokenizer_of
from ..hf import MirasForCausalLM
from ..types import require
from . import run
from .checkpoint import found
from .config import DataConfig, TrainConfig
from .engine import Engine
from .job import Job, Place, bits_per_nat
from .loop import StoppedError, loader, restore, train
from .metrics import Metrics, lines
from .models import Objective, build_model, model_config
from .noise import interval
from .optimiser import adamw
from .options import to_dict
from .passes import Passes, check_recording
from .progress import Progress, clock
from .sample import sample
from .watch import Ending


def train_command(config: TrainConfig, resume: bool) -> int:
    """Run a training; the exit code: 0 at the end or after the time given, 128 and a signal's number after one, else 1."""
    ending = train_run(config, resume)
    if ending.said and os.environ.get("RANK", "0") == "0":
        print(f"miras: {ending.said}", file=sys.stderr)
    return ending.code


def train_run(config: TrainConfig, resume: bool) -> Ending:
    """Run a training; how it ended."""
    began = time.monotonic()
    for tracker in config.log.trackers:
        require(find_spec(tracker) is not None, f"log.trackers: {tracker} is not installed: pip install {tracker}")
    engine = Engine(config.engine)
    ending = trained(config, resume, engine, began)
    # the model first: the last to hold the group of processes, it would leave it while a thread of that waits for Python
    engine.accelerator.free_memory()
    gc.collect()
    engine.accelerator.end_training()
    return ending


def trained(config: TrainConfig, resume: bool, engine: Engine, began: float) -> Ending:
    """The training itself; nothing of it is held when it has ended."""
    check_recording(engine, config.data.isolate)
    tokenizer = tokenizer_of(config.data.tokenizer, config.data.end)
    model_config(config.model, tokenizer)
    folder = engine.on_first(lambda: chosen_folder(config, resume))
    with run.not_left_empty(folder):
        return trained_in(folder, config, resume, engine, tokenizer, began)


def trained_in(folder: Path, config: TrainConfig, resume: bool, engine: Engine, tokenizer: Tokenizer, began: float) -> Ending:
    """The training in its folder."""
    with engine.accelerator.local_main_process_first():
        corpus = read_corpus(config.data, tokenizer)
    if resume:
        engine.on_first(lambda: run.check_identity(folder, run.identity(config, corpus)))
    job = make_job(config, engine, corpus, tokenizer, folder, began)
    try:
        with Progress(config.steps, config.log.every, engine.first) as progress:
            ending = work(job, progress, resume)
    except StoppedError as error:
        return Ending("stopped", str(error))
    if ending.reason == "finished" and engine.first:
        conclude(job, tokenizer)
    engine.accelerator.wait_for_everyone()
    return ending


def chosen_folder(config: TrainConfig, resume: bool) -> Path:
    """The run folder, which must be free or hold the run that goes on."""
    folder = run.free_folder(config.model.name) if config.run.folder is None else Path(config.run.folder)
    run.check_folder(folder, resume)
    return folder


def make_job(config: TrainConfig, engine: Engine, corpus: Corpus, tokenizer: Tokenizer, folder: Path, began: float) -> Job:
    """The model and its optimiser, the same on every process, then spread over them."""
    set_seed(config.run.seed)
    model = build_model(config.model, tokenizer)
    objective = Objective(model)
    wrapped, optimiser = engine.prepare(objective, adamw(objective, config.optim, engine.device))

    def describe(place: Path) -> None:
        model.config.save_pretrained(place)
        tokenizer.hugging_face().save_pretrained(place)

    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Job(
        config=config,
        engine=engine,
        corpus=corpus,
        model=wrapped,
        optimiser=optimiser,
        passes=Passes(wrapped, engine),
        folder=folder,
        parameters=parameters,
        began=began,
        describe=describe,
    )


def work(job: Job, progress: Progress, resume: bool) -> Ending:
    """Everything from the first line on the screen to the last step."""
    config, engine = job.config, job.engine
    # what does not fit together is found out before anything is written
    loader(job, 0)
    interval(config, job.language_model)
    spread(job.corpus.valid, config.data.length, config.log.eval_sequences)
    ways = engine.ways(job.language_model)
    introduce(job, progress, ways)
    place = restore(job, progress) if resume else Place()
    metrics = None
    # another run may have begun there while this one read its text
    engine.on_first(lambda: run.check_folder(job.folder, resume))
    if engine.first:
        run.begin(job.folder, config, job.corpus, job.parameters, engine.about(job.model) | {"memories": ways})
        metrics = Metrics(job.folder / "metrics.jsonl")
        metrics.cut(place.step)
    options = {f"{section}.{key}": value for section, keys in to_dict(config).items() for key, value in keys.items()}
    engine.track(config.log.trackers, job.folder, options)
    progress.begin(place.step)
    try:
        return train(job, progress, place, metrics)
    finally:
        if metrics is not None and config.log.plot:
            picture(job)


def introduce(job: Job, progress: Progress, ways: list[str]) -> None:
    """What is about to happen, in a few lines."""
    config, engine, corpus = job.config, job.engine, job.corpus
    for warning in corpus.warnings:
        progress.say(f"warning: {warning}")
    progress.say(f"data   {corpus.title}: {corpus.train.count:,} tokens to train on, {corpus.valid.count:,} to validate")
    progress.say(
        f"model  {config.model.name}, {job.parameters:,} parameters, {config.steps} steps of {config.data.batch} x "
        f"{config.data.length} tokens on {engine.processes} x {engine.device.type}"
    )
    for way in ways:
        progress.say(f"memory {way}")
    progress.say(f"run    {job.folder}")


def picture(job: Job) -> None:
    """Draw the curves of the run so far."""
    from .plot import draw

    known = lines(job.folder / "metrics.jsonl")
    if any("loss" in line for line in known):
        title = f"{job.config.model.name}, {job.parameters / 1e6:.3g}M parameters, {job.corpus.title}"
        draw(known, job.folder / "plot.png", title, bits_per_nat(job.corpus.train.bytes_per_token))


def conclude(job: Job, tokenizer: Tokenizer) -> None:
    """Leave a model, a sample and the line to type next."""
    # its bars would stand between the lines below
    disable_progress_bar()
    log, folder = job.config.log, job.folder / "model"
    model = MirasForCausalLM.from_pretrained(found(job.checkpoints)[0])
    model.save_pretrained(folder)
    tokenizer.hugging_face().save_pretrained(folder)
    bits = [line["valid_bits_per_byte"] for line in lines(job.folder / "metrics.jsonl") if "valid_loss" in line][-1]
    require(bits is not None, f"the validation loss is no number after {job.config.steps} steps, nor can {folder} speak")
    if log.sample:
        text = sample(folder, log.prompt, log.sample, seed=job.config.run.seed, device=job.engine.device)
        (job.folder / "sample.txt").write_text(text + "\n", encoding="utf-8")
        print(f"\n{text}\n")
    print(f"validation: {bits:.4f} bits per byte after {job.config.steps} steps, {clock(time.monotonic() - job.began)} in all")
    drawn = f"{job.folder / 'plot.png'} and " if log.plot else ""
    print(f"see {drawn}{job.folder / 'metrics.jsonl'}; the model is in {folder}")
    print(f"next: miras {modules_given(sys.argv)}generate {folder} --prompt 'import ' --temperature 0.8")


def modules_given(argv: list[str]) -> str:
    """The modules with parts of a user's own that a command line names, as the next one has to name them.

    >>> modules_given(["miras", "--import", "mine", "train"])
    '--import mine '
    """
    return "".join(f"--import {name} " for option, name in itertools.pairwise(argv) if option == "--import")


def read_corpus(config: DataConfig, tokenizer: Tokenizer) -> Corpus:
    """The tokenised text, made now, found in the cache, or the folder of shards that is named."""
    if is_prepared(config.path):
        assert config.path is not None
        require(config.valid_path is None, f"data.path {config.path} holds its own validation split: leave out data.valid_path")
        return prepared(Path(config.path).expanduser(), tokenizer)
    source = source_of(
        config.path, field=config.field, valid_share=config.valid_share, subset=config.subset, split=config.split
    )
    valid: Source | None = None
    if config.valid_path is not None:
        path = Path(config.valid_path).expanduser()
        require(path.exists(), f"no such file or folder: {config.valid_path} (data.valid_path)")
        valid = Files(path, field=config.field, valid_share=config.valid_share, only="valid")
    return prepare(source, tokenizer, Path(config.cache), valid=valid, on_bad=config.on_bad, max_tokens=config.max_tokens)
