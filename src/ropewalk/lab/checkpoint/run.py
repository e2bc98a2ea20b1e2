"""Task after task, each kept as soon as it is done; what is kept from before is not done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ropewalk.lab.checkpoint.extend import Setting
from ropewalk.lab.checkpoint.llama import Llama
from ropewalk.lab.checkpoint.store import Store
from ropewalk.lab.checkpoint.trials import Trial


class AnyTask(Protocol):
    """One extension and one text, of either experiment."""

    @property
    def trial(self) -> Trial:
        """The extension."""

    def key(self, setting: Setting) -> dict[str, Any]:
        """Everything that the result depends on."""

    def run(self, model: Llama, setting: Setting, step: Callable[[float], None] | None) -> dict[str, Any]:
        """The result; `step` is told of each share of the work, which add up to 1."""


T = TypeVar("T", bound=AnyTask)


def waiting(setting: Setting, tasks: Sequence[T], store: Store) -> list[T]:
    """The tasks that nothing is kept of."""
    return [task for task in tasks if store.get(task.key(setting)) is None]


def run(
    setting: Setting, tasks: Sequence[T], store: Store, step: Callable[[T, float], None] | None = None
) -> Iterator[tuple[T, dict[str, Any]]]:
    """Every task with its result, in order.

    The weights are read when the first task needs them.

    Raises:
        OSError: a result cannot be kept; those before it are.
    """
    model: Llama | None = None
    for task in tasks:
        key = task.key(setting)
        result = store.get(key)
        if result is None:
            if model is None:
                model = setting.checkpoint.model(dtype=setting.dtype)
            told = None if step is None else (lambda share, task=task: step(task, share))
            result = task.run(model, setting, told)
            store.put(key, result)
        yield task, result
