"""The metrics of a run for TensorBoard, where that is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

Show = Callable[[dict[str, Any]], None]


def board(folder: Path, step: int, *, wanted: bool = True) -> tuple[Show, Callable[[], None]]:
    """A function that shows a line of metrics, and one that ends it; both do nothing without TensorBoard.

    Args:
        folder: of the run; events go to its `tensorboard`.
        step: where the run stands; what was shown of later steps is taken back.
        wanted: False for ranks that do not write.
    """
    if not wanted or importlib.util.find_spec("tensorboard") is None:
        return (lambda line: None), (lambda: None)
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def show(line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name != "step":
                writer.add_scalar(name, value, line["step"])

    return show, writer.close
