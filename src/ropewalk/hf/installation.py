"""`install`: a live model of transformers turns with ropewalk, until it is taken out again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ropewalk.extensions import Extension
from ropewalk.hf import implementations, needs
from ropewalk.hf.attention import HELD, Encodings
from ropewalk.hf.frequencies import Wanted, replace_tables
from ropewalk.hf.rebind import Patch, Rebinder, rebind
from ropewalk.hf.rotations import Rotations
from ropewalk.hf.semantics import NotServedError, Semantics
from ropewalk.protocol import PositionalEncoding
from ropewalk.rotation import Impl
from ropewalk.spectra import Spectrum

MARK = "_ropewalk"
"""The attribute under which a model knows that ropewalk is installed in it."""
ENCODING = "ropewalk_encoding"
"""The submodule under which a model holds an encoding's parameters."""


@dataclass(repr=False)
class Installation:
    """What was replaced in a model, and the way back. As a context manager it uninstalls at its end.

    `print` it to see what was replaced and what was left.
    """

    model: nn.Module
    replaced: dict[str, Semantics]
    """Functions that ropewalk stands in for, by name, and what they do."""
    frequencies: dict[str, str]
    """Modules whose tables are made here, and from which spectrum."""
    left: dict[str, str]
    """What was left as it was, and why."""
    encoding: nn.Module | None
    """What attention uses now, with its parameters; None: what it used before."""
    modules: int
    """How many modules of the model were touched."""
    _patch: Patch = field(repr=False)
    installed: bool = True

    def uninstall(self) -> None:
        """Put everything back as it was; a second time does nothing."""
        self._patch.undo()
        self.installed = False

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.uninstall()

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        state = "installed in" if self.installed else "was installed in"
        lines = [f"ropewalk {state} {type(self.model).__name__}, {self.modules} modules"]
        lines += [f"  rotation     {name}: {semantics}" for name, semantics in self.replaced.items()]
        lines += [f"  frequencies  {name}: {spectrum}, exact" for name, spectrum in self.frequencies.items()]
        if self.encoding is not None:
            lines.append(f"  attention    {' '.join(repr(self.encoding).split())}")
        lines += [f"  left         {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


def install(
    model: nn.Module,
    *,
    exact: bool = False,
    extension: Extension | None = None,
    spectrum: Spectrum | None = None,
    at_length: int | None = None,
    encoding: Encodings | None = None,
    rotate: bool = True,
    impl: Impl = "auto",
) -> Installation:
    """Put ropewalk into a live transformers model: into this one alone, to be taken out again.

    By itself it replaces the rotation of queries and keys by one operator, which gives the same numbers to float32
    rounding, and in half precision rounds once. Every function that rotates is tried on random numbers first, and left
    as it is if it does something that is not known here; the result says which. A call is for good until `uninstall`;
    in a `with` statement it ends with it, also by an exception. Works with `generate` and its caches, with gradient
    checkpointing and under `torch.compile(fullgraph=True)`.

    Args:
        model: of transformers, or one that contains such a model.
        exact: compute the model's own frequencies and angles exactly. transformers has both in float32, and is off by
            0.06 radians at a million tokens.
        extension: frequencies of this extension, with the base of the configuration and in place of the extension that
            it may have, in every kind of layer: those with a sliding window, which see no far token, are stretched too.
            Exact as well.
        spectrum: these frequencies, in every kind of layer. Exact as well.
        at_length: for an extension that depends on the length of the text, given or the model's own: that length.
        encoding: use this encoding in attention, such as `ALiBi(heads=8)`, `CoPE(head_dim=64)` or T5; or one for each
            layer; or a function from the number of a layer to its encoding. Learned parameters become the model's, in
            `model.ropewalk_encoding`, for optimizers and `state_dict()`; set the optimizer up after this call.
        rotate: False leaves queries and keys unrotated, so that `encoding` alone says where tokens stand.
        impl: as in `rotate`.

    >>> import torch, transformers
    >>> sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    >>> with install(model, exact=True) as installed:
    ...     print(installed)
    ropewalk installed in LlamaForCausalLM, 3 modules
      rotation     llama.modeling_llama.apply_rotary_pos_emb: half; tables doubled
      frequencies  model.rotary_emb: Spectrum(8 pairs, inv_freq 1 … 0.000316228), exact

    Raises:
        ValueError: not such a model, or ropewalk is in it already; choices that exclude one another.
        NotServedError: a ValueError too: nothing in the model can be served as asked, with the name and the reason.
    """
    wanted = _wanted(exact, extension, spectrum, at_length)
    _check(model)
    if not rotate and encoding is None:
        raise ValueError(
            "rotate=False is for another encoding in place of the rotation: give encoding=…, if only NoPE()"
        )
    if encoding is not None:
        implementations.check(encoding)
        _check_attention(model)
    patch = Patch()
    try:
        rotations = Rotations(impl, turns=rotate)
        touched = rebind(model, Rebinder(rotations), rotations, patch)
        if not touched and (encoding is None or (not rotate and rotations.left)):
            raise _nothing(model, rotations.left)
        if not rotate and rotations.left:
            raise _nothing(model, rotations.left)
        held = None if encoding is None else _put_encoding(model, encoding, patch)
        if rotate and touched and held is not None and _turns(held):
            raise ValueError(
                "this model turns queries and keys itself, and the encoding would turn them again: give rotate=False"
            )
        frequencies: dict[str, str] = {}
        left = dict(rotations.left)
        if wanted is not None:
            frequencies, more = replace_tables(model, wanted, not rotations.left, patch)
            if not frequencies:
                raise _no_frequencies(model, more)
            left.update(more)
        count = len(patch.modules())
        made = Installation(model, rotations.replaced, frequencies, left, held, count, patch)
        patch.set(model, MARK, made)
    except BaseException:
        patch.undo()
        raise
    return made


def uninstall(model: nn.Module) -> None:
    """Take ropewalk out of a model again, as `Installation.uninstall` does.

    Raises:
        ValueError: it is not in there.
    """
    made = model.__dict__.get(MARK)
    if made is None:
        raise ValueError(f"ropewalk is not installed in this {type(model).__name__}")
    made.uninstall()


def _wanted(
    exact: bool, extension: Extension | None, spectrum: Spectrum | None, at_length: int | None
) -> Wanted | None:
    if extension is not None and spectrum is not None:
        raise ValueError("extension and spectrum both say what the frequencies are: give one")
    for what, given, kind in (("extension", extension, Extension), ("spectrum", spectrum, Spectrum)):
        if given is not None and not isinstance(given, kind):
            raise ValueError(
                f"{what} is {'an Extension such as YaRN(…)' if kind is Extension else 'a Spectrum'}, got {given!r}"
            )
    if extension is not None and extension.depends_on_length and at_length is None:
        raise ValueError(f"{type(extension).__name__} depends on the length of the text: give at_length=…")
    if exact or extension is not None or spectrum is not None:
        return Wanted(spectrum, extension, at_length)
    if at_length is not None:
        raise ValueError(f"at_length={at_length} is for other frequencies: give exact=True or extension=… too")
    return None


def _check(model: Any) -> None:
    transformers = needs.transformers()
    if not isinstance(model, nn.Module) or not any(
        isinstance(m, transformers.PreTrainedModel) for m in model.modules()
    ):
        raise ValueError(f"install takes a model of transformers, got {type(model).__name__}")
    for module in model.modules():
        if MARK in module.__dict__:
            raise ValueError(f"ropewalk is installed in this {type(module).__name__} already: call uninstall() first")


def _named(model: nn.Module) -> str:
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return f"{type(model).__name__} (model_type {kind!r})" if kind else type(model).__name__


def _nothing(model: nn.Module, left: dict[str, str]) -> NotServedError:
    if left:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left.items())
        return NotServedError(f"{_named(model)} rotates in a way that ropewalk does not take over: {reasons}")
    return NotServedError(f"{_named(model)} calls no rotation of queries and keys that ropewalk knows of")


def _no_frequencies(model: nn.Module, left: dict[str, str]) -> NotServedError:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in left.items()) or "no module keeps any"
    return NotServedError(f"{_named(model)} cannot be given other frequencies: {reasons}")


def _check_attention(model: nn.Module) -> None:
    inner = _inner(model)
    if not inner._can_set_attn_implementation():
        raise NotServedError(f"{_named(model)} does not compute attention by an implementation that can be chosen")
    if getattr(inner.config, "is_encoder_decoder", False):
        raise NotServedError(f"{_named(model)} attends across two sequences, whose distances no encoding here knows")


def _inner(model: nn.Module) -> Any:
    """The outermost part that is transformers' own."""
    return next(m for m in model.modules() if isinstance(m, needs.transformers().PreTrainedModel))


def _turns(held: nn.Module) -> bool:
    """Whether an encoding, or one of several, acts on queries and keys."""
    each = held if isinstance(held, nn.ModuleList) else [held]
    return any("query/key" in one.places() for one in each if isinstance(one, PositionalEncoding))


def _put_encoding(model: nn.Module, encoding: Encodings, patch: Patch) -> nn.Module:
    """Let attention use an encoding, by an implementation that asks the modules of this model for it."""
    inner = _inner(model)
    layers = inner.config.get_text_config().num_hidden_layers
    held: nn.Module
    if isinstance(encoding, PositionalEncoding):
        held = encoding
    else:
        each = list(encoding) if isinstance(encoding, Sequence) else [encoding(i) for i in range(layers)]
        implementations.check(each)
        if len(each) != layers:
            raise ValueError(f"this model has {layers} layers, and there are {len(each)} encodings")
        held = nn.ModuleList(each)
    # Models built from one configuration share it, so this one gets a copy, in all of its modules.
    memo: dict[int, Any] = {}
    config = copy.deepcopy(inner.config, memo)
    config.get_text_config()._attn_implementation_internal = implementations.installed()
    for module in inner.modules():
        own = module.__dict__.get("config")
        if id(own) in memo:
            patch.set(module, "config", memo[id(own)])
            patch.set(module, HELD, held)
    patch.set(inner, ENCODING, held, among="_modules")
    first = next(inner.parameters(), None)
    if first is not None and first.device.type != "meta":
        held.to(first.device)
    return held
