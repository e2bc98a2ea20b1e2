"""Walks every configuration class of the installed transformers, and compares with what its own modules compute."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import typing
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ropewalk import RoPE, from_config
from ropewalk.plans import LayerPlan, RotaryPlan
from ropewalk.positions import Positions
from ropewalk.readers.families import FAMILIES, REFUSED

transformers = pytest.importorskip("transformers", minversion="5.0", reason="compares with transformers' own modules")
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own, on import

PACKAGE = Path(transformers.__file__).parent / "models"

STATED: dict[str, dict[str, Any]] = {
    # Classes whose defaults do not rotate.
    "EsmConfig": {"position_embedding_type": "rotary"},
    "GraniteMoeHybridConfig": {
        "position_embedding_type": "rope",
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "Zamba2Config": {"use_mem_rope": True},
    # Classes whose defaults their own modules cannot compute with: no parameters, heads of odd width, sections that do
    # not add up to the pairs.
    "CohereCompassTextConfig": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [24, 20, 20]}
        }
    },
    "Glm4MoeConfig": {"head_dim": 128},
    "Glm4vMoeTextConfig": {"head_dim": 128},
    "Glm4vTextConfig": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "GlmImageTextConfig": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    },
    "Qwen3OmniMoeTextConfig": {"head_dim": 128},
    "Qwen3OmniMoeTalkerTextConfig": {"head_dim": 128},
    "Qwen3OmniMoeConfig": {"thinker_config": {"text_config": {"head_dim": 128}}},
    "MiniMaxM3VLTextConfig": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5}
    },
    "MiniMaxM3VLConfig": {
        "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5}}
    },
    "Qwen4ExpTextConfig": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    },
}
ROTARY = "Rotary|R[Oo]PE|RoFormerSinusoidal"
NOT_OF_TOKENS = {
    "MusicFlamingoRotaryEmbedding": "by seconds of audio; the text part is Qwen2's",
    "Qwen3OmniMoeRotaryEmbedding": "of the vocoder",
}
"""Modules that take a whole configuration and turn something else than the text."""


def _modules(kind: str, mentions: str = "") -> Iterator[Any]:
    for path in sorted(PACKAGE.glob(f"*/{kind}_*.py")):
        if not mentions or re.search(mentions, path.read_text(encoding="utf-8")):
            yield importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")


def _own(module: Any, kind: type) -> list[Any]:
    return [
        c
        for c in vars(module).values()
        if inspect.isclass(c) and issubclass(c, kind) and c.__module__ == module.__name__
    ]


def _package(cls: type) -> str:
    return cls.__module__.split(".")[2]


@lru_cache
def rotating() -> dict[type, tuple[list[type], bool]]:
    """Every configuration class that rotates: its rotary modules, and whether they name it as theirs."""
    logging.disable(logging.CRITICAL)
    named: dict[type, list[type]] = {}
    packages: dict[str, list[type]] = {}
    for module in _modules("modeling", "[Rr]otary|R[Oo]PE"):
        for rotary in (c for c in _own(module, nn.Module) if re.search(ROTARY, c.__name__)):
            packages.setdefault(_package(rotary), []).append(rotary)
            for name, parameter in inspect.signature(rotary.__init__).parameters.items():
                wanted = parameter.annotation if "config" in name else None
                wanted = getattr(module, wanted, None) if isinstance(wanted, str) else wanted
                for config in typing.get_args(wanted) or [wanted]:
                    if inspect.isclass(config):
                        named.setdefault(config, []).append(rotary)
    mapped = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_MAPPING_NAMES
    found: dict[type, tuple[list[type], bool]] = {}
    for module in _modules("configuration"):
        for config in _own(module, transformers.PreTrainedConfig):
            if config in named:
                found[config] = (named[config], True)
                continue
            try:
                stated = config().to_dict()
            except Exception:  # a class without usable defaults, and without a rotary module
                continue
            if any(re.search("rope|rotary", k) and v is not None for k, v in stated.items()):
                model = mapped.get(config.model_type)
                model = model if isinstance(model, str) else (model or [""])[0]
                home = (
                    _package(config)
                    if _package(config) in packages or not model
                    else _package(getattr(transformers, model))
                )
                found[config] = (packages.get(home, []), False)
    return found


def _config(cls: type) -> Any:
    return cls(**STATED.get(cls.__name__, {}))


def _part(config: Any, plan: RotaryPlan) -> Any:
    """The part of a configuration that was read, and may be a dict there."""
    told = [advice.en for advice in plan.warnings if advice.code == "part-read"]
    path = re.search(r"its text part, ([\w.]+),", told[-1]) if told else None
    for name in path.group(1).split(".") if path else ():
        config = getattr(config, name)
    return config


def _made(module: type[nn.Module], config: Any) -> nn.Module:
    if issubclass(module, nn.Embedding):
        return module(config.max_position_embeddings, config.hidden_size // config.num_attention_heads)
    return module(config)


def _frequencies(module: nn.Module) -> dict[str, tuple[Tensor, float]]:
    """By label of the type of layer ("" for all): frequencies and what multiplies cos and sin."""
    if "GPTJ" in type(module).__name__ or "CodeGen" in type(module).__name__:
        sin, cos = module.embed_positions[1].double().chunk(2)
        return {"": (torch.atan2(sin, cos), 1.0)}
    if isinstance(module, nn.Embedding):
        sin, cos = module.create_weight()[1].double().chunk(2)
        return {"": (torch.atan2(sin, cos), 1.0)}
    found = {}
    for name, value in [*module.named_buffers(), *vars(module).items()]:
        if isinstance(value, Tensor) and name.endswith("inv_freq") and "original" not in name:
            label = name.removesuffix("inv_freq").rstrip("_")
            scale = getattr(module, f"{label}_attention_scaling" if label else "attention_scaling", 1.0)
            found[label] = (value.reshape(-1), scale)
    return found


def _same(layer: LayerPlan, frequencies: Tensor, scale: float) -> bool:
    spectrum = layer.spectrum(precision="float32")
    assert spectrum is not None
    mine = torch.tensor(spectrum.radians, dtype=torch.float64)
    theirs = frequencies.double()
    if layer.bands is not None and "H" in layer.bands.string()[:1]:  # Ernie sorts by axis and undoes it in forward
        theirs = theirs.sort(descending=True).values
    return (
        mine.shape == theirs.shape
        and torch.allclose(mine, theirs, rtol=2.0**-22, atol=0)
        and abs(scale - spectrum.attention_factor) < 1e-6
    )


def _agree(plan: RotaryPlan, module: nn.Module) -> bool:
    """Whether every rotating layer has the module's frequencies, and the module none that no layer has."""
    theirs = _frequencies(module)
    layers = [layer for _, layer in plan.groups() if layer.kind == "rope"]
    if not theirs or not layers:
        return False
    for layer in layers:
        label = layer.label if layer.label in theirs else ""
        if "main" in theirs:
            label = "main" if layer.label == "sliding_attention" else "compress"
        if label not in theirs or not _same(layer, *theirs[label]):
            return False
    return True


def test_every_class_that_rotates_is_read_equal_or_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    equal, refused, still, wrong = [], [], [], []
    for cls, (modules, named) in rotating().items():
        what = f"{cls.__name__} ({cls.model_type})"
        try:
            config = _config(cls)
            before = config.to_dict()
            plan = from_config(config.to_dict())
        except ValueError as error:
            by_name = cls.model_type in REFUSED and REFUSED[cls.model_type] in str(error)
            (refused if by_name or cls.__name__ == "EsmFold2AtomEncoderConfig" else wrong).append(f"{what}: {error}")
            continue
        assert config.to_dict() == before
        if not any(layer.kind == "rope" for layer in plan.layers):
            still.append(what)
            continue
        verdicts = []
        for module in modules:
            if module.__name__ not in NOT_OF_TOKENS:
                try:
                    verdicts.append(_agree(plan, _made(module, _part(config, plan))))
                except Exception as error:  # of a module for another part
                    verdicts.append(False)
                    if named:
                        wrong.append(f"{what}: {module.__name__}: {error!r:.200}")
        read = all(verdicts) if named else any(verdicts)
        (equal if read and modules else wrong).append(what)
    with capsys.disabled():
        print(
            f"\ntransformers {transformers.__version__}: {len(equal)} read equal, {len(refused)} refused by name, ",
            end="",
        )
        print(f"{len(still)} do not rotate: {', '.join(still)}")
    assert not wrong, "\n".join(wrong)
    assert len(equal) > 150


FUNCTIONS = (
    "apply_rotary_pos_emb_interleave",  # where both exist, the configuration decides, and its default is this
    "apply_multimodal_rotary_pos_emb",
    "apply_rotary_pos_emb",
    "apply_rotary_emb",
)


def _turned(rotary: nn.Module, tables: Any, q: Tensor, k: Tensor) -> Iterator[Tensor]:
    """Scores of q and k, `(batch, heads, tokens, channels)`, turned by each function beside a module that fits."""
    module = importlib.import_module(type(rotary).__module__)
    if isinstance(rotary, nn.Embedding):
        turn = module.RoFormerSelfAttention.apply_rotary_position_embeddings
        turned = turn(tables, q, k)
        yield turned[0].double() @ turned[1].double().mT
        return
    tables = tables if isinstance(tables, tuple) else (tables,)
    for function in (getattr(module, name) for name in FUNCTIONS if hasattr(module, name)):
        wanted = list(inspect.signature(function).parameters)
        for one, two in ((q, k), (q.transpose(1, 2), k.transpose(1, 2))):  # some have tokens before heads
            try:
                both = function(one, two, *tables) if wanted[1] not in ("cos", "sin") else None
                turned = both or (function(one, *tables), function(two, *tables))
            except (RuntimeError, TypeError):  # for another width, or of another part
                continue
            if one is not q:
                turned = tuple(t.transpose(1, 2) for t in turned)
            if turned[0].shape == q.shape:
                yield turned[0].double() @ turned[1].double().mT


def _layouts(layer: LayerPlan, rotary: nn.Module) -> list[str]:
    """The layouts with which our rotation gives the scores that transformers' functions give."""
    made = torch.Generator().manual_seed(0)
    axes = 1 if layer.bands is None else 3
    ids = torch.randint(0, 50, (axes, 1, 6) if axes > 1 else (1, 6), generator=made)
    label = layer.label
    if "main" in _frequencies(rotary):
        label = "main" if layer.label == "sliding_attention" else "compress"
    for width in dict.fromkeys((layer.head_dim, layer.rotary_dim)):
        q, k = (torch.randn(1, 2, 6, width, generator=made) for _ in range(2))
        if isinstance(rotary, nn.Embedding):
            tables = rotary.create_weight()[ids]
        elif label and "layer_type" in inspect.signature(rotary.forward).parameters:
            tables = rotary(q, ids, layer_type=label)
        else:
            tables = rotary(q, ids)
        for scores in _turned(rotary, tables, q, k):
            agree = []
            for layout in ("half", "interleaved"):
                rope = RoPE(
                    width,
                    base=layer.base,
                    layout=layout,
                    rotary_dim=layer.rotary_dim,
                    place=layer.place,
                    extension=layer.extension,
                    at_length=layer.default_length,
                    bands=layer.bands,
                )
                mine = rope.query(q.double(), Positions(ids)) @ rope.key(k.double(), Positions(ids)).mT
                if torch.allclose(mine, scores, atol=3e-3, rtol=1e-3):
                    agree.append(layout)
            if agree:
                return agree
    return []


def test_layouts_places_and_bands_give_the_scores_of_transformers_own_functions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    proved, wrong = 0, []
    for cls, (modules, _) in rotating().items():
        try:
            config = _config(cls)
            plan = from_config(config.to_dict())
        except ValueError:
            continue
        layers = [layer for _, layer in plan.groups() if layer.kind == "rope"]
        found: list[str] = []
        for module in modules:
            if layers and not found and module.__name__ not in NOT_OF_TOKENS:
                try:
                    rotary = _made(module, _part(config, plan))
                except Exception:  # of another part of the model
                    continue
                if _agree(plan, rotary):
                    found = _layouts(layers[0], rotary)
        if layers and {m.__name__ for m in modules} - NOT_OF_TOKENS.keys():
            proved += found == [layers[0].layout]
            if found != [layers[0].layout]:
                wrong.append(f"{cls.__name__} ({plan.model_type}): {layers[0].layout} in the table, measured {found}")
    with capsys.disabled():
        print(f"\nlayout, place and bands agree in {proved} classes")
    assert not wrong, "\n".join(wrong)
    assert proved > 150


def test_the_softmax_is_sharpened_in_the_families_whose_code_does_it() -> None:
    sharpened = {
        path.parent.name
        for path in PACKAGE.glob("*/modeling_*.py")
        if "yarn_apply_mscale(config" in path.read_text(encoding="utf-8")
    }
    assert len(sharpened) > 5
    wrong = []
    for cls, (modules, _) in rotating().items():
        family = FAMILIES.get(cls.model_type)
        if family is not None and family.mla and modules and family.rotates != "none":
            if family.softmax != (_package(modules[0]) in sharpened):
                wrong.append(f"{cls.model_type}: {family.softmax} in the table")
        elif family is not None and family.softmax and not family.mla:
            wrong.append(cls.model_type)
    assert not wrong, wrong


_LISTS = {"short_factor": [1.0 + 0.01 * i for i in range(32)], "long_factor": [2.0 + i for i in range(32)]}
BLOCKS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 8.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original": 8192},
    {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0, "original": 8192},
    {"rope_type": "yarn", "factor": 4.0, "original": 32768},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": None, "original": 8192},
    {"rope_type": "yarn", "factor": 40.0, "original": 4096, "mscale": 1.0, "mscale_all_dim": 0.707},
    {"rope_type": "yarn", "factor": 40.0, "original": 4096, "mscale": 0.707, "mscale_all_dim": 0.707},
    {"rope_type": "yarn", "factor": 40.0, "original": 4096, "mscale": 1.0},
    {"rope_type": "yarn", "factor": 40.0, "original": 4096, "mscale": 1.0, "mscale_all_dim": 0},
    {"rope_type": "yarn", "factor": 128.0, "original": 4096, "attention_factor": 1.0},
    {"rope_type": "yarn", "factor": 32.0, "original": 4096, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    {"rope_type": "longrope", "original": 4096, **_LISTS},
    {"rope_type": "longrope", "original": 4096, "factor": 8.0, **_LISTS},
    {"rope_type": "longrope", "original": 4096, "factor": 32.0, "attention_factor": 1.19, **_LISTS},
]


@pytest.mark.parametrize("length", [None, 4096, 60_000])
@pytest.mark.parametrize("block", BLOCKS, ids=[f"{b['rope_type']}-{i}" for i, b in enumerate(BLOCKS)])
def test_every_type_of_extension_is_bit_for_bit_that_of_transformers(block: dict[str, Any], length: int | None) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    block = {"original_max_position_embeddings" if k == "original" else k: v for k, v in block.items()}
    stated = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "max_position_embeddings": 32768,
        "rope_parameters": {"rope_theta": 500_000.0, **block},
    }
    layer = from_config(stated).layers[0]
    config = transformers.LlamaConfig(
        **{k: v for k, v in stated.items() if k not in ("model_type", "rope_parameters")},
        rope_parameters=dict(stated["rope_parameters"]),  # type: ignore[call-overload]
    )
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    theirs, scale = rotary.inv_freq, rotary.attention_scaling
    if length is not None and block["rope_type"] in ("dynamic", "longrope"):
        theirs, scale = ROPE_INIT_FUNCTIONS[block["rope_type"]](config, torch.device("cpu"), seq_len=length)
    spectrum = layer.spectrum(length=length, precision="float32")
    assert spectrum is not None
    assert torch.tensor(spectrum.radians, dtype=torch.float32).tolist() == theirs.tolist()
    assert spectrum.attention_factor == pytest.approx(scale, rel=1e-12)


def _calls(config: Any) -> list[bool]:
    """For each layer of a small model that is run once, whether it calls its module's rotation."""
    calls: set[int] = set()
    now = [-1]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager")
    module = importlib.import_module(type(model).__module__)
    with pytest.MonkeyPatch.context() as patch:
        for rotate in FUNCTIONS:
            if hasattr(module, rotate):
                theirs = getattr(module, rotate)

                def counted(*given: Any, theirs: Any = theirs, **named: Any) -> Any:
                    calls.add(now[0])
                    return theirs(*given, **named)

                patch.setattr(module, rotate, counted)
        for i, layer in enumerate(model.layers):
            layer.register_forward_pre_hook(lambda *_, i=i: now.__setitem__(0, i))
        with torch.no_grad():
            model(torch.arange(1, 8)[None])
    return [i in calls for i in range(len(model.layers))]


def test_the_layers_that_turn_are_those_that_call_transformers_rotation(capsys: pytest.CaptureFixture[str]) -> None:
    small = {"num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 32, "vocab_size": 50, "pad_token_id": 0}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
    classes = {c.model_type: c for c in rotating()}
    compared, wrong = set(), []
    for name in sorted(n for n, family in FAMILIES.items() if family.rotates not in ("all", "chosen", "none")):
        for window in (16, None):
            if name == "muse_spark_text":  # does not shrink
                continue
            try:
                config = classes[name](**small, **heads, sliding_window=window)
                theirs = _calls(config)
            except Exception:  # a class that needs a window, or whose parts do not shrink alike
                continue
            compared.add(name)
            ours = [layer.kind == "rope" for layer in from_config(config.to_dict()).layers]
            if ours != theirs:
                wrong.append(f"{name}, window {window}: {ours} in the plan, {theirs} in the model")
    with capsys.disabled():
        print(f"\nthe layers that turn agree in {', '.join(sorted(compared))}")
    assert not wrong, "\n".join(wrong)
    assert compared >= {"afmoe", "cohere2", "exaone4", "llama4_text", "smollm3"}
