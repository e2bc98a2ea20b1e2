"""Inside transformers: put ropewalk into a live model, and take it out again.

- [`install`][] replaces the rotation of one model, and, if asked, its frequencies or its whole encoding.
- [`register_spectrum`][] makes an extension a `rope_type` of transformers.
- [`register_attention`][] makes an encoding an attention implementation of transformers.

Wants transformers 5 or later: `pip install 'ropewalk[hf]'`.
"""

from __future__ import annotations

from ropewalk.hf.install import Installation, install, uninstall
from ropewalk.hf.probe import probe
from ropewalk.hf.semantics import NotServedError, Semantics

__all__ = ["Installation", "NotServedError", "Semantics", "install", "probe", "uninstall"]
