"""What a model's configuration says about positions, layer by layer, in this library's own words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ropewalk.extensions import Extension, YaRN
from ropewalk.language import Language
from ropewalk.rotation import Layout, Place
from ropewalk.spectra import Precision, Spectrum, geometric
from ropewalk.temperature import Temperature

if TYPE_CHECKING:
    from ropewalk.bands import Bands
    from ropewalk.protocol import PositionalEncoding

Kind = Literal["rope", "none", "encoding"]


@dataclass(frozen=True)
class Advice:
    """Something that the owner of a configuration should know: a short code for programs, and the text in two "
    "languages."""

    code: str
    en: str
    ja: str

    def text(self, language: Language = "en") -> str:
        """The text in one of them."""
        return self.ja if language == "ja" else self.en

    def json(self) -> dict[str, str]:
        """All three."""
        return {"code": self.code, "en": self.en, "ja": self.ja}


@dataclass(frozen=True)
class LayerPlan:
    """How one layer encodes positions. Equal plans are equal and hash alike, so layers can be grouped.

    `kind` is `"rope"` (it rotates), `"none"` (it does not, by design: a NoPE layer, or one without attention, as the
    label tells) or `"encoding"` (it has another encoding, named with its options). A rotating layer has rotary_dim
    channels in pairs, at base^(-2i/rotary_dim) radians a token before the extension.

    `default_length` is where an extension that depends on the length of the text is evaluated if nobody says another:
    the trained length, at which it changes nothing or is short.
    """

    kind: Kind
    label: str = ""
    """What the configuration calls this type of layer."""
    head_dim: int | None = None
    rotary_dim: int = 0
    place: Place = "leading"
    layout: Layout | None = None
    base: float | None = None
    extension: Extension | None = None
    bands: Bands | None = None
    """The position axis that each pair follows; None: there is one."""
    temperature: Temperature | None = None
    """What queries are multiplied by; None: nothing."""
    encoding: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    default_length: int | None = None

    def spectrum(self, *, length: int | None = None, precision: Precision = "exact") -> Spectrum | None:
        """The frequencies of a rotating layer for a text of `length` tokens; None for another layer.

        Raises:
            ValueError: parameters that do not fit the width.
        """
        if self.kind != "rope" or self.base is None:
            return None
        if self.bands is not None and self.bands.widths is not None:
            return self.bands.spectrum(self.base, precision=precision)
        if self.extension is None:
            return geometric(self.rotary_dim, self.base, precision=precision)
        at = length or self.default_length if self.extension.depends_on_length else None
        return self.extension.spectrum(self.rotary_dim, self.base, length=at, precision=precision)

    def build(self, *, at_length: int | None = None, precision: Precision = "exact") -> PositionalEncoding:
        """The encoding itself. Learned tables are fresh: load the model's weights into them.

        Args:
            at_length: for an extension that depends on the length of the text; `default_length` if not given.
            precision: `"float32"` agrees bit for bit with transformers' tables.
        """
        from ropewalk.encodings import build
        from ropewalk.encodings.rope import RoPE
        from ropewalk.protocol import Compose, NoPE
        from ropewalk.temperature import QueryTemperature

        made: PositionalEncoding
        if self.kind == "encoding" and self.encoding is not None:
            made = build(self.encoding, **dict(self.options))
        elif self.kind == "rope" and self.head_dim and self.layout and self.base:
            depends = self.extension is not None and self.extension.depends_on_length
            banded: dict[str, Any] = {} if self.bands is None else {"bands": self.bands}
            made = RoPE(
                self.head_dim,
                base=self.base,
                layout=self.layout,
                rotary_dim=self.rotary_dim,
                place=self.place,
                extension=self.extension,
                at_length=(at_length or self.default_length) if depends else None,
                precision=precision,
                **banded,
            )
        else:
            made = NoPE()
        if self.temperature is None:
            return made
        heat = QueryTemperature(self.temperature)
        return heat if self.kind == "none" else Compose(made, heat)

    def json(self, *, length: int | None = None) -> dict[str, Any]:
        """As `ropewalk inspect --json` prints it, without the layers' numbers."""
        spectrum = self.spectrum(length=length)
        depends = self.extension is not None and self.extension.depends_on_length
        return {
            "kind": self.kind,
            "label": self.label,
            "head_dim": self.head_dim,
            "rotary_dim": self.rotary_dim,
            "place": self.place if self.kind == "rope" else None,
            "layout": self.layout,
            "base": self.base,
            "extension": None if self.extension is None else self.extension.json(),
            "length": (length or self.default_length) if depends else None,
            "inv_freq": [] if spectrum is None else list(spectrum.radians),
            "attention_factor": 1.0 if spectrum is None else spectrum.attention_factor,
            "softmax_multiplier": 1.0 if spectrum is None else spectrum.softmax_multiplier,
            "bands": None if self.bands is None else self.bands.string(),
            "query_temperature": None if self.temperature is None else self.temperature.json(),
            "encoding": None if self.encoding is None else {"name": self.encoding, **dict(self.options)},
        }


@dataclass(frozen=True)
class RotaryPlan:
    """What a whole model does about positions, as read from its configuration.

    `layers` has one entry a layer; a configuration that does not count its layers gives one entry that stands for all
    of them (two for encoder and decoder), and `counted` is False.

    >>> plan = RotaryPlan("llama", (LayerPlan("rope", "", 8, 8, layout="half", base=1e4),) * 2)
    >>> [(where, layer.rotary_dim) for where, layer in plan.groups()]
    [((0, 1), 8)]
    >>> plan.layer(1)
    RoPE(head_dim=8, base=10000.0, layout='half', rotary_dim=8, place='leading', ...)
    """

    model_type: str
    layers: tuple[LayerPlan, ...]
    counted: bool = True
    max_length: int | None = None
    """The length that the configuration states."""
    original_length: int | None = None
    """The length it was trained with before any extension; the stated one where there is none."""
    heads: int | None = None
    kv_heads: int | None = None
    warnings: tuple[Advice, ...] = ()
    source: str = ""
    """The kind of file: config.json, params.json, GGUF, or dict."""
    read_keys: tuple[str, ...] = ()
    """Every key that was used, by its path."""

    @property
    def extended_length(self) -> int | None:
        """How far positions are meant to reach: YaRN's original_length · factor, computed once; else `max_length`."""
        yarns = [layer.extension for layer in self.layers if isinstance(layer.extension, YaRN)]
        if not yarns:
            return self.max_length
        return max(round(yarn.original_length * yarn.factor) for yarn in yarns)

    def groups(self) -> list[tuple[tuple[int, ...], LayerPlan]]:
        """Layers that do the same, with their numbers, in the order of their first."""
        found: dict[LayerPlan, list[int]] = {}
        for i, layer in enumerate(self.layers):
            found.setdefault(layer, []).append(i)
        return [(tuple(where), layer) for layer, where in found.items()]

    def plan_of(self, i: int) -> LayerPlan:
        """The plan of layer i.

        Raises:
            ValueError: there is no such layer.
        """
        if not self.counted and len(self.layers) == 1 and isinstance(i, int) and i >= 0:
            return self.layers[0]
        if not isinstance(i, int) or not 0 <= i < len(self.layers):
            raise ValueError(f"there are layers 0 to {len(self.layers) - 1}, got {i!r}")
        return self.layers[i]

    def layer(self, i: int, *, at_length: int | None = None, precision: Precision = "exact") -> PositionalEncoding:
        """The encoding of layer i, ready to use.

        Args:
            i: from 0.
            at_length: the length of the whole text, for an extension that depends on it (LongRoPE, dynamic NTK); the
                trained length if not given. Others do not look.
            precision: `"float32"` agrees bit for bit with transformers' tables.

        Raises:
            ValueError: there is no such layer.
        """
        return self.plan_of(i).build(at_length=at_length, precision=precision)

    def in_layout(self, layout: Layout) -> RotaryPlan:
        """The same for weights that lie in this layout, which every rotating layer then has.

        >>> plan = RotaryPlan("llama", (LayerPlan("rope", "", 8, 8, layout="half", base=1e4),))
        >>> plan.in_layout("interleaved").layer(0).layout
        'interleaved'
        """
        layers = (replace(layer, layout=layout) if layer.kind == "rope" else layer for layer in self.layers)
        return replace(self, layers=tuple(layers))

    def layers_json(self, *, length: int | None = None) -> list[dict[str, Any]]:
        """The `layers` of `ropewalk.inspect/1`: one entry a group."""
        return [{"layers": list(where), **layer.json(length=length)} for where, layer in self.groups()]

    def json(self, *, length: int | None = None) -> dict[str, Any]:
        """The whole plan, `ropewalk.inspect/1`."""
        return {
            "schema": "ropewalk.inspect/1",
            "model_type": self.model_type,
            "source": self.source,
            "max_length": self.max_length,
            "original_length": self.original_length,
            "extended_length": self.extended_length,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "layers_counted": self.counted,
            "layers": self.layers_json(length=length),
            "warnings": [advice.json() for advice in self.warnings],
        }
