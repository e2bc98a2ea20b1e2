"""Inside transformers: put ropewalk into a live model, and take it out again.

- [`install`][] replaces the rotation of one model, and, if asked, its frequencies or its whole encoding.
- [`register_spectrum`][] makes an extension a `rope_type` of transformers.
- [`register_attention`][] makes an encoding an attention implementation of transformers.
- [`probe`][] tells what a rotation function means, by trying it.

Wants transformers 5 or later: `pip install 'ropewalk[hf]'`.
"""

from __future__ import annotations

from ropewalk.hf.implementations import register_attention, unregister_attention
from ropewalk.hf.installation import Installation, install, uninstall
from ropewalk.hf.probing import probe
from ropewalk.hf.semantics import NotServedError, Semantics
from ropewalk.hf.spectra import register_spectrum, unregister_spectrum

__all__ = [
    "Installation",
    "NotServedError",
    "Semantics",
    "install",
    "probe",
    "register_attention",
    "register_spectrum",
    "uninstall",
    "unregister_attention",
    "unregister_spectrum",
]
