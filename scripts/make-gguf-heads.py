#!/usr/bin/env python3
"""Writes tests/data/tiny-gguf: what llama.cpp's convert_hf_to_gguf.py makes of the tiny models, without the weights.

  python make-gguf-heads.py LLAMA_CPP FILLED [--out DIR] [MODEL ...]

LLAMA_CPP: a source tree of llama.cpp (the sdist of llama-cpp-python has one in vendor/llama.cpp).
FILLED: a folder with complete copies of tests/data/tiny/* (config.json, model.safetensors, tokenizer files), as the golden tests
make them below the build's test folder.

NAME.head holds the converter's file up to its data: metadata, vocabulary, and each tensor's name, type, shape and place.
NAME.sum holds the sha256 of the whole file and its size: the tests fill in the weights and must arrive at the same bytes.
NAME.safetensors, T5 only: encoder_last_hidden and logits of transformers (F32) with a relative_attention_max_distance of 128: GGUF
has no key for it, the tiny models have 16.
NAME-TYPE: with --outtype TYPE, else bf16.
mmproj-NAME: with --mmproj, the vision tower. Its image_mean and image_std are those of the published models; the tiny ones have none. The
converter counts the merger's mlp.2 as a block, which a tower of two blocks has not: its table of names is made for eight.

Made with llama-cpp-python 0.3.36, torch 2.15.0, transformers 5.24.0. The converter knows a tokenizer's pre-tokenizer by the hash of
what it makes of a text; ours is unknown to it and is called qwen2 here. T5's vocabulary is taken as byte-level BPE for the same reason.
Python is not part of the build; the files are checked in."""
import argparse
import hashlib
import json
import os
import pathlib
import sys
import tempfile

MODELS = ["llama", "llama_tied_rope3", "llama_yarn", "mistral", "qwen3", "qwen3_moe", "qwen3_next", "t5", "t5_gated",
          "qwen2_vl", "mmproj-qwen2_vl", "llama-q8_0", "qwen3_moe-q8_0"]
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("llama_cpp")
parser.add_argument("filled")
parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/data/tiny-gguf"))
parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
args = parser.parse_args()

os.environ["NO_LOCAL_GGUF"] = "1"
sys.path[:0] = [args.llama_cpp, os.path.join(args.llama_cpp, "gguf-py")]
import conversion
import conversion.t5
import gguf
from conversion.base import ModelBase, TextModel

TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
conversion.t5.T5Model.set_vocab = lambda self: self._set_vocab_gpt2()


def convert(model, path, kind, mmproj):
    params = ModelBase.load_hparams(model, False)
    arch = conversion.get_model_architecture(params, conversion.ModelType.MMPROJ if mmproj else conversion.ModelType.TEXT)
    make = conversion.get_model_class(arch, mmproj=mmproj)
    if make.supports_mtp_export:
        make.no_mtp = True
    types = {"bf16": gguf.LlamaFileType.MOSTLY_BF16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
    made = make(model, types[kind], path, is_big_endian=False, use_temp_file=False, eager=True)
    if mmproj:
        made.tensor_map = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
        made.preprocessor_config = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
    made.write()


def golden(model, path):
    import torch
    import transformers
    from safetensors.torch import save_file
    torch.set_num_threads(1)
    with open(os.path.join(model, "golden.json")) as f:
        ids = json.load(f)
    config = transformers.T5Config.from_pretrained(model, relative_attention_max_distance=128)
    m = transformers.T5ForConditionalGeneration.from_pretrained(model, config=config, dtype=torch.float32).eval()
    with torch.no_grad():
        out = m(input_ids=torch.tensor([ids["encoder_ids"]]), decoder_input_ids=torch.tensor([ids["decoder_ids"]]))
    save_file({"encoder_last_hidden": out.encoder_last_hidden_state[0].contiguous(), "logits": out.logits[0].contiguous()}, path)
    os.chmod(path, 0o644)


os.makedirs(args.out, exist_ok=True)
for name in args.models or MODELS:
    mmproj = name.startswith("mmproj-")
    model, _, kind = name.removeprefix("mmproj-").partition("-")
    with tempfile.TemporaryDirectory() as d:
        path = pathlib.Path(d) / "model.gguf"
        convert(pathlib.Path(args.filled) / model, path, kind or "bf16", mmproj)
        whole = path.read_bytes()
        head = whole[:gguf.GGUFReader(path).data_offset]
    with open(os.path.join(args.out, name + ".head"), "wb") as f:
        f.write(head)
    with open(os.path.join(args.out, name + ".sum"), "w") as f:
        f.write("%s %d\n" % (hashlib.sha256(whole).hexdigest(), len(whole)))
    if model.startswith("t5"):
        golden(os.path.join(args.filled, model), os.path.join(args.out, name + ".safetensors"))
    print(name, len(head), len(whole))
