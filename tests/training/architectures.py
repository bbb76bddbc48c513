"""Networks of ``transformers`` from tiny fresh configurations, by task and kind."""

from __future__ import annotations

from typing import Any

VOCABULARY = 61
_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
_ALL = {**_SIZES, "num_key_value_heads": 2}
_GROUPED = {**_SIZES, "num_key_value_heads": 1, "head_dim": 8}
_GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
_GPT_NEO = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 32}
_TWO_LAYERS = {"hidden_size": 16, "num_hidden_layers": 2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
_OPT = {**_SIZES, "ffn_dim": 24, "word_embed_proj_dim": 16}

CAUSAL: dict[str, dict[str, Any]] = {
    "gpt2": _GPT,
    "gptj": {**_GPT, "rotary_dim": 4},
    "codegen": {**_GPT, "rotary_dim": 4},
    "gpt_bigcode": _GPT,
    "gpt_neo": {**_GPT_NEO, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    **dict.fromkeys(("llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "gemma2"), _GROUPED),
    **dict.fromkeys(("gemma3_text", "starcoder2", "cohere", "granite", "smollm3", "helium"), _GROUPED),
    **dict.fromkeys(("glm", "exaone4"), _GROUPED),
    **dict.fromkeys(("phi", "phi3", "olmo", "olmo2", "olmo3", "gpt_neox", "stablelm", "nemotron"), _ALL),
    "biogpt": _ALL,
    "bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 2},
    "mpt": {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 32, "expansion_ratio": 2},
    "falcon": {**_TWO_LAYERS, "num_attention_heads": 2},
    "opt": _OPT,
    "xglm": {"d_model": 16, "ffn_dim": 24, "num_layers": 2, "attention_heads": 2, "max_position_embeddings": 32},
    "mamba": {**_TWO_LAYERS, "state_size": 4, "time_step_rank": 2},
    "mamba2": {**_TWO_LAYERS, "state_size": 4, "head_dim": 8, "num_heads": 4, "n_groups": 1, "chunk_size": 8},
    "rwkv": {**_TWO_LAYERS, "attention_hidden_size": 16, "intermediate_size": 24, "context_length": 32},
    "recurrent_gemma": {**_GROUPED, "attention_window_size": 8},
    "lfm2": {**_GROUPED, "layer_types": ["conv", "full_attention"]},
    "mixtral": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**_GROUPED, **_EXPERTS, "shared_expert_intermediate_size": 12},
    "qwen3_moe": {**_GROUPED, **_EXPERTS},
    "olmoe": {**_ALL, **_EXPERTS},
    "qwen3_next": {
        **_GROUPED,
        **_EXPERTS,
        "shared_expert_intermediate_size": 12,
        **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
        **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
        "layer_types": ["linear_attention", "full_attention"],
    },
    "deepseek_v3": {
        **_ALL,
        "moe_intermediate_size": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "v_head_dim"), 8),
        **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 4),
        **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    },
}
_BART = {
    "d_model": 16,
    "max_position_embeddings": 32,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24),
}
_SQUEEZED = ("q", "k", "v", "post_attention", "intermediate", "output")
CLASSIFIERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "ernie", "mpnet", "deberta"), _SIZES),
    "deberta-v2": {
        **_SIZES,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
    },
    "distilbert": {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 32},
    "electra": {**_SIZES, "embedding_size": 16},
    "albert": {**_SIZES, "embedding_size": 8},
    "modernbert": {**_SIZES, "global_attn_every_n_layers": 2, "local_attention": 8},
    "mobilebert": {**_SIZES, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "squeezebert": {**_SIZES, "embedding_size": 16, **{f"{part}_groups": 1 for part in _SQUEEZED}},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
    "bart": _BART,
    **{kind: CAUSAL[kind] for kind in ("gpt2", "llama", "qwen3", "gemma3_text", "gpt_neox", "opt", "mixtral")},
    "xlnet": {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24},
    "fnet": _SIZES,
    "nystromformer": _SIZES,
}
REFUSED = {
    **dict.fromkeys(("xlnet", "fnet", "nystromformer"), "changes beside a longer one"),
    "mobilebert": "differs from that of autograd",
    **dict.fromkeys(("t5", "bart"), "with and without an end token"),
}
"""Classifiers that see padded places, and that look for the end token."""


def build_architecture(kind: str, task: str, **config: Any) -> Any:
    """A fresh model of ``kind``, its weights moved a little, with the dropout that is its own."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    library: Any = AutoModelForCausalLM if task == "next-word" else AutoModelForSequenceClassification
    sizes = (CAUSAL if task == "next-word" and kind != "bert" else CLASSIFIERS)[kind]
    named = {} if task == "next-word" else {"num_labels": 3}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "cls_token_id": 0, "sep_token_id": 1}
    model_config = AutoConfig.for_model(kind, **{"vocab_size": VOCABULARY, **ids, **sizes, **named, **config})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = library.from_config(model_config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model
