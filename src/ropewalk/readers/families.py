"""What a configuration does not say: facts about each family of models, one table.

Source: the modeling and configuration code of transformers 5.24, and what it reads of older spellings. A test walks all
of its configuration classes and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from ropewalk.rotation import Layout, Place

Rotates = Literal["all", "none", "sliding", "sliding-label", "windowed", "listed", "bases", "chosen"]


@dataclass(frozen=True)
class Family:
    """Facts about one family.

    Args:
        layout: which channels make a pair.
        base: where the configuration states none.
        partial: share of the head that turns where the configuration states none; None: always the whole head, and a
            configuration that says otherwise is refused.
        head_dim: where the configuration states none; None: hidden_size over heads.
        place: whether the rotating channels lead or trail.
        mla: the rotating part is qk_rope_head_dim channels after qk_nope_head_dim others.
        softmax: mscale_all_dim also multiplies the softmax scale, squared.
        rotates: which layers do. "none": no layer, though widths are stated for it; "sliding": those of type
            sliding_attention, if there is a sliding window; "sliding-label": whatever the window; "windowed": the same,
            but all where there is no window; "listed": by no_rope_layers; "bases": by layer_rope_theta; "chosen":
            position_embedding_type or a flag decides.
        labels: names under which parameters nest by type of layer; empty: they do not nest.
        bases: for each label, the base where none is stated.
        partials: for each label, the share of the head where none is stated.
        every: types of layers where none are stated: of `every` layers one is full_attention, the others
            sliding_attention; 0: all layers are alike.
        full_first: that one is the first of its group, not the last.
        last_full: the last layer is full_attention in any case.
        layers: how many layers where the configuration does not count them, for families whose layers differ.
        bands: how pairs are dealt out to axes, and the sections where none are stated.
        block: the whole block of parameters where none is stated.
        temperature: which query temperature it has.
    """

    layout: Layout = "half"
    base: float = 10_000.0
    partial: float | None = None
    head_dim: int | None = None
    place: Place = "leading"
    mla: bool = False
    softmax: bool = False
    rotates: Rotates = "all"
    labels: tuple[str, ...] = ()
    bases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    partials: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    every: int = 0
    full_first: bool = False
    last_full: bool = False
    layers: int | None = None
    bands: Literal["chunked", "interleaved", "ernie"] | None = None
    sections: tuple[int, ...] = ()
    block: Mapping[str, Any] | None = None
    temperature: Literal["llama4", "beta"] | None = None


def _same(names: str, family: Family) -> dict[str, Family]:
    return dict.fromkeys(names.split(), family)


def _because(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


_PLAIN = Family()
_FULL_SLIDING = ("full_attention", "sliding_attention")
_GEMMA3 = Family(
    head_dim=256,
    labels=_FULL_SLIDING,
    bases={"full_attention": 1e6, "sliding_attention": 1e4},
    every=6,
    layers=26,
)
_GEMMA4 = replace(_GEMMA3, last_full=True, partials={"full_attention": 0.25}, layers=30, block=None)
_MODERNBERT = Family(
    labels=_FULL_SLIDING,
    bases={"full_attention": 160_000.0, "sliding_attention": 10_000.0},
    every=3,
    full_first=True,
    layers=22,
)
_MLA = Family(layout="interleaved", place="trailing", mla=True, softmax=True)
_OSS = MappingProxyType(
    {
        "rope_type": "yarn",
        "rope_theta": 150_000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
)
_LLAMA31 = MappingProxyType(
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
)
_MINISTRAL = MappingProxyType(
    {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        # Halves, the whole head, one base: what most copied from Llama.
        **_same(
            "arcee aria_text chameleon deepseek_ocr2_text dia_decoder dia_encoder diffllama doge dots1 esmc"
            " eurobert falcon_h1 gradium_phonon_tts granite granite4_vision_text granite_docling_text granitemoe"
            " granitemoeshared hyperclovax idefics iquestcoder internlm3 jais2 kyutai_speech_to_text lasr_encoder"
            " llama mimi mimi_decoder mimi_encoder ministral mistral moshi neucodec olmo olmo2 olmoe pocket_tts"
            " pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder qwen2"
            " qwen2_moe qwen3_moe seed_oss starcoder2 unlimited_ocr_text voxtral_realtime_encoder xcodec2"
            " voxtral_realtime_text deepseek_ocr2_encoder hrm_text hunyuan_v1_dense hunyuan_v1_moe jetmoe"
            " qwen2_5_omni_dit",
            _PLAIN,
        ),
        # Outside transformers, with Llama's own rotation.
        **_same("internlm internlm2 deepseek minicpm orion xverse Yi aquila", _PLAIN),
        "dbrx": _PLAIN,
        "falcon": replace(_PLAIN, rotates="chosen"),
        "granitemoehybrid": replace(_PLAIN, rotates="chosen"),
        "zamba2": replace(_PLAIN, rotates="chosen"),
        "esm": replace(_PLAIN, rotates="chosen"),
        **_same("qwen3 molmo2_text qwen3_omni_moe_talker_code_predictor", replace(_PLAIN, head_dim=128)),
        **_same("gemma gemma2 vaultgemma t5_gemma_module", replace(_PLAIN, head_dim=256)),
        "timesfm2_5": replace(_PLAIN, head_dim=80),
        **_same("bitnet evolla flex_olmo mllama_text_model csm csm_depth_decoder_model", replace(_PLAIN, base=5e5)),
        **_same("exaone muse_glimmer_assistant", replace(_PLAIN, base=5e5, head_dim=128)),
        **_same("emu3_text_model lfm2 lfm2_moe minimax mixtral phimoe", replace(_PLAIN, base=1e6)),
        "gte": replace(_PLAIN, base=160_000.0),
        "jina_embeddings_v3": replace(_PLAIN, base=20_000.0),
        "nomic_bert": replace(_PLAIN, base=1000.0),
        "hy_v3": replace(_PLAIN, base=11_158_840.0, head_dim=128),
        "gpt_oss": replace(_PLAIN, base=150_000.0, head_dim=64, block=_OSS),
        "cwm": replace(
            _PLAIN, base=1e6, head_dim=128, block=MappingProxyType({**_LLAMA31, "rope_theta": 1e6, "factor": 16.0})
        ),
        **_same(
            "apertus apertus1p5_text",
            replace(_PLAIN, base=12e6, block=MappingProxyType({**_LLAMA31, "rope_theta": 12e6})),
        ),
        "higgs_audio_v2": replace(
            _PLAIN,
            base=5e5,
            head_dim=128,
            block=MappingProxyType(
                {
                    "rope_type": "llama3",
                    "rope_theta": 5e5,
                    "factor": 32.0,
                    "low_freq_factor": 0.125,
                    "high_freq_factor": 0.5,
                    "original_max_position_embeddings": 1024,
                }
            ),
        ),
        "ministral3": replace(_PLAIN, base=1e6, head_dim=128, block=_MINISTRAL, temperature="beta"),
        # Halves, part of the head.
        **_same("gpt_neox stablelm", replace(_PLAIN, partial=0.25)),
        **_same("bamba glm4_moe glmasr_encoder persimmon phi", replace(_PLAIN, partial=0.5)),
        **_same("nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp", replace(_PLAIN, partial=0.5)),
        "dots3_note_audio_encoder": replace(_PLAIN, partial=0.5, head_dim=64),
        "fuyu": replace(_PLAIN, partial=0.5, base=25_000.0),
        **_same("gpt_neox_japanese nemotron3_diarization_audio phi3 phi4_multimodal", replace(_PLAIN, partial=1.0)),
        "nemotron": replace(_PLAIN, partial=0.5),
        "recurrent_gemma": replace(_PLAIN, partial=0.5),
        "qwen3_next": replace(_PLAIN, partial=0.25, head_dim=256),
        "solar_open": replace(_PLAIN, partial=1.0, base=1e6, head_dim=128),
        **_same("minimax_m2 minimax_m3_vl_text", replace(_PLAIN, partial=1.0, base=5e6, head_dim=128)),
        "sarvam_moe": replace(_PLAIN, partial=1.0, base=8e6, head_dim=64),
        # Neighbours.
        "roformer": Family(layout="interleaved"),
        **_same("gptj codegen", Family(layout="interleaved")),
        "cohere": Family(layout="interleaved", base=5e5),
        **_same("blt_local_encoder blt_local_decoder blt_global_transformer", Family(layout="interleaved", base=5e5)),
        "blt_patcher": Family(layout="interleaved"),
        "helium": Family(layout="interleaved", base=1e5, head_dim=128),
        "ernie4_5": Family(layout="interleaved", base=5e5, head_dim=128),
        "ernie4_5_moe": Family(layout="interleaved", base=5e5),
        **_same("glm glm4", Family(layout="interleaved", partial=0.5, head_dim=128)),
        "moonshine": Family(layout="interleaved", partial=0.9),
        "moonshine_streaming": Family(layout="interleaved", partial=0.8),
        **_same(
            "pe_audio_encoder pe_video_encoder pe_audio_video_encoder",
            Family(layout="interleaved", base=20_000.0, head_dim=128),
        ),
        "openai_privacy_filter": Family(layout="interleaved", base=150_000.0, head_dim=64, block=_OSS),
        # Latent attention: the rotating channels are apart.
        **_same("axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa sarvam_mla youtu", _MLA),
        "kimi_k2": _MLA,
        "longcat_flash": replace(_MLA, base=1e7),
        "bailing_hybrid": replace(_MLA, base=6e6),
        **_same("hy_v4 minicpm3", replace(_MLA, layout="half")),
        **_same("kimi_linear glm5_next_text", replace(_MLA, rotates="none")),
        "hy_v4_vl_text": replace(_MLA, bands="interleaved", sections=(12, 10, 10)),
        "mistral4": replace(
            _MLA,
            temperature="beta",
            block=MappingProxyType(
                {**_MINISTRAL, "rope_theta": 1e4, "factor": 128.0, "original_max_position_embeddings": 8192}
            ),
        ),
        "dots3_note_text": replace(
            _MLA,
            softmax=False,
            labels=("indexed_attention", "sliding_attention"),
            bases={"indexed_attention": 8e7, "sliding_attention": 5e4},
        ),
        # Layers that differ.
        "gemma3_text": _GEMMA3,
        **_same("t5gemma2_text t5gemma2_decoder", _GEMMA3),
        "gemma3n_text": replace(_GEMMA3, every=5, layers=35),
        **_same("gemma4_text gemma4_unified_text diffusion_gemma_text", _GEMMA4),
        "embedding_gemma2_text": replace(_GEMMA4, partials={}, layers=24),
        **_same("modernbert modernbert-decoder", _MODERNBERT),
        "ultrabert": replace(
            _MODERNBERT, bases={"full_attention": 2_560_000.0, "sliding_attention": 1e4}, full_first=False, layers=32
        ),
        "olmo3": Family(
            labels=_FULL_SLIDING,
            bases={"full_attention": 5e5, "sliding_attention": 5e5},
            every=4,
            layers=32,
        ),
        "dory": Family(head_dim=256, labels=_FULL_SLIDING, bases={"full_attention": 1e7, "sliding_attention": 1e4}),
        "beam": Family(head_dim=128, labels=_FULL_SLIDING),
        "laguna": Family(
            partial=1.0,
            head_dim=128,
            labels=_FULL_SLIDING,
            bases={"full_attention": 5e5, "sliding_attention": 1e4},
            partials={"full_attention": 0.5},
        ),
        "mellum": Family(
            partial=1.0, head_dim=128, labels=_FULL_SLIDING, bases={"full_attention": 5e5, "sliding_attention": 1e4}
        ),
        "mimo_v2_flash": Family(
            partial=0.334, head_dim=192, labels=_FULL_SLIDING, bases={"full_attention": 5e6, "sliding_attention": 1e4}
        ),
        "step3p5": Family(partial=1.0, head_dim=128, labels=_FULL_SLIDING),
        "zaya": Family(
            partial=0.5,
            head_dim=128,
            labels=("hybrid", "hybrid_sliding"),
            bases={"hybrid": 5e6, "hybrid_sliding": 1e4},
        ),
        "lfm3": Family(head_dim=128, labels=_FULL_SLIDING, bases={"full_attention": 1e6, "sliding_attention": 1e4}),
        "deepseek_v4": Family(
            layout="interleaved",
            place="trailing",
            partial=0.125,
            head_dim=512,
            labels=("main", "compress"),
            bases={"main": 1e4, "compress": 160_000.0},
        ),
        "afmoe": Family(head_dim=128, rotates="sliding-label", every=4, layers=32),
        "lara_mini": Family(head_dim=128, rotates="sliding-label"),
        "flint": Family(head_dim=128, rotates="sliding"),
        "cohere2": Family(layout="interleaved", rotates="sliding", every=4, layers=40),
        "cohere2_moe": Family(layout="interleaved", head_dim=128, rotates="sliding", every=4, layers=40),
        **_same("exaone4 exaone_moe", Family(rotates="windowed", every=4, layers=32)),
        "kolibri1": Family(head_dim=128, rotates="windowed"),
        "olmo_hybrid": _PLAIN,
        "smollm3": Family(base=2e6, rotates="listed", layers=36),
        "llama4_text": Family(
            layout="interleaved", base=5e5, head_dim=128, rotates="listed", layers=48, temperature="llama4"
        ),
        **_same("granite_swa granitemoe_swa", Family(rotates="bases")),
        "muse_glimmer_text": Family(head_dim=128, rotates="bases"),
        "muse_spark_text": Family(head_dim=64, base=5e5, rotates="bases"),
        # Several axes.
        **_same(
            "qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text", Family(base=1e6, bands="chunked", sections=(16, 24, 24))
        ),
        "paddleocr_vl_text": Family(base=5e5, head_dim=128, bands="chunked", sections=(16, 24, 24)),
        **_same(
            "glm4v_text glm_ocr_text", Family(layout="interleaved", partial=1.0, bands="chunked", sections=(8, 12, 12))
        ),
        "glm4v_moe_text": Family(partial=0.5, bands="chunked", sections=(8, 12, 12)),
        "glm_image_text": Family(partial=1.0, bands="chunked", sections=(8, 12, 12)),
        "qwen3_vl_text": Family(base=5e5, head_dim=128, bands="interleaved", sections=(24, 20, 20)),
        "qwen3_vl_moe_text": Family(base=5e5, bands="interleaved", sections=(24, 20, 20)),
        "qwen2_5_omni_talker": Family(base=1e6, head_dim=128, bands="chunked", sections=(16, 24, 24)),
        "qwen3_omni_moe_talker_text": Family(base=1e6, bands="interleaved", sections=(24, 20, 20)),
        "qwen3_omni_moe_text": Family(base=1e6, bands="interleaved", sections=(24, 20, 20)),
        "cosmos3_edge_text": Family(base=1e8, head_dim=128, bands="interleaved", sections=(24, 20, 20)),
        **_same(
            "qwen3_5_text qwen3_5_moe_text",
            Family(partial=0.25, head_dim=256, bands="interleaved", sections=(11, 11, 10)),
        ),
        "qwen4_exp_text": Family(partial=1.0, head_dim=256, bands="interleaved", sections=(11, 11, 10)),
        "ernie4_5_vl_moe_text": Family(layout="interleaved", base=5e5, bands="ernie", sections=(22, 22, 20)),
        "cohere_compass_text": Family(
            labels=_FULL_SLIDING, bands="interleaved", sections=(24, 20, 20), every=4, layers=40
        ),
    }
)
"""By model_type, as it stands in a config.json."""

GENERIC = Family(partial=1.0, labels=("full_attention", "sliding_attention", "chunked_attention"))
"""For a configuration that does not say what model it is."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "qwen2_vl": "qwen2_vl_text",
        "qwen2_5_vl": "qwen2_5_vl_text",
        "qwen3_vl": "qwen3_vl_text",
        "qwen3_vl_moe": "qwen3_vl_moe_text",
        "qwen3_5": "qwen3_5_text",
        "qwen3_5_moe": "qwen3_5_moe_text",
        "gemma3": "gemma3_text",
        "gemma3n": "gemma3n_text",
        "gemma4": "gemma4_text",
        "llama4": "llama4_text",
        "mllama": "mllama_text_model",
        "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
        "glm4v": "glm4v_text",
        "glm4v_moe": "glm4v_moe_text",
        "paddleocr_vl": "paddleocr_vl_text",
        "step3p7_text": "step3p5",
        "t5gemma": "t5_gemma_module",
    }
)
"""Names of whole models whose text part may stand at the top level, in older files."""

_VISION = "it turns by the rows and columns of an image, not by places in a text; give the text part"
_VIDEO = "it turns by the rows and columns of a memory of frames, with sizes fixed in code"
_SPEECH = "its kind of position is one of three, and its rotation comes before the projection to queries and keys"
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "nanochat": "it turns backwards (by minus the angle), which no other family does",
        "mistral_large4_text": "it multiplies every frequency by a learned number that is in the weights, not here",
        **dict.fromkeys(
            ("clvp", "clvp_encoder", "clvp_decoder"),
            "its width and rotation are fixed in code, and it rotates values too",
        ),
        "musicflamingo": "it turns by seconds of audio, not by tokens",
        "neomme": "its pairs alternate between the rows and columns of a page, and halves of the ladder go to each",
        "esmfold2": "its positions are coordinates, not tokens",
        "vjepa2": "its rotation is not one: pairs share channels with different angles",
        "hunyuan_vl_text": "its sections cut through pairs, so that the two channels of a pair follow different axes",
        "deepseek_ocr2_vision": "it has no positions of its own; give its encoder_config",
        "nemotron3_diarization": "it has no text part; give its audio_config",
        **_because(_SPEECH, "seamless_m4t seamless_m4t_v2 wav2vec2-conformer wav2vec2-bert"),
        **_because(_VIDEO, "edgetam_video sam2_video sam3_tracker_video"),
        **_because(
            _VISION,
            "cohere_compass_vision dinov3_vit dots3_note_vision_encoder efficientloftr eomt_dinov3"
            " ernie4_5_vl_moe_vision exaone4_5_vision gemma4_vision glm4v_vision glm4v_moe_vision glm5_next_vision"
            " glm_ocr_vision inkling2_vision kimi_k25_vision lfm3_vl_vision llama4_vision_model minimax_m3_vl_vision"
            " mlcd_vision_model muse_glimmer_vision muse_spark_vision paddleocr_vl_vision pixtral"
            " qwen2_5_omni_vision_encoder qwen2_5_vl_vision qwen2_vl_vision qwen3_5_vision qwen3_5_moe_vision"
            " qwen3_omni_moe_vision_encoder qwen3_vl_vision qwen3_vl_moe_vision qwen4_exp_vision sam3_vit_model"
            " sapiens2 step3p5_vision video_llama_3_vision",
        ),
    }
)
"""Families that this reader knows and does not read, with the reason."""
