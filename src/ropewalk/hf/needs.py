"""The package transformers, or the line that brings it."""

from __future__ import annotations

from typing import Any


def transformers() -> Any:
    """The package.

    Raises:
        ImportError: it is not there, with the line that brings it.
    """
    try:
        import transformers as package
    except ImportError:
        raise ImportError("ropewalk.hf needs transformers: pip install 'ropewalk[hf]'") from None
    return package
