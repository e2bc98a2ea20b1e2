"""Where a config.json of transformers states what, in its spellings of versions 4 and 5, the likeliest first."""

from __future__ import annotations

HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "decoder_num_key_value_heads", "multi_query_group_num")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_num_hidden_layers")
LENGTH = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "model_max_length",
)
BASE = ("rope_theta",)
PARTIAL = ("partial_rotary_factor",)

WITHOUT_ATTENTION = frozenset({"linear_attention", "conv", "moe", "mlp", "recurrent", "mamba", "mamba2"})
LEGACY_LABELS = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
    "sliding": "sliding_attention",
    "full": "full_attention",
}
