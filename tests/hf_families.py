"""Every family of the installed transformers that defines `apply_rotary_pos_emb`, built tiny from its configuration.

Most build from `SMALL` alone, cut to the names that their configuration knows. `SPECIAL` says what else some need.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

PACKAGE = Path(transformers.__file__).parent / "models"

SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.1,
    # latent attention
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    # experts
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    # images
    "depth": 2,
    "embed_dim": 64,
    "num_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "out_hidden_size": 64,
    # recurrent layers
    "mamba_n_heads": 4,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    # older names
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "rotary_dim": 8,
    "n_positions": 128,
}
"""What is small in every family, where its configuration has the name."""

ATTENDS = {"layer_types": ["linear_attention", "full_attention"]}
LINE = {"rope_type": "default", "rope_theta": 1e4}
AXES = {"rope_parameters": {**LINE, "mrope_section": [2, 3, 3]}}
AXES_OF_HALF = {"rope_parameters": {**LINE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}}
IDS = torch.arange(3, 14).repeat(2, 1) + torch.tensor([[0], [20]])


def text(model: nn.Module) -> dict[str, Any]:
    return {"input_ids": IDS}


def pixels(model: Any) -> dict[str, Any]:
    config = getattr(model.config, "vision_config", model.config)
    channels = getattr(config, "num_channels", 3)
    return {"pixel_values": torch.randn(1, channels, 32, 32)}


def patches(model: Any) -> dict[str, Any]:
    """A picture of 4 × 6 patches, as the Qwen-VL family takes them."""
    config = model.config
    channels = getattr(config, "in_channels", None) or config.num_channels
    each = channels * getattr(config, "temporal_patch_size", 1) * config.patch_size**2
    name = next(n for n in ("hidden_states", "pixel_values") if n in inspect.signature(model.forward).parameters)
    return {name: torch.randn(24, each), "grid_thw": torch.tensor([[1, 4, 6]])}


def features(model: Any) -> dict[str, Any]:
    return {"input_features": torch.randn(1, 64, model.config.num_mel_bins)}


def channels_first(model: Any) -> dict[str, Any]:
    return {"input_features": torch.randn(1, model.config.num_mel_bins, 64)}


def embeddings(model: Any) -> dict[str, Any]:
    return {"inputs_embeds": torch.randn(1, 11, model.config.hidden_size)}


def sound(model: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(1, 1, 30720)}


def waves(model: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(1, 1, 1280), "input_features": torch.randn(1, 20, 160)}


WAVES = {
    "semantic_model_config": {
        "model_type": "wav2vec2-bert",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    },
    "num_key_value_heads": 4,
    "encoder_hidden_size": 4,
    "quantization_dim": 128,
    "downsampling_ratios": [4, 4, 4],
}


@dataclass(frozen=True)
class Special:
    """How a family is built that does not build by itself."""

    model: str
    config: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[[Any], dict[str, Any]] = text


SPECIAL: dict[str, Special] = {
    "bamba": Special("BambaForCausalLM", {"attn_layer_indices": [1], "mamba_d_head": 32}),
    "blt": Special("BltPatcher"),
    "chameleon": Special(
        "ChameleonForConditionalGeneration",
        {
            "vq_config": {
                "embed_dim": 8,
                "latent_channels": 8,
                "base_channels": 32,
                "channel_multiplier": [1],
                "num_res_blocks": 1,
                "num_embeddings": 8,
                "resolution": 16,
            },
            "vocabulary_map": {"<image>": 5},
        },
    ),
    "clvp": Special("ClvpEncoder", {"hidden_size": 128, "projection_dim": 64}),
    "codegen": Special("CodeGenForCausalLM"),
    "cohere_compass": Special(
        "CohereCompassTextModel",
        {
            "rope_parameters": {
                "full_attention": {**LINE, "mrope_section": [2, 3, 3]},
                "sliding_attention": {**LINE, "mrope_section": [2, 3, 3]},
            },
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "cosmos3_edge": Special("Cosmos3EdgeTextModel", AXES),
    "csm": Special("CsmBackboneModel", {"num_codebooks": 4}, embeddings),
    "dbrx": Special(
        "DbrxForCausalLM",
        {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
            "ffn_config": {"ffn_hidden_size": 32, "hidden_size": 64},
        },
    ),
    "deepseek_ocr2": Special("DeepseekOcr2TextModel", {"mlp_layer_types": ["dense", "sparse"]}),
    "dia": Special("DiaEncoder"),
    "diffusion_gemma": Special("DiffusionGemmaEncoderTextModel", {"top_k_experts": 2}),
    "dinov3_vit": Special("DINOv3ViTModel", {"num_register_tokens": 2}, pixels),
    "efficientloftr": Special(
        "EfficientLoFTRModel",
        {
            "hidden_size": 64,
            "stage_num_blocks": [1, 1, 1, 1],
            "out_features": [16, 16, 32, 64],
            "num_attention_layers": 1,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
        },
        lambda model: {"pixel_values": torch.rand(1, 2, 1, 64, 64)},
    ),
    "ernie4_5_vl_moe": Special(
        "Ernie4_5_VLMoeTextModel",
        {
            "moe_intermediate_size": [32, 32],
            "moe_num_experts": 4,
            "moe_k": 2,
            "rope_parameters": {**LINE, "mrope_section": [3, 3, 2]},
        },
    ),
    "esm": Special("EsmForMaskedLM", {"position_embedding_type": "rotary"}),
    "esmc": Special("EsmcForMaskedLM", {"num_key_value_heads": None}),
    "exaone4_5": Special("Exaone4_5_VisionModel", {"fullatt_block_indexes": [1], "window_size": 32}, patches),
    "flint": Special("FlintForCausalLM", {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}),
    "gemma3n": Special(
        "Gemma3nForCausalLM",
        {
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 128,
            "activation_sparsity_pattern": [0.0] * 4,
            "laurel_rank": 8,
        },
    ),
    "gemma4": Special("Gemma4ForCausalLM", {"vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 8}),
    "glm4v": Special("Glm4vTextModel", AXES_OF_HALF),
    "glm4v_moe": Special("Glm4vMoeTextModel", {"head_dim": 16, **AXES_OF_HALF}),
    "glm_image": Special("GlmImageTextModel", AXES_OF_HALF),
    "glm_ocr": Special("GlmOcrTextModel", AXES),
    "glmasr": Special("GlmAsrEncoder", {"num_mel_bins": 16}, channels_first),
    "gptj": Special("GPTJForCausalLM"),
    "gradium_phonon_tts": Special(
        "GradiumPhononTTSModel",
        {"flow_head_config": {"condition_dim": 64, "hidden_size": 32, "num_hidden_layers": 1}},
        embeddings,
    ),
    "granitemoehybrid": Special(
        "GraniteMoeHybridForCausalLM",
        {
            "layer_types": ["mamba", "attention"],
            "position_embedding_type": "rope",
            "mamba_d_head": 32,
            "shared_intermediate_size": 32,
        },
    ),
    "hunyuan_vl": Special("HunYuanVLTextModel", {"rope_parameters": {**LINE, "mrope_section": [2, 2, 2, 2]}}),
    "hy_v4_vl": Special("HYV4VLTextModel", {"rope_parameters": {**LINE, "mrope_section": [1, 1, 2]}}),
    "jamba": Special("JambaForCausalLM", {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8}),
    "kyutai_speech_to_text": Special(
        "KyutaiSpeechToTextModel",
        {
            "pad_token_id": 3,
            "codebook_vocab_size": 16,
            "audio_bos_token_id": 4,
            "audio_pad_token_id": 5,
            "ffn_dim": 64,
            "num_codebooks": 2,
        },
        embeddings,
    ),
    "lasr": Special(
        "LasrEncoder", {"num_mel_bins": 16, "subsampling_conv_channels": 8, "num_key_value_heads": 4}, features
    ),
    "lfm2_moe": Special("Lfm2MoeForCausalLM", {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    "lfm3": Special("Lfm3ForCausalLM", {"layer_types": ["conv", "full_attention"]}),
    "idefics": Special(
        "IdeficsForVisionText2Text",
        {"vision_config": {"embed_dim": 32, "image_size": 16, "patch_size": 8, "num_hidden_layers": 1}},
        lambda model: {
            "input_ids": IDS,
            "image_encoder_embeddings": torch.randn(2, 1, 5, 32),
            "image_attention_mask": torch.ones(2, 11, 1),
        },
    ),
    "lightglue": Special(
        "LightGlueForKeypointMatching",
        {"descriptor_dim": 256},
        lambda model: {"pixel_values": torch.rand(1, 2, 1, 48, 48)},
    ),
    "mimi": Special(
        "MimiEncoderModel",
        {
            "num_filters": 4,
            "upsample_groups": 64,
            "codebook_size": 16,
            "codebook_dim": 8,
            "vector_quantization_hidden_dimension": 8,
            "num_quantizers": 2,
            "layer_scale_initial_scale": 1.0,
        },
        sound,
    ),
    "moonshine": Special(
        "MoonshineDecoder", {}, lambda model: {"input_ids": IDS, "encoder_hidden_states": torch.randn(2, 5, 64)}
    ),
    "moonshine_streaming": Special(
        "MoonshineStreamingDecoder",
        {"encoder_config": {"hidden_size": 64}, "num_key_value_heads": 4},
        lambda model: {"input_ids": IDS, "encoder_hidden_states": torch.randn(2, 5, 64)},
    ),
    "moshi": Special("MoshiForCausalLM", {"audio_vocab_size": 16, "ffn_dim": 64, "num_codebooks": 2}),
    "muse_spark": Special("MuseSparkTextModel", {"moe_hidden_size": 32}),
    "nemotron3_5_transcribe": Special("Nemotron3_5TranscribeAsrAudioModel", {}, embeddings),
    "nemotron3_diarization": Special("Nemotron3DiarizationAudioModel", {}, embeddings),
    "nemotron_asr_streaming": Special(
        "NemotronAsrStreamingEncoder", {"num_mel_bins": 16, "subsampling_conv_channels": 8}, features
    ),
    "nemotron_h": Special(
        "NemotronHForCausalLM",
        {
            "layers_block_type": ["mamba", "attention"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 8,
        },
    ),
    "paddleocr_vl": Special("PaddleOCRTextModel", AXES),
    "parakeet": Special("ParakeetEncoder", {"num_mel_bins": 16, "subsampling_conv_channels": 8}, features),
    "muse_glimmer_assistant": Special(
        "MuseGlimmerAssistantModel",
        {"target_layer_ids": [0]},
        lambda model: {"noise_embeds": torch.randn(1, 4, 64), "context_hidden_states": torch.randn(1, 7, 64)},
    ),
    "neucodec": Special("NeuCodecModel", WAVES, waves),
    "pe_audio": Special(
        "PeAudioEncoder",
        {"dac_config": {"encoder_hidden_size": 4, "downsampling_ratios": [2, 2], "codebook_dim": 4, "hidden_size": 16}},
        sound,
    ),
    "phi4_multimodal": Special(
        "Phi4MultimodalModel",
        {
            "audio_config": {
                "num_blocks": 1,
                "nemo_conv_channels": 16,
                "ext_pw_out_channel": 64,
                "depthwise_separable_out_channel": 64,
            }
        },
    ),
    "pixtral": Special("PixtralVisionModel", {}, pixels),
    "pocket_tts": Special(
        "PocketTTSModel",
        {
            "flow_head_config": {"condition_dim": 64, "hidden_size": 32, "num_hidden_layers": 1},
            "audio_prompt_token_id": 120,
            "audio_latent_token_id": 121,
            "audio_prompt_bos_token_id": 122,
            "audio_bos_token_id": 123,
        },
        embeddings,
    ),
    "pocket_tts_audio_tokenizer": Special(
        "PocketTTSAudioTokenizerEncoderModel",
        {"num_filters": 4, "upsample_groups": 64, "layer_scale_initial_scale": 1.0},
        sound,
    ),
    "qwen2_5_omni": Special("Qwen2_5OmniThinkerTextModel", AXES),
    "qwen2_5_vl": Special("Qwen2_5_VLTextModel", AXES),
    "qwen2_moe": Special("Qwen2MoeForCausalLM"),
    "qwen2_vl": Special("Qwen2VLTextModel", AXES),
    "qwen3_5": Special(
        "Qwen3_5ForCausalLM",
        {**ATTENDS, "rope_parameters": {**LINE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}},
    ),
    "qwen3_5_moe": Special(
        "Qwen3_5MoeForCausalLM",
        {**ATTENDS, "rope_parameters": {**LINE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}},
    ),
    "qwen3_next": Special("Qwen3NextForCausalLM", ATTENDS),
    "qwen4_exp": Special(
        "Qwen4ExpForCausalLM",
        {
            **ATTENDS,
            "ngram_vocab_size_base": 50,
            "split_ngram_parts": 2,
            "make_ngram_vocab_size_divisible_by": 2,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 8,
            "indexer_compress_ratio": 2,
            "rope_parameters": {**LINE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
        },
    ),
    "recurrent_gemma": Special("RecurrentGemmaForCausalLM", {"block_types": ["recurrent", "attention"]}),
    "sapiens2": Special("Sapiens2Model", {"num_key_value_attention_heads": 2}, pixels),
    "step3p7": Special("Step3p7TextModel", {"sliding_window": 8}),
    "t5gemma": Special("T5GemmaForSequenceClassification"),
    "t5gemma2": Special(
        "T5Gemma2Decoder",
        {"dropout_rate": 0.0},
        lambda model: {"input_ids": IDS, "encoder_hidden_states": torch.randn(2, 5, 64)},
    ),
    "timesfm2_5": Special("TimesFm2_5Model", {}, lambda model: {"past_values": torch.randn(1, 96)}),
    "voxtral_realtime": Special("VoxtralRealtimeEncoder", {}, embeddings),
    "xcodec2": Special("Xcodec2Model", WAVES, waves),
    "zamba2": Special(
        "Zamba2ForCausalLM",
        {
            "layers_block_type": ["mamba", "hybrid"],
            "use_mem_rope": True,
            "n_mamba_heads": 4,
            "mamba_d_state": 8,
            "mamba_expand": 1,
            "num_key_value_heads": 4,
        },
    ),
    "zaya": Special("ZayaForCausalLM", {"num_experts_per_tok": 1}),
}


def families() -> list[str]:
    """Those that define `apply_rotary_pos_emb`."""
    found = {
        path.parent.name
        for path in PACKAGE.glob("*/modeling_*.py")
        if re.search(r"^def apply_rotary_pos_emb\(", path.read_text("utf-8"), re.M)
    }
    return sorted(found)


def build(family: str) -> tuple[nn.Module, dict[str, Any]]:
    """A tiny model with random weights, and what to call it with."""
    special = SPECIAL.get(family)
    cls = model_of(family, special.model if special else None)
    config = cls.config_class(**tiny(cls.config_class, special.config if special else {}))
    with torch.device("meta"):
        numbers = sum(p.numel() for p in cls(config).parameters())
    assert numbers < 4e6, f"{family}: {cls.__name__} has {numbers} parameters"
    config = cls.config_class(**tiny(cls.config_class, special.config if special else {}))
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point() and (p.dim() == 1 or not p.any()):  # what begins at zero may mute a layer
                p += 0.05 * torch.randn_like(p)
    return model, (special.inputs if special else text)(model)


def model_of(family: str, name: str | None) -> Any:
    """A model class of a family: the one named, or the likeliest to take tokens."""
    found = {}
    for path in sorted((PACKAGE / family).glob("modeling_*.py")):
        module = importlib.import_module(f"transformers.models.{family}.{path.stem}")
        found |= {
            n: c
            for n, c in vars(module).items()
            if inspect.isclass(c) and issubclass(c, transformers.PreTrainedModel) and c.__module__ == module.__name__
        }
    if name:
        return found[name]
    endings = (
        "ForCausalLM",
        "TextModel",
        "ForConditionalGeneration",
        "ForMaskedLM",
        "Patcher",
        "Encoder",
        "Decoder",
        "Model",
    )
    return next(c for end in endings for n, c in sorted(found.items()) if n.endswith(end) and "PreTrained" not in n)


def tiny(cls: Any, more: dict[str, Any]) -> dict[str, Any]:
    """Arguments for a configuration class, those of its parts included."""
    names = fields_of(cls)
    made = {k: v for k, v in SMALL.items() if k in names}
    if "kv_lora_rank" in made:
        made["num_key_value_heads"] = made["num_attention_heads"]
    for part, kind in getattr(cls, "sub_configs", {}).items():
        if (
            inspect.isclass(kind)
            and issubclass(kind, transformers.PreTrainedConfig)
            and kind is not transformers.AutoConfig
        ):
            given = more.get(part)
            made[part] = tiny(kind, given if isinstance(given, dict) else {})
    return {**made, **{k: v for k, v in more.items() if k not in made or not isinstance(made[k], dict)}}


@lru_cache
def fields_of(cls: type) -> set[str]:
    """What a configuration class takes."""
    names: set[str] = set()
    for base in cls.__mro__:
        names |= set(getattr(base, "__annotations__", {}))
        if base.__module__.startswith("transformers.models"):
            names |= set(inspect.signature(base.__init__).parameters)  # type: ignore[misc]
    return names


def first(output: Any) -> Tensor:
    """Logits, or the last hidden state, or the first floating tensor there is."""
    for key in ("logits", "last_hidden_state"):
        found = getattr(output, key, None)
        if isinstance(found, Tensor):
            return found
    return next(_tensors(output))


def _tensors(output: Any) -> Iterator[Tensor]:
    for value in output.values() if hasattr(output, "values") else output:
        if isinstance(value, (tuple, list)):
            yield from _tensors(value)
        elif isinstance(value, Tensor) and value.is_floating_point():
            yield value


def call(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """The output for these inputs, of which some models change their own copy."""
    given = {n: v.clone() if isinstance(v, Tensor) else v for n, v in inputs.items()}
    with torch.no_grad():
        return first(model(**given))
