"""Train one model: AdamW, warm-up and cosine, clipped gradients; a run that can be stopped at any moment and goes on.

A run is a folder:

    settings.json             what it was asked to do
    metrics.jsonl             a line an interval: loss, learning rate, speed; and each check on the validation part
    checkpoint.safetensors    where it stands
    result.json               at the end: what it found on the test part, which nothing has looked at before
    tensorboard/              the metrics again, if TensorBoard is installed

Step n depends on the settings, on n and on the state after step n - 1, and on nothing else. So a run that was
interrupted, killed too, gives the same weights and the same lines, to the bit, as one that was not.
"""

from __future__ import annotations

import json
import math
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.lab.board import board
from ropewalk.lab.corpora import Part
from ropewalk.lab.evaluate import extended, loss, max_length, measure, profile
from ropewalk.lab.feasible import feasible
from ropewalk.lab.goals import IGNORE, Goal
from ropewalk.lab.ranks import Ranks, put, whole
from ropewalk.lab.saving import Checkpoint, Lines, is_fresh, read_json, sweep, write_json
from ropewalk.lab.settings import Settings
from ropewalk.lab.transformer import Transformer
from ropewalk.protocol import PositionalEncoding
from ropewalk.version import __version__

SETTINGS, METRICS, CHECKPOINT, RESULT = "settings.json", "metrics.jsonl", "checkpoint.safetensors", "result.json"
INTERVALS = 100
"""Lines of metrics a run, beside its checks."""
SAVE_SECONDS = 60.0
SAME_SECONDS = 2.0
"""Signals to stop within so many are one."""

Tell = Callable[[dict[str, Any]], None]
"""Is told every line of the metrics as it is written, and at the end that the test begins (`testing`)."""


class Stopped(Exception):  # noqa: N818  # no error: it was asked for
    """Somebody asked for the run to stop (Ctrl-C, or a signal to end); where it stands is saved."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


def begin(folder: Path, settings: Settings) -> None:
    """Make the folder of a new run.

    Raises:
        ValueError: something is there already.
        OSError: it cannot be made or written.
    """
    if not is_fresh(folder):
        raise ValueError(f"{folder} is there already: give --resume to go on with a run, or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SETTINGS, replace(settings, threads=settings.threads or torch.get_num_threads()).json())


def settings_of(folder: Path) -> Settings:
    """What the run in a folder was asked to do.

    Raises:
        ValueError: there is no run, or its settings are damaged.
    """
    path = folder / SETTINGS
    if not path.is_file():
        raise ValueError(f"there is no run in {folder} to go on with: it has no {SETTINGS}")
    return Settings.from_json(read_json(path))


def train(
    folder: Path,
    *,
    tell: Tell = lambda line: None,
    ranks: Ranks | None = None,
    save_seconds: float = SAVE_SECONDS,
    stop_at: int | None = None,
    goal: Goal | None = None,
) -> dict[str, Any]:
    """Carry out the run of a folder, from its beginning or from where it stands, and give its result.

    Args:
        folder: of `begin`.
        tell: is told each line of metrics.
        ranks: the processes among which it is split.
        save_seconds: how often to save.
        stop_at: go no further than this step, as if somebody had interrupted there.
        goal: what `settings.make_goal()` would make, if it has been made already.

    Raises:
        Stopped: it was asked to stop, and has saved where it stands.
        Busy: another process is at work in the folder.
        ValueError: damaged files, other data than the run began with, or settings that cannot be carried out.
        OSError: a file cannot be written; the last checkpoint is whole.
    """
    settings = settings_of(folder)
    finished = folder / RESULT
    if finished.is_file():
        return read_json(finished)
    ranks = ranks or Ranks()
    if settings.batch < ranks.world:
        raise ValueError(f"a batch of {settings.batch} texts cannot be split among {ranks.world} processes")
    goal = goal or settings.make_goal()
    feasible(settings, goal)
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads or threads)
    try:
        with _interrupts() as asked:
            run = _Run(folder, settings, goal, ranks)
            try:
                run.go(tell, asked, save_seconds, stop_at)
                result = run.finish(tell, asked)
            finally:
                run.close()
    finally:
        torch.set_num_threads(threads)
    if ranks.first:
        write_json(finished, result)
    return result


class _Run:
    """A model, its optimiser, and where the run stands."""

    def __init__(self, folder: Path, settings: Settings, goal: Goal, ranks: Ranks) -> None:
        self.folder, self.settings, self.goal, self.ranks = folder, settings, goal, ranks
        self.lines = Lines(folder / METRICS) if ranks.first else None  # before anything of another process is read
        try:
            self._prepare()
        except BaseException:
            if self.lines is not None:
                self.lines.close()
            raise

    def _prepare(self) -> None:
        folder, settings, goal, ranks = self.folder, self.settings, self.goal, self.ranks
        self.model = Transformer(settings.shape(goal.vocabulary, goal.classes), seed=settings.seed).to(settings.device)
        self.called = ranks.wrap(self.model)
        self.names = {p: n for n, p in self.model.named_parameters()}
        self.optimiser = optimiser_of(self.model, settings)
        self.step, self.seconds, self.held, self.held_steps = 0, 0.0, 0.0, 0
        self.checked: list[list[float]] = []
        keep = 0
        if (folder / CHECKPOINT).is_file():
            keep = self._restore(Checkpoint.load(folder / CHECKPOINT))
        if self.lines is not None:
            self.lines.keep(keep)
            sweep(folder)
        self.show, self.hide = board(folder, self.step, wanted=ranks.first)

    # ---- training ----

    def go(self, tell: Tell, asked: list[float], save_seconds: float, stop_at: int | None) -> None:
        """All steps that are left."""
        settings, saved, began = self.settings, time.monotonic(), time.monotonic()
        every = max(1, settings.steps // INTERVALS)
        check = max(1, math.ceil(settings.steps / settings.checks))
        since, since_steps = time.monotonic(), 0
        while self.step < settings.steps:
            self.held += step(self.called, self.optimiser, self.goal, self.settings, self.step, self.ranks)
            self.held_steps += 1
            since_steps += 1
            self.step += 1
            last = self.step == settings.steps
            if self.step % every == 0 or last:
                now = time.monotonic()
                speed = since_steps * settings.batch * settings.length / max(now - since, 1e-9)
                mean = float(self.ranks.sum(torch.tensor(self.held, dtype=torch.float64))) / self.held_steps
                line = {
                    "step": self.step,
                    "loss": mean,
                    "rate": settings.rate(self.step - 1),
                    "tokens_per_second": speed,
                }
                self.held, self.held_steps, since, since_steps = 0.0, 0, now, 0
                self._finite("loss", mean)
                self._say(line, tell)
            if self.step % check == 0 or last:
                self._check(tell)
                since, since_steps = time.monotonic(), 0
            stop = self.ranks.any(bool(asked) or self.step == stop_at)
            if stop or last or self.ranks.any(time.monotonic() - saved > save_seconds):
                self.seconds += time.monotonic() - began
                began = time.monotonic()
                self.save()
                saved = time.monotonic()
            if stop and not last:
                raise Stopped(self.step)

    def _check(self, tell: Tell) -> None:
        entry = self._measured("validation", (1,), self.settings.validation_tokens, lambda: None)[0]
        if "refused" in entry:
            raise ValueError(f"nothing was measured at step {self.step}: {entry['refused']}")
        value = entry["bits"] if self.goal.measure == "bits" else entry["accuracy"]
        self._finite("validation", value)
        self.checked.append([self.step, value])
        self._say({"step": self.step, f"validation_{self.goal.measure}": value}, tell)

    def _finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise ValueError(f"the {what} is {value} at step {self.step}; take a lower learning rate")

    def _say(self, line: dict[str, Any], tell: Tell) -> None:
        if self.lines is not None:
            self.lines.add(line)
            self.show(line)
            tell(line)

    # ---- checkpoints ----

    def save(self) -> None:
        """Write where the run stands."""
        tensors = {f"model.{n}": whole(p.detach()) for p, n in self.names.items()}
        for p, n in self.names.items():
            for key, value in self.optimiser.state.get(p, {}).items():
                tensors[f"optimiser.{key}.{n}"] = whole(value)
        held = float(self.ranks.sum(torch.tensor(self.held, dtype=torch.float64)))
        if self.lines is not None:
            about = {
                "step": self.step,
                "settings": self.settings.json(),
                "data": self.goal.fingerprint(),
                "metrics_bytes": self.lines.settle(),
                "held": [held, self.held_steps],
                "checked": self.checked,
                "seconds": self.seconds,
            }
            Checkpoint(tensors, about).save(self.folder / CHECKPOINT)
        self.ranks.wait()

    def _restore(self, checkpoint: Checkpoint) -> int:
        about = checkpoint.about
        path = self.folder / CHECKPOINT
        if replace(Settings.from_json(about["settings"]), threads=self.settings.threads) != self.settings:
            raise ValueError(f"{path} was made with other settings than {SETTINGS} beside it has")
        if about["data"] != self.goal.fingerprint():
            raise ValueError(f"the text is not the one that {path} was trained on; put it back, or begin a new run")
        wanted = {f"model.{n}" for n in self.names.values()}
        if wanted != {n for n in checkpoint.tensors if n.startswith("model.")}:
            raise ValueError(f"{path} holds other parameters than this model has")
        for p, n in self.names.items():
            put(p, checkpoint.tensors[f"model.{n}"])
            state: dict[str, Tensor] = {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                saved = checkpoint.tensors.get(f"optimiser.{key}.{n}")
                if saved is not None:
                    state[key] = saved.clone() if key == "step" else torch.zeros_like(p.detach())
                    put(state[key], saved)
            if state:
                self.optimiser.state[p] = state
        self.step, self.checked, self.seconds = about["step"], about["checked"], about["seconds"]
        self.held, self.held_steps = (about["held"][0] if self.ranks.first else 0.0), about["held"][1]
        return int(about["metrics_bytes"])

    # ---- the end ----

    def finish(self, tell: Tell, asked: list[float]) -> dict[str, Any]:
        """Measure on the test part; nothing is learned or chosen after this."""

        def pulse() -> None:
            if self.ranks.any(bool(asked)):
                raise Stopped(self.step)

        settings, began = self.settings, time.monotonic()
        test: list[dict[str, Any]] = []
        others: dict[str, list[dict[str, Any]]] = {}
        where: list[dict[str, Any]] = []
        if settings.test_tokens:
            if self.ranks.first:
                tell({"step": self.step, "testing": True})
            test = self._measured("test", settings.lengths, settings.test_tokens, pulse)
            for text in settings.extensions:
                others[text] = [
                    {**entry, "multiple": n} for n in settings.lengths for entry in self._extended(text, n, pulse)
                ]
            where = profile(self.model, self.goal, settings, "test")
        return {
            "schema": "ropewalk.train/1",
            "settings": settings.json(),
            "data": self.goal.fingerprint(),
            "measure": self.goal.measure,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "encoding_parameters": _in_encoding(self.model),
            "max_length": max_length(self.model),
            "validation": self.checked,
            "test": test,
            "extensions": others,
            "attention": where,
            "steps": self.step,
            "tokens": self.step * settings.batch * settings.length,
            "seconds": {"training": self.seconds, "testing": time.monotonic() - began},
            "processes": self.ranks.world,
            "threads": torch.get_num_threads(),
            "versions": {"ropewalk": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    def close(self) -> None:
        """No more lines."""
        self.hide()
        if self.lines is not None:
            self.lines.close()

    def _extended(self, text: str, multiple: int, pulse: Callable[[], None]) -> list[dict[str, Any]]:
        lengths, tokens = self.settings.lengths, self.settings.test_tokens
        with extended(self.model, text, multiple * self.settings.length):
            return self._measured("test", (multiple,), tokens, pulse, longest=max(lengths))

    def _measured(
        self, part: Part, lengths: tuple[int, ...], tokens: int, pulse: Callable[[], None], longest: int | None = None
    ) -> list[dict[str, Any]]:
        return measure(
            self.model, self.goal, self.settings, part, lengths=lengths, tokens=tokens, longest=longest, pulse=pulse
        )


def step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    goal: Goal,
    settings: Settings,
    number: int,
    ranks: Ranks | None = None,
) -> float:
    """One step of training; gives this rank's share of the mean loss, in nats."""
    batch = goal.draw(settings.seed, number, batch=settings.batch, length=settings.length, form=settings.chosen_form())
    answers = int((batch.targets != IGNORE).sum())
    lower = nullcontext() if settings.precision == "float32" else torch.autocast(settings.device, torch.bfloat16)
    with lower:
        nats, _, _ = loss(model, batch if ranks is None else ranks.share(batch))
    mean = nats.sum() / max(answers, 1)
    optimiser.zero_grad(set_to_none=True)
    (mean * (1 if ranks is None else ranks.world)).backward()  # type: ignore[no-untyped-call]  # ranks average theirs
    nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
    for group in optimiser.param_groups:
        group["lr"] = settings.rate(number)
    optimiser.step()
    return float(mean.detach())


def optimiser_of(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """AdamW. Decay is for matrices; not for the token table, nor for what belongs to an encoding."""
    kept = {id(p) for m in model.modules() if isinstance(m, (PositionalEncoding, nn.Embedding)) for p in m.parameters()}
    decay = [p for p in model.parameters() if p.dim() > 1 and id(p) not in kept]
    plain = [p for p in model.parameters() if p.dim() < 2 or id(p) in kept]
    groups = [{"params": decay, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95), fused=True)


def _in_encoding(model: nn.Module) -> int:
    found = {id(p): p.numel() for m in model.modules() if isinstance(m, PositionalEncoding) for p in m.parameters()}
    return sum(found.values())


@contextmanager
def _interrupts() -> Iterator[list[float]]:
    """While inside, Ctrl-C and a signal to end only ask: a step in progress ends first. A later Ctrl-C insists.

    What comes soon after the first is the same wish: a terminal tells all processes, and `torchrun` passes it on.
    """
    asked: list[float] = []

    def ask(number: int, frame: object) -> None:
        if asked and number == signal.SIGINT and time.monotonic() - asked[0] > SAME_SECONDS:
            raise KeyboardInterrupt
        asked.append(time.monotonic())

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run so far; a last line that is not whole yet is left out."""
    path = folder / METRICS
    if not path.is_file():
        return []
    whole_lines = path.read_bytes().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole_lines.splitlines()]
