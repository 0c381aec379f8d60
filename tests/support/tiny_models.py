"""Makes tiny random models that a real vLLM serves: grouped-query attention, MLA, sliding windows
beside full layers, and gated delta nets beside full layers; and some of them again with the marks of
a ModelOpt checkpoint that asks for an FP8 KV cache.

Arguments: a directory with a tokenizer, the directory to write into.
"""

import json
import pathlib
import shutil
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

COMMON = {"vocab_size": 49152, "max_position_embeddings": 1_048_576, "tie_word_embeddings": False}
MODELS = {
    "gqa": ("qwen3", {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32,
    }),
    "mla": ("deepseek_v3", {
        "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 32,
        "kv_lora_rank": 512, "qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32,
    }),
    "sliding": ("gemma3_text", {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 12, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 1024, "query_pre_attn_scalar": 32,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
    }),
    "hybrid": ("qwen3_next", {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 4,
        "decoder_sparse_step": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
        "num_experts_per_tok": 2,
    }),
}


MARKED = [("mla-fp8", "mla", "both"), ("mla-fp8-legacy", "mla", "legacy"), ("gqa-fp8", "gqa", "both")]


def main(tokenizer: str, target: str) -> None:
    torch.manual_seed(0)
    for name, (kind, sizes) in MODELS.items():
        directory = pathlib.Path(target) / name
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **COMMON, **sizes))
        model.to(torch.bfloat16).save_pretrained(directory)
        for file in pathlib.Path(tokenizer).glob("*token*"):
            shutil.copy(file, directory)
        template = pathlib.Path(tokenizer) / "chat_template.jinja"
        if template.exists():
            shutil.copy(template, directory)
        path = directory / "config.json"
        config = json.loads(path.read_text())
        if kind == "deepseek_v3":
            # transformers does not write these, and vLLM needs them.
            config.update(topk_method="noaux_tc", scoring_func="sigmoid")
        path.write_text(json.dumps(config, indent=2))
    for name, base, layout in MARKED:
        directory = pathlib.Path(target) / name
        shutil.copytree(pathlib.Path(target) / base, directory)
        mark(directory, layout)
    # Gives true answers, which random weights cannot; the weights are links.
    answering = pathlib.Path(target) / "answering-fp8"
    answering.mkdir()
    for file in pathlib.Path(tokenizer).iterdir():
        if file.name == "config.json":
            shutil.copy(file, answering)
        elif file.name != "kdeploy-model.json":
            (answering / file.name).symlink_to(file.resolve())
    mark(answering, "both")


def mark(directory, layout):
    """Writes what ModelOpt writes; no layer is quantised, so that any processor can run it."""
    if layout != "legacy":
        path = directory / "config.json"
        config = json.loads(path.read_text())
        config["quantization_config"] = {
            "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*"],
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        }
        path.write_text(json.dumps(config, indent=2))
    quantization = {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["*"],
    }
    hf = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": quantization}
    (directory / "hf_quant_config.json").write_text(json.dumps(hf, indent=4))


main(*sys.argv[1:])
