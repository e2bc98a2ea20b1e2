"""Positions and their builders."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk import Positions, RoPE, attend, cos_sin, geometric
from ropewalk.attention.masks import Mask, visible


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=9), st.sampled_from(["int8", "int32", "int64"]))
def test_ids_are_kept_as_int64(ids: list[int], kind: str) -> None:
    dtype = getattr(torch, kind)
    tensor = torch.tensor(ids).to(dtype)
    pos = Positions(tensor)
    assert pos.ids.dtype == torch.int64
    assert pos.ids.tolist() == tensor.tolist()
    assert (len(pos), pos.shape, pos.axes) == (len(ids), (len(ids),), 1)
    assert pos.span() == (min(tensor.tolist()), max(tensor.tolist()))
    assert Positions.of(pos) is pos
    assert Positions.of(ids).ids.tolist() == ids


def test_shapes() -> None:
    assert Positions([[0, 1], [5, 6]]).shape == (2, 2)
    three = Positions(torch.zeros(3, 2, 5, dtype=torch.int64))
    assert (three.axes, three.shape, len(three)) == (3, (2, 5), 5)
    assert len(Positions([])) == 0
    assert Positions([]).span() == (0, -1)
    assert Positions(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0)


@given(st.integers(0, 40), st.integers(-100, 2**40))
def test_arange(n: int, offset: int) -> None:
    assert Positions.arange(n, offset=offset).ids.tolist() == list(range(offset, offset + n))
    assert Positions.arange(n, offset=torch.tensor(offset)).ids.tolist() == list(range(offset, offset + n))
    rows = Positions.arange(n, offset=torch.tensor([offset, 3]))
    assert rows.ids.tolist() == [list(range(o, o + n)) for o in (offset, 3)]


@given(st.lists(st.integers(0, 6), max_size=7))
def test_packed(lengths: list[int]) -> None:
    bounds = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    for given_as in (bounds, torch.tensor(bounds), torch.tensor(bounds, dtype=torch.int32)):
        pos = Positions.packed(given_as)
        assert pos.ids.tolist() == [p for n in lengths for p in range(n)]
        assert pos.documents is not None
        assert pos.documents.tolist() == [d for d, n in enumerate(lengths) for _ in range(n)]


@given(st.integers(1, 8), st.lists(st.integers(0, 8), min_size=1, max_size=5))
def test_left_padded(length: int, real: list[int]) -> None:
    real = [min(n, length) for n in real]
    mask = torch.tensor([[0] * (length - n) + [1] * n for n in real])
    for given_as in (mask, mask.bool(), mask.int(), mask.float()):
        pos = Positions.left_padded(given_as)
        assert pos.ids.tolist() == [[0] * (length - n) + list(range(n)) for n in real]
        assert pos.valid is not None
        assert torch.equal(pos.valid, mask.bool())
        assert pos.after().ids.tolist() == [[n] for n in real]
        assert pos.after(2).ids.tolist() == [[n, n + 1] for n in real]


def test_after_counts_from_the_highest_position_not_from_the_rows_kept() -> None:
    assert Positions([6, 7, 8, 9]).after().ids.tolist() == [10]  # four rows kept of ten tokens
    assert Positions([9, 0, 3]).after(2).ids.tolist() == [10, 11]
    assert Positions([[0, 1], [7, 8]]).after().ids.tolist() == [[2], [9]]
    valid = torch.tensor([[True, True, False], [True, True, True]])  # padded on the right
    assert Positions([[0, 1, 2], [0, 1, 2]], valid=valid).after().ids.tolist() == [[2], [3]]


def test_slices_keep_documents_and_padding() -> None:
    pos = Positions.packed([0, 2, 5])[1:4]
    assert pos.ids.tolist() == [1, 0, 1]
    assert pos.documents is not None
    assert pos.documents.tolist() == [0, 1, 1]
    padded = Positions.left_padded(torch.tensor([[0, 1, 1], [1, 1, 1]]))[:2]
    assert padded.valid is not None
    assert padded.valid.tolist() == [[False, True], [True, True]]
    assert Positions([3, 4, 5])[-1:].ids.tolist() == [5]


def test_a_slice_remembers_nothing_of_the_whole() -> None:
    whole = Positions.arange(6)
    cos_sin(whole, geometric(8))
    assert torch.equal(cos_sin(whole[2:4], geometric(8))[0], cos_sin([2, 3], geometric(8))[0])


def test_to_another_device() -> None:
    pos = Positions.packed([0, 2, 5])
    assert pos.to("cpu") is pos
    moved = Positions([[1, 2]], documents=torch.tensor([0, 1]), valid=torch.tensor([[True, False]])).to("meta")
    assert moved.ids.device.type == moved.device.type == "meta"
    assert moved.documents is not None
    assert moved.valid is not None
    assert moved.documents.device.type == moved.valid.device.type == "meta"


def test_documents_and_padding_of_a_row_serve_a_batch() -> None:
    pos = Positions(torch.arange(4).expand(3, 4), documents=torch.tensor([0, 0, 1, 1]))
    seen = visible(pos, pos, Mask(causal=False))
    assert seen.shape == (3, 1, 4, 4)
    assert seen[0, 0].tolist() == [[True, True, False, False]] * 2 + [[False, False, True, True]] * 2


def test_padding_may_be_given_as_tokenizers_give_it() -> None:
    """Ones and zeros, as the message about right padding suggests."""
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    ids = torch.arange(3).expand(2, 3)
    q, k, v = torch.randn(3, 2, 1, 3, 8)
    wanted = attend(q, k, v, RoPE(8), Positions(ids, valid=mask.bool()))
    assert torch.equal(attend(q, k, v, RoPE(8), Positions(ids, valid=mask)), wanted)
    assert torch.equal(wanted[0, :, 2], torch.zeros(1, 8))
    assert "padding=1" in repr(Positions(ids, valid=mask))


def test_visible() -> None:
    seen = visible(Positions([0, 2]), Positions([0, 1, 2, 3]), Mask(causal=True))
    assert seen.tolist() == [[True, False, False, False], [True, True, True, False]]
    assert bool(visible(Positions([0, 2]), Positions([0, 1, 2, 3]), Mask(causal=False)).all())
    padded = Positions([0, 1], valid=torch.tensor([False, True]))
    assert visible(padded, padded, Mask(causal=False)).tolist() == [[False, False], [False, True]]


def test_repr() -> None:
    assert repr(Positions([3, 5, 20])) == "Positions([3, 5, 20])"
    assert repr(Positions.arange(100)) == "Positions(shape=(100,))"
    assert repr(Positions.packed([0, 1, 3])) == "Positions([0, 0, 1], documents=[0, 1, 1])"
    assert repr(Positions.left_padded(torch.tensor([[0, 1]]))) == "Positions([[0, 0]], padding=1)"


def test_remember_makes_once() -> None:
    pos, made = Positions([1, 2]), []

    def make() -> int:
        made.append(1)
        return len(made)

    assert [pos.remember("key", make), pos.remember("key", make), pos.remember("other", make)] == [1, 1, 2]
    pos.ids.mul_(2)
    assert pos.remember("key", make) == 3


@pytest.mark.parametrize(
    "bad", [[0.0, 1.0], torch.zeros(2, 16, 10, 4), [True, False], torch.zeros(3, dtype=torch.cfloat)]
)
def test_what_is_not_counted_is_no_position(bad: object) -> None:
    with pytest.raises(TypeError, match="positions are integers"):
        Positions(bad)
