"""Turns the SmolLM2 GGUF of a package into a checkpoint that vLLM serves.

Arguments: the directory that was fetched, the directory to write.
"""

import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main(fetched: str, target: str) -> None:
    found = sorted(pathlib.Path(fetched).rglob("*.gguf"))
    if len(found) != 1:
        raise SystemExit(f"expected one .gguf file in the package, found {len(found)}")
    directory, name = str(found[0].parent), found[0].name
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        gguf_file=name,
        quantization_config=GgufConfig(gguf_file=name, dequantize=True),
        dtype=torch.float32,
    )
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=name)
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


main(*sys.argv[1:])
