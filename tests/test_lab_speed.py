"""The measurement of speed: that it compares like with like. How fast things are is for a machine to say."""

from __future__ import annotations

import json

import torch
from click.testing import CliRunner

from ropewalk.cli import main
from ropewalk.lab.settings import Settings
from ropewalk.lab.speed import PLAIN, plain, speeds
from ropewalk.lab.transformer import Transformer

SMALL = {"dim": 16, "heads": 2, "layers": 2, "length": 40, "batch": 2, "threads": 1}


def test_the_plain_model_computes_what_the_other_does() -> None:
    shape = Settings(**SMALL, encoding="nope").shape(vocabulary=20)
    x = torch.randint(20, (3, 40), generator=torch.Generator().manual_seed(0))
    ours, bare = Transformer(shape), plain(Transformer(shape))
    torch.testing.assert_close(ours(x), bare(x))
    ours(x).square().sum().backward()
    bare(x).square().sum().backward()
    for p, q in zip(ours.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-3)
    turned = plain(Transformer(Settings(**SMALL).shape(vocabulary=20)))
    torch.testing.assert_close(turned(x), bare(x)), "no rotation, whatever the encoding"


def test_every_model_is_timed_in_every_round() -> None:
    for clock in ("wall", "cpu"):
        found = speeds(Settings(**SMALL), ["rope", "shaw"], rounds=2, steps=1, clock=clock)
        assert [s.name for s in found] == [PLAIN, "rope", "shaw"]
        assert found[0].ratio == 1
        assert all(s.tokens_per_second > 0 and s.ratio > 0 for s in found)


def test_the_command_prints_ratios() -> None:
    args = ["lab", "speed", "--encodings", "rope", "--length", "16", "--batch", "2", "--rounds", "1"]
    ran = CliRunner().invoke(main, args, env={"LC_ALL": "C.UTF-8"})
    assert ran.exit_code == 0, ran.output
    assert "plain attention" in ran.stdout
    found = json.loads(CliRunner().invoke(main, [*args, "--json"]).stdout)
    assert found["schema"] == "ropewalk.speed/1"
    assert found["machine"]
    assert [s["name"] for s in found["speeds"]] == ["plain", "rope"]
