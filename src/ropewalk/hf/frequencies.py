"""Other frequencies for a live model: its own, computed exactly, or another spectrum."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.angles import cos_sin
from ropewalk.extensions import Extension
from ropewalk.hf.rebind import Patch
from ropewalk.hf.semantics import NotServedError
from ropewalk.hf.spectra import registered
from ropewalk.hf.trial import Tabled, labels_of, spread, try_out
from ropewalk.plans import LayerPlan
from ropewalk.readers import from_config
from ropewalk.spectra import Spectrum

ALIKE = 1e-5
"""How far a model's frequencies, kept in float32, may be from what its configuration says, as a share."""


@dataclass(frozen=True)
class Wanted:
    """What the frequencies are to be."""

    spectrum: Spectrum | None = None
    extension: Extension | None = None
    at_length: int | None = None

    def of(self, module: nn.Module, found: Tabled) -> Spectrum:
        """The spectrum for that kind of layer.

        Raises:
            NotServedError: the configuration does not say what the model computes, or the spectrum does not fit.
        """
        if self.spectrum is not None:
            if len(self.spectrum.radians) != len(found.inv_freq):
                raise NotServedError(
                    f"the spectrum has {len(self.spectrum.radians)} pairs, the model {len(found.inv_freq)}"
                )
            if self.spectrum.softmax_multiplier != 1:
                raise NotServedError("a spectrum's softmax_multiplier is not put into a live model")
            return self.spectrum
        plan = _plan(module, found, self.at_length)
        if self.extension is None:
            dynamic = plan.extension is not None and plan.extension.depends_on_length
            if dynamic and self.at_length is None:
                raise NotServedError(
                    f"{type(plan.extension).__name__} depends on the length of the text: give at_length=…"
                )
            made = plan.spectrum(length=self.at_length)
            assert made is not None
            return made
        if plan.bands is not None and plan.bands.widths is not None:
            raise NotServedError("its pairs make several ladders, one an axis, which no extension here stretches")
        before, made = plan.spectrum(), replace(plan, extension=self.extension).spectrum(length=self.at_length)
        assert before is not None
        assert made is not None
        if made.softmax_multiplier != before.softmax_multiplier:
            raise NotServedError(
                f"its softmax scale has a multiplier of {before.softmax_multiplier:g}, and the extension wants "
                f"{made.softmax_multiplier:g}"
            )
        if len(made.radians) != len(found.inv_freq):
            raise NotServedError(f"the extension makes {len(made.radians)} pairs, the model has {len(found.inv_freq)}")
        return made


def replace_tables(
    model: nn.Module, wanted: Wanted, keep_float32: bool, patch: Patch
) -> tuple[dict[str, str], dict[str, str]]:
    """Give the rotary modules of a model tables of other frequencies, exact at every position.

    Args:
        model: a live model.
        wanted: which frequencies.
        keep_float32: leave the tables in float32, whatever the model computes in; only ropewalk's rotation reads them.
        patch: remembers what was there.

    Returns:
        What was replaced and what was left as it is, by the module's name: what is computed now, and why not.
    """
    done: dict[str, str] = {}
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        labels = labels_of(module)
        if not labels:
            continue
        try:
            found = {label: try_out(module, label) for label in labels}
            spectra = {label: wanted.of(module, one) for label, one in found.items()}
        except NotServedError as error:
            left[name] = str(error)
            continue
        patch.set(module, "forward", types.MethodType(_forward(found, spectra, keep_float32), module))
        done[name] = "; ".join(f"{label}: {s}" if label else str(s) for label, s in spectra.items())
    return done, left


def _plan(module: nn.Module, found: Tabled, at_length: int | None) -> LayerPlan:
    """What the configuration says about these layers, if that is what the module computes."""
    config = getattr(module, "config", None)
    if config is None:
        raise NotServedError("it keeps no configuration, from which its exact frequencies could be read")
    said = config.to_dict()
    own = _registered(said, found.label)
    try:
        plan = from_config(said)
    except ValueError as error:
        raise NotServedError(f"its configuration is not read: {error}") from None
    turning = [layer for layer in dict.fromkeys(plan.layers) if layer.kind == "rope"]
    if own is not None:
        turning = [replace(layer, extension=own) for layer in turning]
    lengths = [at_length] if own is not None else [None, at_length]  # a dynamic one begins at the trained length
    for layer in sorted(turning, key=lambda layer: layer.label != found.label):
        spectra = (layer.spectrum(length=n, precision="float32") for n in lengths)
        if any(s is not None and _alike(s, found) for s in spectra):
            return layer
    raise NotServedError("its frequencies are not those that its configuration says; give spectrum=…")


def _registered(said: dict[str, Any], label: str) -> Extension | None:
    """What `register_spectrum` put behind a rope_type, which is struck out of what the configuration says."""
    block = said.get("rope_parameters") or {}
    block = block.get(label, block) if label else block
    own = registered(block.get("rope_type", ""))
    if own is None:
        return None
    if isinstance(own, Spectrum):
        raise NotServedError(f"rope_type {block['rope_type']!r} is a spectrum: give it as spectrum=…")
    block["rope_type"] = "default"
    return own


def _alike(spectrum: Spectrum, found: Tabled) -> bool:
    said = spectrum.inv_freq
    return said.shape == found.inv_freq.shape and (
        torch.allclose(said, found.inv_freq, rtol=ALIKE, atol=0)
        and math.isclose(spectrum.attention_factor, found.factor, rel_tol=1e-4)
    )


def _forward(found: dict[str, Tabled], spectra: dict[str, Spectrum], keep_float32: bool) -> Callable[..., Any]:
    def forward(self: nn.Module, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        """Cosine and sine, exact at every position."""
        tabled, spectrum = found[layer_type or ""], spectra[layer_type or ""]
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        axes = tabled.axes if position_ids.dim() == 3 else None
        cos, sin = cos_sin(position_ids, spectrum, axes=axes, dtype=work, device=x.device)
        if tabled.columns == "complex":
            return torch.complex(cos, sin)
        dtype = work if keep_float32 else x.dtype
        return spread(cos, tabled.columns).to(dtype), spread(sin, tabled.columns).to(dtype)

    return forward
