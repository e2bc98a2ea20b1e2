"""The model: every form with every encoding, what may not be seen, and the size of its embeddings."""

from __future__ import annotations

import math

import pytest
import torch

from ropewalk import ENCODINGS
from ropewalk.lab.settings import Settings
from ropewalk.lab.transformer import Shape, Transformer
from ropewalk.protocol import PositionalEncoding

NAMES = [cls.name for cls in ENCODINGS]
FORMS = ("decoder", "encoder", "encoder-decoder")
SMALL = {"vocabulary": 13, "dim": 16, "heads": 4, "layers": 2, "length": 12}


def tokens(n: int = 7, batch: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randint(13, (batch, n), generator=torch.Generator().manual_seed(seed))


def outputs(model: Transformer, x: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
    with torch.no_grad():
        return model(x, source)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_in_every_form_learns_something(name: str, form: str) -> None:
    model = Transformer(Shape(**SMALL, form=form, encoding=name))
    x, source = tokens(), tokens(9) if form == "encoder-decoder" else None
    logits = model(x, source)
    assert logits.shape == (2, 7, 13)
    logits.square().mean().backward()
    for parameter, p in model.named_parameters():
        assert p.grad is not None, parameter
        assert p.grad.isfinite().all(), parameter
    moved = [n for n, p in model.named_parameters() if p.grad.any()]
    assert len(moved) >= len(list(model.parameters())) - 4, "KERPLE and CoPE may leave some at rest for so short a text"


@pytest.mark.parametrize("name", NAMES)
def test_a_decoder_sees_nothing_of_the_future(name: str) -> None:
    model = Transformer(Shape(**SMALL, encoding=name))
    x = tokens()
    later = x.clone()
    later[:, 4:] = (later[:, 4:] + 1) % 13
    torch.testing.assert_close(outputs(model, x)[:, :4], outputs(model, later)[:, :4])
    assert (outputs(model, x)[:, 4:] - outputs(model, later)[:, 4:]).abs().max() > 1e-3


@pytest.mark.parametrize("form", ["encoder", "encoder-decoder"])
def test_an_encoder_sees_everything(form: str) -> None:
    model = Transformer(Shape(**SMALL, form=form))
    x, source = tokens(), tokens(9)
    other = source.clone()
    other[:, -1] = (other[:, -1] + 1) % 13
    if form == "encoder":
        x, other_x = source, other
        changed = outputs(model, x)[:, 0] - outputs(model, other_x)[:, 0]
    else:
        changed = outputs(model, x, source)[:, 0] - outputs(model, x, other)[:, 0]
    assert changed.abs().max() > 1e-4


def test_an_encoder_without_position_is_blind_to_order_and_a_decoder_is_not() -> None:
    x = tokens(10, 1)
    shuffled = x[:, [*torch.randperm(9, generator=torch.Generator().manual_seed(1)).tolist(), 9]]

    def change(name: str, form: str) -> float:
        model = Transformer(Shape(**SMALL, form=form, encoding=name))
        return float((outputs(model, x)[:, -1] - outputs(model, shuffled)[:, -1]).abs().max())

    assert change("nope", "encoder") < 1e-5
    assert change("nope", "decoder") > 1e-3
    assert change("rope", "encoder") > 1e-3


def test_all_encodings_begin_with_the_same_weights() -> None:
    models = {name: Transformer(Shape(**SMALL, encoding=name), seed=5) for name in NAMES}
    nope = dict(models["nope"].named_parameters())
    for model in models.values():
        found = {n: p for n, p in model.named_parameters() if ".encoding." not in n}
        assert found.keys() == nope.keys()
        assert all(torch.equal(found[n], nope[n]) for n in nope)
    again = Transformer(Shape(**SMALL, encoding="shaw"), seed=5)
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), models["shaw"].parameters(), strict=True))
    other = Transformer(Shape(**SMALL, encoding="shaw"), seed=6)
    assert not any(
        p.std() > 0 and torch.equal(p, q) for p, q in zip(other.parameters(), again.parameters(), strict=True)
    )


def test_making_a_model_leaves_the_random_numbers_of_others_alone() -> None:
    before = torch.get_rng_state()
    Transformer(Shape(**SMALL, encoding="t5"))
    # constructors of torch draw once, which nobody counts on; the seed they are then drawn from is the model's own
    torch.set_rng_state(before)
    first = Transformer(Shape(**SMALL, encoding="t5"))
    torch.manual_seed(99)
    second = Transformer(Shape(**SMALL, encoding="t5"))
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_the_embeddings_have_the_size_of_the_papers(name: str) -> None:
    """§3.4: times √dim. Then a token has about unit size a channel, beside sinusoids of 1/√2."""
    shape = Shape(vocabulary=4000, dim=64, heads=4, layers=1, length=128, encoding=name)
    model = Transformer(shape)
    seen = {}
    model.decoder.blocks[0].register_forward_pre_hook(lambda module, args: seen.update(x=args[0]))
    x = torch.randint(4000, (8, 128), generator=torch.Generator().manual_seed(0))
    outputs(model, x)
    embedded = model.tokens(x).detach()
    assert embedded.std() == pytest.approx(1 / math.sqrt(64), rel=0.03)
    added = seen["x"] - embedded * math.sqrt(64)
    size = float(added.square().mean().sqrt())
    if name == "sinusoidal":
        assert size == pytest.approx(1 / math.sqrt(2), rel=1e-3)
        positions = torch.arange(128)[:, None] / 10_000 ** (torch.arange(0, 64, 2) / 64)
        torch.testing.assert_close(added[0, :, 0::2], positions.sin(), atol=2e-5, rtol=0)
    elif name == "learned":
        assert size == pytest.approx(0.02, rel=0.1)
    else:
        assert size == 0


def test_encodings_with_tables_reach_as_far_as_training() -> None:
    for name, longest in (("learned", 12), ("relative_bias", 12), ("rope", None)):
        encoding = Shape(**SMALL, encoding=name).make_encoding(causal=True)
        assert encoding.max_length == longest
    assert Shape(**SMALL, encoding="learned", options={"length": 30}).make_encoding(causal=True).max_length == 30
    assert Shape(**SMALL, encoding="relative_bias", options={"clip": 4}).make_encoding(causal=True).clip == 4


def test_decoders_get_the_one_sided_form() -> None:
    for name in ("alibi", "t5", "fire", "cope"):
        one, other = (Shape(**SMALL, encoding=name).make_encoding(causal=c) for c in (True, False))
        assert (one.bidirectional, other.bidirectional) == (False, True)
    both = Transformer(Shape(**SMALL, encoding="alibi", form="encoder-decoder"))
    assert (both.encoder.encoding.bidirectional, both.decoder.encoding.bidirectional) == (True, False)


def test_layers_share_the_table_of_t5_only() -> None:
    def encodings(name: str) -> int:
        made = Transformer(Shape(**SMALL, encoding=name)).modules()
        return len([m for m in made if isinstance(m, PositionalEncoding) and type(m) is not PositionalEncoding])

    assert {name: encodings(name) for name in ("t5", "rope", "learned", "alibi")} == dict.fromkeys(
        ("t5", "rope", "learned", "alibi"), 1
    )
    assert {name: encodings(name) for name in ("shaw", "kerple", "fire", "cope")} == dict.fromkeys(
        ("shaw", "kerple", "fire", "cope"), 2
    )


def test_logits_of_some_tokens_only() -> None:
    model, x = Transformer(Shape(**SMALL)), tokens()
    at = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.4
    torch.testing.assert_close(model(x, at=at), model(x)[at])


def test_classes_of_whole_texts() -> None:
    model = Transformer(Shape(**SMALL, form="encoder", classes=3))
    assert model(tokens()).shape == (2, 3)


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="5 heads do not share 16 channels evenly"):
        Transformer(Shape(**{**SMALL, "heads": 5}))
    for wrong, message in (
        ({"goal": "cusal"}, r"there is no goal 'cusal', did you mean 'causal'\?; goals: causal, masked"),
        ({"goal": "masked", "form": "decoder"}, "masked is for encoder, got 'decoder'"),
        ({"encoding": "rop"}, "no encoding is called 'rop', did you mean 'rope'"),
        ({"options": {"bse": 3}}, "RoPE has no option 'bse', did you mean 'base'"),
        ({"options": {"extension": "yarn:4"}}, "extension is no option of training"),
        ({"steps": 0}, "steps is a positive whole number, got 0"),
        ({"hidden": 1.5}, "hidden is a positive whole number, got 1.5"),
        ({"learning_rate": float("nan")}, "learning_rate is above 0, got nan"),
        ({"weight_decay": -1}, "weight_decay is 0 or more, got -1"),
        ({"seed": -1}, "seed is a whole number, 0 or more, got -1"),
        ({"precision": "float16"}, "precision is one of float32, bfloat16; got 'float16'"),
        ({"device": "tpu"}, "device is one of cpu, cuda; got 'tpu'"),
        ({"lengths": [0]}, r"lengths are positive whole multiples of the trained length, got \[0\]"),
        ({"encoding": "alibi", "extensions": ["yarn:4"]}, "context extensions are for rope, not for alibi"),
    ):
        with pytest.raises(ValueError, match=message):
            Settings(**wrong)
    with pytest.raises(ValueError, match=r"there is no setting 'lenght', did you mean 'length'\?"):
        Settings.from_json({"lenght": 3})
    given = Settings(encoding="T5", options={"buckets": 8}, corpus="pydoc", extensions=())
    assert Settings.from_json(given.json()) == given
    assert given.encoding == "t5"
