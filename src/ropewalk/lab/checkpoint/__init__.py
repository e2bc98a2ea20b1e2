"""Real checkpoints: read one, run it with any context extension, and see what that costs.

[`open_checkpoint`][ropewalk.lab.checkpoint.files.open_checkpoint] finds and reads; `llama` is the model it makes,
`gguf` and `safetensors` fetch its weights, `tokens` its tokenizer. `extend` and `needle` are the two experiments: what
they do with one text is in `perplexity` and `passkey`, what follows from it in `intervals`; `run` does task after task
and `store` keeps what is done.
"""

from __future__ import annotations

from ropewalk.lab.checkpoint.files import Checkpoint, open_checkpoint
from ropewalk.lab.checkpoint.llama import Llama
from ropewalk.lab.checkpoint.shape import Shape

__all__ = ["Checkpoint", "Llama", "Shape", "open_checkpoint"]
