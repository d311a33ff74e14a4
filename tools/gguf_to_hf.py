#!/usr/bin/env python3
"""GGUF (llama architecture, byte-level BPE) to a Hugging Face fp16 checkpoint and to an MLX affine one with the same bits.

    gguf_to_hf.py MODEL.gguf [--hf DIR] [--mlx DIR]

A Q4_1 block is an affine group of 32 with 4 bits (w = scale * q + bias is the same form), a Q8_0 block one with 8 bits
(q + 128, bias = -128 * scale, exact in fp16): two containers with equal weights, so that what reads them can be compared
token by token. Needs numpy, gguf, safetensors.
"""
import argparse
import json
import os

import numpy as np
from gguf import GGMLQuantizationType as Q, GGUFReader, dequantize
from safetensors.numpy import save_file

TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
       "output.weight": "lm_head.weight"}
LAYER = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
         "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def hf_name(name):
    if name in TOP:
        return TOP[name]
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER[part]}.{suffix}"


def unpermute(rows, n_heads):
    """GGUF interleaves the two halves of each head's rows (its rotary layout); this takes that back."""
    if not n_heads:
        return rows
    return rows.reshape(n_heads, rows.shape[0] // n_heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def split_blocks(tensor):
    """Returns (codes u8 [rows, cols], scales f16 [rows, cols / 32], biases f16 likewise, bits), or None when not quantised."""
    rows = int(tensor.shape[1]) if len(tensor.shape) > 1 else 1
    raw = np.asarray(tensor.data, dtype=np.uint8).reshape(rows, -1)

    def f16(part):
        return part.copy().view(np.float16)[..., 0]

    if tensor.tensor_type == Q.Q4_1:  # f16 scale, f16 min, 16 bytes: low nibbles are the first 16 values
        b = raw.reshape(rows, -1, 20)
        codes = np.concatenate([b[:, :, 4:] & 15, b[:, :, 4:] >> 4], axis=2)
        return codes.reshape(rows, -1), f16(b[:, :, 0:2]), f16(b[:, :, 2:4]), 4
    if tensor.tensor_type == Q.Q4_0:  # f16 scale, 16 bytes; value = scale * (code - 8)
        b = raw.reshape(rows, -1, 18)
        codes = np.concatenate([b[:, :, 2:] & 15, b[:, :, 2:] >> 4], axis=2)
        scale = f16(b[:, :, 0:2])
        return codes.reshape(rows, -1), scale, (scale.astype(np.float32) * -8).astype(np.float16), 4
    if tensor.tensor_type == Q.Q8_0:  # f16 scale, 32 signed bytes
        b = raw.reshape(rows, -1, 34)
        codes = (b[:, :, 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
        scale = f16(b[:, :, 0:2])
        return codes.reshape(rows, -1), scale, (scale.astype(np.float32) * -128).astype(np.float16), 8
    return None


def pack(codes, bits):
    """Codes to 32-bit words, the first code in the lowest bits."""
    per_word = 32 // bits
    x = codes.reshape(codes.shape[0], -1, per_word).astype(np.uint32)
    words = np.zeros(x.shape[:2], np.uint32)
    for i in range(per_word):
        words |= x[:, :, i] << np.uint32(bits * i)
    return words


def convert(reader, n_heads, n_kv_heads):
    """Returns (fp16 tensors, MLX tensors, MLX overrides for tensors that are not 4-bit)."""
    hf, mlx, overrides = {}, {}, {}
    for t in reader.tensors:
        name = hf_name(t.name)
        heads = n_heads if ".attn_q." in t.name else n_kv_heads if ".attn_k." in t.name else 0
        plain = t.tensor_type in (Q.F32, Q.F16)
        values = np.asarray(t.data) if plain else dequantize(t.data, t.tensor_type)
        values = values.reshape([int(s) for s in reversed(t.shape)]).astype(np.float16)
        hf[name] = np.ascontiguousarray(unpermute(values, heads))
        blocks = split_blocks(t)
        if blocks is None:
            mlx[name] = hf[name]
            continue
        codes, scale, bias, bits = blocks
        codes, scale, bias = (np.ascontiguousarray(unpermute(x, heads)) for x in (codes, scale, bias))
        base = name[:-len(".weight")]
        mlx[name], mlx[base + ".scales"], mlx[base + ".biases"] = pack(codes, bits), scale, bias
        if bits != 4:
            overrides[base] = {"group_size": 32, "bits": bits, "mode": "affine"}
        again = codes.reshape(codes.shape[0], -1, 32).astype(np.float32) * scale[..., None].astype(np.float32)
        again = (again + bias[..., None].astype(np.float32)).reshape(codes.shape).astype(np.float16)
        assert np.array_equal(again, hf[name]), f"{name}: the affine form has other values"
    return hf, mlx, overrides


def text_files(kv):
    """tokenizer.json, tokenizer_config.json"""
    tokens, types = kv["tokenizer.ggml.tokens"], kv["tokenizer.ggml.token_type"]

    def token(role):
        return tokens[kv[f"tokenizer.ggml.{role}_token_id"]]

    added = [dict(id=i, content=text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for i, (text, kind) in enumerate(zip(tokens, types)) if kind == 3]
    byte_level = dict(type="ByteLevel", trim_offsets=True, use_regex=True)
    tokenizer = dict(
        version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None,
        pre_tokenizer=dict(type="Sequence", pretokenizers=[dict(type="Digits", individual_digits=True),
                                                           dict(byte_level, add_prefix_space=False)]),
        post_processor=None, decoder=dict(byte_level, add_prefix_space=True),
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                   fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab={x: i for i, x in enumerate(tokens)},
                   merges=kv["tokenizer.ggml.merges"]))
    config = dict(
        tokenizer_class="GPT2TokenizerFast", add_prefix_space=False, bos_token=token("bos"), eos_token=token("eos"),
        unk_token=token("unknown"), pad_token=token("padding"), model_max_length=kv["llama.context_length"],
        clean_up_tokenization_spaces=False, chat_template=kv["tokenizer.chat_template"],
        additional_special_tokens=[token("bos"), token("eos")],
        added_tokens_decoder={str(s["id"]): {k: v for k, v in s.items() if k != "id"} for s in added})
    return tokenizer, config


def model_config(kv, tied):
    def get(key, default=None):
        return kv.get("llama." + key, default)

    def token_id(role):
        return kv.get(f"tokenizer.ggml.{role}_token_id")

    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", attention_bias=False, mlp_bias=False,
        hidden_size=get("embedding_length"), intermediate_size=get("feed_forward_length"), num_hidden_layers=get("block_count"),
        num_attention_heads=get("attention.head_count"), num_key_value_heads=get("attention.head_count_kv"),
        head_dim=get("rope.dimension_count"), max_position_embeddings=get("context_length"),
        rms_norm_eps=round(float(get("attention.layer_norm_rms_epsilon")), 12), rope_theta=float(get("rope.freq_base", 10000.0)),
        rope_scaling=None, tie_word_embeddings=tied, vocab_size=len(kv["tokenizer.ggml.tokens"]), use_cache=True,
        bos_token_id=token_id("bos"), eos_token_id=token_id("eos"), pad_token_id=token_id("padding"), torch_dtype="float16")


def write(folder, tensors, files, kind):
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": kind})
    for name, content in files.items():
        with open(os.path.join(folder, name), "w") as f:
            json.dump(content, f, ensure_ascii=False, indent=1 if name != "tokenizer.json" else None)
    print(folder, sum(x.nbytes for x in tensors.values()), "bytes of tensors")


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("gguf")
    ap.add_argument("--hf")
    ap.add_argument("--mlx")
    a = ap.parse_args()
    reader = GGUFReader(a.gguf)
    kv = {k: f.contents() for k, f in reader.fields.items()}
    if kv["general.architecture"] != "llama":
        ap.error(f"{a.gguf}: architecture {kv['general.architecture']}, wanted llama")
    hf, mlx, overrides = convert(reader, kv["llama.attention.head_count"], kv["llama.attention.head_count_kv"])
    config = model_config(kv, "lm_head.weight" not in hf)
    tokenizer, tokenizer_config = text_files(kv)
    ids = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    files = {"config.json": config, "tokenizer.json": tokenizer, "tokenizer_config.json": tokenizer_config,
             "generation_config.json": ids}
    if a.hf:
        write(a.hf, hf, files, "pt")
    if a.mlx:
        quantization = dict(group_size=32, bits=4, mode="affine", **overrides)
        files["config.json"] = dict(config, quantization=quantization, quantization_config=quantization)
        write(a.mlx, mlx, files, "mlx")


if __name__ == "__main__":
    main()
