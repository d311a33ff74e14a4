#!/usr/bin/env python3
"""Random-weight checkpoints in the tensor shapes of known models, for speed alone.

    bench/gpu/make_models.py SHAPE OUT [--layers N] [--vocab N] [--seed N]

SHAPE is llama-8b or qwen3-30b-a3b. OUT.gguf is written as Q4_0 (head Q6_K, as llama-quantize does), any other OUT as a directory in
MLX's affine 4-bit format, group 64. Scales are such that activations stay finite and a router spreads tokens over its experts. There is
no vocabulary. Needs numpy. Prints one JSON line; decode_bytes is what one token of one sequence must read of the weights.
"""
import argparse
import json
import os
import struct

import numpy as np

SHAPES = {
    "llama-8b": dict(arch="llama", hidden=4096, ffn=14336, layers=32, vocab=128256, heads=32, kv=8, dim=128, theta=5e5, eps=1e-5, ctx=131072),
    "qwen3-30b-a3b": dict(arch="qwen3moe", hidden=2048, ffn=768, layers=48, vocab=151936, heads=32, kv=4, dim=128, theta=1e6, eps=1e-6,
                          ctx=40960, experts=128, top=8),
}


class Noise:
    """Random bytes, cheaply: a block of them read from random places."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.block = self.rng.integers(0, 256, 1 << 26, dtype=np.uint8)

    def bytes(self, n):
        out = np.empty(n, np.uint8)
        at = 0
        while at < n:
            start = int(self.rng.integers(0, len(self.block) - 4096))
            part = self.block[start:start + n - at]
            out[at:at + len(part)] = part
            at += len(part)
        return out


def tensors(s):
    """(name, rows, k, kind): the matrices and vectors of a model, experts stacked (rows a tuple)."""
    n, qn, kn = s["hidden"], s["heads"] * s["dim"], s["kv"] * s["dim"]
    yield "embed", s["vocab"], n, "w"
    for i in range(s["layers"]):
        yield f"{i}.attn_norm", 1, n, "ones"
        yield f"{i}.q", qn, n, "w"
        yield f"{i}.k", kn, n, "w"
        yield f"{i}.v", kn, n, "w"
        if "experts" in s:
            yield f"{i}.q_norm", 1, s["dim"], "ones"
            yield f"{i}.k_norm", 1, s["dim"], "ones"
        yield f"{i}.o", n, qn, "w"
        yield f"{i}.mlp_norm", 1, n, "ones"
        if "experts" in s:
            yield f"{i}.router", s["experts"], n, "router"
        e = s.get("experts")
        yield f"{i}.gate", (e, s["ffn"]) if e else s["ffn"], n, "w"
        yield f"{i}.up", (e, s["ffn"]) if e else s["ffn"], n, "w"
        yield f"{i}.down", (e, n) if e else n, s["ffn"], "w"
    yield "norm", 1, n, "ones"
    yield "head", s["vocab"], n, "head"


def count(rows):
    return rows[0] * rows[1] if isinstance(rows, tuple) else rows


# ---- GGUF ----

F32, Q4_0, Q6_K = 0, 2, 14
BLOCK = {F32: (1, 4), Q4_0: (32, 18), Q6_K: (256, 210)}
GGUF_NAMES = {"embed": "token_embd", "norm": "output_norm", "head": "output", "attn_norm": "attn_norm", "q": "attn_q", "k": "attn_k",
              "v": "attn_v", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "o": "attn_output", "mlp_norm": "ffn_norm",
              "router": "ffn_gate_inp", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}


def gguf_name(name, rows):
    layer, _, stem = name.rpartition(".")
    experts = "_exps" if isinstance(rows, tuple) else ""
    return (f"blk.{layer}." if layer else "") + GGUF_NAMES[stem] + experts + ".weight"


def gguf_type(kind):
    return {"w": Q4_0, "head": Q6_K}.get(kind, F32)


def gguf_data(noise, t, n, k, kind):
    if kind == "ones":
        return np.ones(n, np.float32).view(np.uint8)
    if t == F32:
        return (noise.rng.standard_normal(n, dtype=np.float32) / np.float32(np.sqrt(k))).view(np.uint8)
    elements, size = BLOCK[t]
    a = noise.bytes(n // elements * size).reshape(-1, size)
    half = lambda x: np.frombuffer(np.float16(x).tobytes(), np.uint8)
    sign = noise.bytes(len(a)) & 0x80  # of the scale: the codes' own mean is not 0
    if t == Q4_0:
        a[:, 0:2] = half(1 / np.sqrt(k) / 4.6)
        a[:, 1] |= sign
    else:
        a[:, 192:208] = 4
        a[:, 208:210] = half(1 / np.sqrt(k) / (18.5 * 4))
        a[:, 209] |= sign
    return a.reshape(-1)


def kv(key, v):
    text = lambda x: struct.pack("<Q", len(x)) + x.encode()
    if isinstance(v, str):
        return text(key) + struct.pack("<I", 8) + text(v)
    if isinstance(v, float):
        return text(key) + struct.pack("<If", 6, v)
    return text(key) + struct.pack("<II", 4, v)


def write_gguf(path, s, noise):
    a = s["arch"]
    meta = {"general.architecture": a, "general.name": "random", "general.alignment": 32, "general.file_type": 2,
            "tokenizer.ggml.model": "no_vocab", a + ".context_length": s["ctx"], a + ".embedding_length": s["hidden"],
            a + ".block_count": s["layers"], a + ".feed_forward_length": 6144 if "experts" in s else s["ffn"], a + ".vocab_size": s["vocab"],
            a + ".attention.head_count": s["heads"], a + ".attention.head_count_kv": s["kv"], a + ".rope.freq_base": s["theta"],
            a + ".attention.key_length": s["dim"], a + ".attention.value_length": s["dim"], a + ".rope.dimension_count": s["dim"],
            a + ".attention.layer_norm_rms_epsilon": s["eps"]}
    if "experts" in s:
        meta.update({a + ".expert_count": s["experts"], a + ".expert_used_count": s["top"], a + ".expert_feed_forward_length": s["ffn"]})
    list_ = list(tensors(s))
    head = struct.pack("<IIQQ", 0x46554747, 3, len(list_), len(meta)) + b"".join(kv(k, v) for k, v in meta.items())
    offset = total = decode = 0
    sizes = []
    for name, rows, k, kind in list_:
        t = gguf_type(kind)
        dims = [k] if kind == "ones" else [k, *(reversed(rows) if isinstance(rows, tuple) else [rows])]
        elements, size = BLOCK[t]
        n = count(rows) * k // elements * size
        full = gguf_name(name, rows)
        head += struct.pack("<Q", len(full)) + full.encode() + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", t, offset)
        offset += (n + 31) // 32 * 32
        sizes.append(n)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32))
        for (name, rows, k, kind), n in zip(list_, sizes):
            f.write(gguf_data(noise, gguf_type(kind), count(rows) * k, k, kind).data)
            f.write(b"\0" * (-n % 32))
            total += n
            if name != "embed":
                decode += n * s["top"] / s["experts"] if isinstance(rows, tuple) else n
    return total, decode


# ---- MLX ----

MLX_NAMES = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head", "attn_norm": "input_layernorm",
             "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "q_norm": "self_attn.q_norm",
             "k_norm": "self_attn.k_norm", "o": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm", "router": "mlp.gate"}
GROUP = 64


def mlx_name(name, rows):
    layer, _, stem = name.rpartition(".")
    proj = MLX_NAMES.get(stem) or ("mlp.switch_mlp." if isinstance(rows, tuple) else "mlp.") + stem + "_proj"
    return (f"model.layers.{layer}." if layer else "") + proj


def bf16(x):
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_mlx(path, s, noise):
    os.makedirs(path, exist_ok=True)
    moe = "experts" in s
    quant = {"group_size": GROUP, "bits": 4, "mode": "affine"}
    header, parts, offset, total, decode = {}, [], 0, 0, 0

    def add(name, dtype, shape, n):
        nonlocal offset
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + n]}
        offset += n

    for name, rows, k, kind in tensors(s):
        stem = mlx_name(name, rows)
        lead = list(rows) if isinstance(rows, tuple) else [rows]
        if kind == "ones":
            add(stem + ".weight", "BF16", [k], 2 * k)
            parts.append(("ones", k, 0))
            continue
        bits = 8 if kind == "router" else 4
        if bits == 8:
            quant[stem] = {"group_size": GROUP, "bits": 8}
        n = count(rows) * k
        add(stem + ".weight", "U32", lead + [k * bits // 32], n * bits // 8)
        add(stem + ".scales", "BF16", lead + [k // GROUP], n // GROUP * 2)
        add(stem + ".biases", "BF16", lead + [k // GROUP], n // GROUP * 2)
        parts.append((bits, n, k))
        size = n * bits // 8 + n // GROUP * 4
        total += size
        if name != "embed":
            decode += size * s["top"] / s["experts"] if isinstance(rows, tuple) else size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for bits, n, k in parts:
            if bits == "ones":
                f.write(bf16(np.ones(n)).data)
                continue
            f.write(noise.bytes(n * bits // 8).data)
            step = 1 / np.sqrt(k) / (4.6 if bits == 4 else 74)
            sign = np.where(noise.bytes(n // GROUP) & 1, 1, -1).astype(np.float32)
            f.write(bf16(step * sign).data)
            f.write(bf16(step * sign * -(2**bits - 1) / 2).data)
    config = {"model_type": "qwen3_moe" if moe else "llama", "hidden_size": s["hidden"], "intermediate_size": 6144 if moe else s["ffn"],
              "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"], "num_key_value_heads": s["kv"], "head_dim": s["dim"],
              "vocab_size": s["vocab"], "rms_norm_eps": s["eps"], "rope_theta": s["theta"], "max_position_embeddings": s["ctx"],
              "hidden_act": "silu", "tie_word_embeddings": False, "quantization": quant}
    if moe:
        config.update({"num_experts": s["experts"], "num_experts_per_tok": s["top"], "moe_intermediate_size": s["ffn"],
                       "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []})
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f)
    return total, decode


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("shape", choices=SHAPES)
    ap.add_argument("out")
    ap.add_argument("--layers", type=int)
    ap.add_argument("--vocab", type=int)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    s = dict(SHAPES[a.shape])
    s.update({k: v for k, v in (("layers", a.layers), ("vocab", a.vocab)) if v})
    write = write_gguf if a.out.endswith(".gguf") else write_mlx
    total, decode = write(a.out, s, Noise(a.seed))
    print(json.dumps({"file": os.path.basename(a.out), "shape": a.shape, "bytes": total, "decode_bytes": int(decode)}))


if __name__ == "__main__":
    main()
