"""A safetensors file written tensor by tensor, which has its name only when it is whole and right.

The `safetensors` package writes what is in memory all at once; here one tensor is there at a time.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""What the format calls the dtypes that are written."""


def size_of(shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, torch.dtype]) -> int:
    """Bytes of all tensors together."""
    return sum(math.prod(shape) * dtypes[name].itemsize for name, shape in shapes.items())


def write(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, torch.dtype],
    tensor: Callable[[str], Tensor],
    metadata: Mapping[str, str],
    done: Callable[[int, str], object] = lambda size, name: None,
) -> None:
    """Write a new file, to the disk itself.

    Args:
        path: which must not exist.
        shapes: of all tensors, by name.
        dtypes: of each, of `NAMES`.
        tensor: gives one of them, when its turn has come.
        metadata: for the header.
        done: told the bytes and the name of each.

    Raises:
        OSError: the system refuses; what was written so far stays there.
        ValueError: a tensor of another shape than was said.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    order = sorted(shapes, key=lambda name: -dtypes[name].itemsize)  # so that each begins at a multiple of its item
    end = 0
    for name in order:
        begin, end = end, end + math.prod(shapes[name]) * dtypes[name].itemsize
        header[name] = {"dtype": NAMES[dtypes[name]], "shape": list(shapes[name]), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            one = tensor(name)
            if tuple(one.shape) != tuple(shapes[name]):
                raise ValueError(f"{name} has the shape {tuple(one.shape)}, its header says {tuple(shapes[name])}")
            bytes_ = one.to(dtypes[name]).contiguous().reshape(-1).view(torch.uint8)
            file.write(bytes_.numpy().data)
            done(bytes_.numel(), name)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_or_not_at_all(target: Path, *, force: bool = False) -> Iterator[Path]:
    """Gives a path beside `target` to write to; at the end of the block that file gets the name, if nothing was raised.

    Whatever is raised, an interrupt too, the file is removed. A process that is killed leaves one that ends in `.part`.

    Args:
        target: the name.
        force: whether it may take the place of a file.

    Raises:
        FileExistsError: there is one, perhaps only since the block began.
    """
    if not force and os.path.lexists(target):
        raise FileExistsError(f"{target} exists")
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        _name(part, target, force=force)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    _settle(target.parent)


def _name(part: Path, target: Path, *, force: bool) -> None:
    if not force:
        try:
            os.link(part, target)  # unlike a change of name, it never takes the place of a file
        except FileExistsError:
            raise FileExistsError(f"{target} exists") from None
        except OSError:  # a file system without links
            if os.path.lexists(target):
                raise FileExistsError(f"{target} exists") from None
        else:
            return
    part.replace(target)


def _settle(folder: Path) -> None:
    """Have the new name on the disk, too; on systems where a folder cannot be opened that is their own business."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
