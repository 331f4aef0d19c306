"""The loop: step after step, each a pure function of the weights, the moments, the seed and its number."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..data.sequences import Batch, Batches, batch_of, spread
from ..types import IGNORED, require
from . import checkpoint, noise, safety
from .config import SafetyConfig
from .engine import Engine
from .job import Job, Place, bits_per_nat
from .metrics import Line, Metrics
from .progress import Progress
from .schedule import rate_at
from .watch import Ending, Watch


class StoppedError(Exception):
    """Training stopped by itself: too many steps in a row were skipped, or what was learned is being lost."""


def restore(job: Job, progress: Progress) -> Place:
    """Go to the newest whole checkpoint, or to the start where there is none."""
    first = job.engine.first
    place = job.engine.agreed(checkpoint.newest(job.checkpoints, progress.say) if first else None)
    if place is None:
        progress.say("there is no whole checkpoint yet: starting at the beginning")
        return Place()
    checkpoint.load(job.engine, job.model, job.optimiser, place)
    state = Place.from_json(job.engine.agreed(checkpoint.read_state(place) if first else None))
    progress.say(f"going on from {place.name}, step {state.step} of {job.config.steps}")
    return state


def train(job: Job, progress: Progress, place: Place, metrics: Metrics | None) -> Ending:
    """Take all steps that are left, or as many as a signal or the clock allows.

    Checkpoints are written every so often, at the end, and before leaving for a signal or for the time.
    """
    config, engine = job.config, job.engine
    noise_every = noise.interval(config, job.language_model)
    watch = Watch(config, job.began, place.step)
    with safety.Signals() as signals:
        for micro_batches, waited in timed(loader(job, place.step)):
            line = one_step(job, place, micro_batches, waited)
            stop = heard(engine, signals)
            record(job, progress, metrics, line)
            last = place.step == config.steps
            reason = why_stop(place, line, config.safety)
            if reason is not None:
                raise StoppedError(stop_message(job, place, reason))
            leave, due = engine.agreed(watch.after(place.step)) if watch.active else (None, False)
            if leave == "slow" and not last:
                return Ending("slow", f"left after step {place.step}: {watch.said}")
            # who sends a signal, or sets a time, may not wait for long
            if last or (place.step % config.log.eval_every == 0 and not (stop or leave)):
                record(job, progress, metrics, validation(job, place.step))
            if noise_every and (last or (place.step % noise_every == 0 and not (stop or leave))):
                record(job, progress, metrics, noise.measured(job, place.step))
            if last or stop or leave or due or (config.save.seconds is None and place.step % config.save.every == 0):
                save(job, place)
            if (stop or leave) and not last:
                why = stop.name if stop else f"run.seconds ({config.run.seconds:g})"
                progress.say(f"stopped by {why} after step {place.step}, which was saved")
                return Ending("signal", signal=stop) if stop else Ending("time")
    return Ending("finished")


def heard(engine: Engine, signals: safety.Signals) -> signal.Signals | None:
    """The signal that any of the processes has heard."""
    known = (signal.SIGTERM, signal.SIGINT)
    counts = engine.total(*(float(signals.received == number) for number in known))
    return next((number for number, count in zip(known, counts, strict=True) if count), None)


def save(job: Job, place: Place) -> None:
    """Write a checkpoint of this place."""
    state, keep = place.to_json(), job.config.save.keep
    checkpoint.save(job.engine, job.model, job.optimiser, job.checkpoints, place.step, state, job.describe, keep)


def why_stop(place: Place, line: Line, config: SafetyConfig) -> str | None:
    """Why training should not go on, or None."""
    skipped = place.spikes.skipped
    if skipped >= config.patience:
        return f"{skipped} steps in a row were skipped, the last because {line['skipped']}"
    return safety.lost(place.spikes, config)


def stop_message(job: Job, place: Place, reason: str) -> str:
    """What to say when training stops by itself."""
    found = checkpoint.found(job.checkpoints)
    kept = f"the newest checkpoint is {found[0]}" if found else "there was no checkpoint yet"
    return f"stopped after step {place.step}: {reason}; {kept}. A smaller --optim.lr, or a longer --optim.warmup, may help"


def loader(job: Job, start: int) -> DataLoader[list[Batch]]:
    """The batches of the steps from ``start`` on."""
    config, engine = job.config, job.engine
    batches = Batches(
        job.corpus.train,
        length=config.data.length,
        batch=config.data.batch,
        micro_batch=job.micro_batch,
        seed=config.run.seed,
        process=engine.process,
        processes=engine.processes,
        isolate=config.data.isolate,
    )
    return DataLoader(
        batches,
        batch_size=None,
        sampler=range(start, config.steps),
        num_workers=config.data.workers,
        collate_fn=as_it_is,
        pin_memory=engine.device.type == "cuda",
        worker_init_fn=leave_signals,
    )


def as_it_is(batches: list[Batch]) -> list[Batch]:
    """The batches, which are tensors already."""
    return batches


def leave_signals(worker: int) -> None:
    """A terminal's Ctrl-C and a scheduler's SIGTERM reach every process; a reader leaves them to the trainer."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def timed(batches: DataLoader[list[Batch]]) -> Iterator[tuple[list[Batch], float]]:
    """Batches, and the seconds that were spent waiting for each."""
    iterator = iter(batches)
    while True:
        began = time.perf_counter()
        micro_batches = next(iterator, None)
        if micro_batches is None:
            return
        yield micro_batches, time.perf_counter() - began


def one_step(job: Job, place: Place, micro_batches: list[Batch], waited: float) -> Line:
    """Forward and backward over the micro-batches, then a step of the optimiser, unless something is wrong."""
    config, engine = job.config, job.engine
    began = time.perf_counter()
    optim = config.optim
    rate = rate_at(place.step, steps=config.steps, peak=config.peak, warmup=optim.warmup, final=optim.final)
    for group in job.optimiser.param_groups:
        group["lr"] = rate
    engine.seed(config.run.seed, place.step)
    loss, norm = gradients(job, micro_batches)
    reason = safety.complaint(place.spikes, loss, norm, config.safety)
    if reason is None:
        job.optimiser.step()
    job.passes.forget(job.optimiser)
    place.spikes = safety.after(place.spikes, loss, reason is None, config.safety)
    place.step += 1
    seconds = time.perf_counter() - began + waited
    tokens = config.data.batch * config.data.length
    line: Line = {
        "step": place.step,
        "loss": loss,
        "bits_per_byte": loss * bits_per_nat(job.corpus.train.bytes_per_token),
        "lr": rate,
        "grad_norm": norm,
        "tokens": place.step * tokens,
        "seconds": time.monotonic() - job.began,
        "tokens_per_second": tokens / seconds,
        "memory_gb": engine.memory(),
        "data_share": waited / seconds,
    }
    return line if reason is None else {**line, "skipped": reason}


def gradients(job: Job, micro_batches: list[Batch]) -> tuple[float, float]:
    """The gradient of the step's mean loss, clipped; the loss, and the norm before clipping, over all processes.

    Every micro-batch gives its sum of losses over the targets of the whole step, so that the result does not depend on how
    the step is cut into micro-batches and processes.
    """
    engine = job.engine
    model = job.model.train()
    items = step_targets(job, micro_batches)
    losses: list[Tensor] = []
    for number, batch in enumerate(micro_batches):
        with engine.hold(model, last=number == len(micro_batches) - 1):
            losses.append(job.passes(*on_device(batch, engine.device), items))
    norm = engine.accelerator.clip_grad_norm_(model.parameters(), job.config.optim.clip)
    assert norm is not None
    return engine.total(torch.stack(losses).sum())[0], float(norm)


def step_targets(job: Job, micro_batches: list[Batch]) -> int:
    """How many targets the whole step has: known, unless documents are isolated."""
    if not job.config.data.isolate:
        return job.config.data.batch * job.config.data.length
    mine = sum(int((batch.targets != IGNORED).sum()) for batch in micro_batches)
    return max(int(job.engine.total(float(mine))[0]), 1)


def on_device(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """A batch where the model is."""
    inputs, targets = (tensor.to(device, non_blocking=True) for tensor in (batch.inputs, batch.targets))
    return inputs, targets, None if batch.bounds is None else batch.bounds.to(device)


@torch.no_grad()
def validation(job: Job, step: int) -> Line:
    """The mean loss over fixed sequences of the validation split.

    Processes take them in turn, and one that has none left runs on ignored targets, since a sharded model needs all of them.
    """
    config, engine, tokens = job.config, job.engine, job.corpus.valid
    chosen = spread(tokens, config.data.length, config.log.eval_sequences)
    mine = chosen[engine.process :: engine.processes]
    size = job.micro_batch
    rounds = math.ceil(len(chosen) / (engine.processes * size))
    model = job.model.eval()
    total, count = torch.zeros((), device=engine.device), 0
    for number in range(rounds):
        own = mine[number * size : (number + 1) * size]
        batch = batch_of(tokens, own or chosen[:1], config.data.length, config.data.isolate)
        if not own:
            batch.targets.fill_(IGNORED)
        count += int((batch.targets != IGNORED).sum())
        total += model(*on_device(batch, engine.device), 1)
    losses, targets = engine.total(total, float(count))
    require(targets > 0, "the validation split has no token to predict inside its documents")
    loss = losses / targets
    return {"step": step, "valid_loss": loss, "valid_bits_per_byte": loss * bits_per_nat(tokens.bytes_per_token)}


def record(job: Job, progress: Progress, metrics: Metrics | None, line: Line) -> None:
    """Show and write a line of metrics; only the first process has a file for them."""
    if "skipped" in line:
        progress.say(f"step {line['step']} was skipped: {line['skipped']}")
    elif "valid_loss" in line:
        progress.say(f"step {line['step']}: validation {line['valid_bits_per_byte']:.4f} bits per byte")
    elif "noise_response" in line:
        progress.noise = line["noise_response"]
        progress.say(noise.said(line))
    else:
        progress.step(line)
    if metrics is not None:
        metrics.add(line)
    job.engine.accelerator.log({key: value for key, value in line.items() if key not in ("step", "skipped")}, step=line["step"])
