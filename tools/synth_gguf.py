#!/usr/bin/env python3
"""Writes an F16 GGUF with random weights in a given shape: for speed, not for text.

    synth_gguf.py OUT.gguf --vocab-from REAL.gguf --shape 1b|moe

The vocabulary is the other file's, padded. Quantise the result with llama-quantize --pure. Needs numpy and gguf.
"""
import argparse

import numpy as np
from gguf import GGUFReader, GGUFWriter

SHAPES = {
    # Llama-3.2-1B
    "1b": dict(hidden=2048, layers=16, heads=32, kv_heads=8, head_dim=64, ffn=8192, vocab=128256, experts=0, top=0),
    # about 1 B parameters, 0.25 B of them active
    "moe": dict(hidden=1024, layers=16, heads=16, kv_heads=8, head_dim=64, ffn=1536, vocab=49152, experts=16, top=2),
}
ONES = 1 << 22  # normal deviates that every tensor is cut from, at a random offset: fast, and no two blocks are alike


def write_metadata(w, s, source):
    w.add_name("synthetic")
    w.add_block_count(s["layers"])
    w.add_context_length(8192)
    w.add_embedding_length(s["hidden"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(500000.0)
    w.add_rope_dimension_count(s["head_dim"])
    w.add_vocab_size(s["vocab"])
    w.add_file_type(1)
    if s["experts"]:
        w.add_expert_count(s["experts"])
        w.add_expert_used_count(s["top"])
    kv = {k: f.contents() for k, f in GGUFReader(source).fields.items()}
    tokens, types = list(kv["tokenizer.ggml.tokens"]), list(kv["tokenizer.ggml.token_type"])
    while len(tokens) < s["vocab"]:
        tokens.append(f"<pad{len(tokens)}>")
        types.append(5)  # unused
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(kv["tokenizer.ggml.pre"])
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(kv["tokenizer.ggml.merges"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_pad_token_id(2)
    w.add_add_bos_token(False)
    w.add_chat_template(kv["tokenizer.chat_template"])


def write_tensors(w, s):
    rng = np.random.default_rng(1)
    base = rng.standard_normal(ONES, dtype=np.float32)

    def random(*shape):
        n, scale = int(np.prod(shape)), 0.6 / np.sqrt(shape[-1])
        out = np.empty(n, np.float16)
        for i in range(0, n, ONES):
            k = min(ONES, n - i)
            out[i:i + k] = (np.roll(base, int(rng.integers(ONES))) * scale)[:k]
        return out.reshape(shape)

    d, ffn, experts = s["hidden"], s["ffn"], s["experts"]
    q_dim, kv_dim = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    one = np.ones(d, np.float32)
    w.add_tensor("token_embd.weight", random(s["vocab"], d))
    w.add_tensor("output_norm.weight", one)
    for i in range(s["layers"]):
        p = f"blk.{i}."
        w.add_tensor(p + "attn_norm.weight", one)
        w.add_tensor(p + "ffn_norm.weight", one)
        w.add_tensor(p + "attn_q.weight", random(q_dim, d))
        w.add_tensor(p + "attn_k.weight", random(kv_dim, d))
        w.add_tensor(p + "attn_v.weight", random(kv_dim, d))
        w.add_tensor(p + "attn_output.weight", random(d, q_dim))
        if experts:
            w.add_tensor(p + "ffn_gate_inp.weight", random(experts, d).astype(np.float32))
            w.add_tensor(p + "ffn_gate_exps.weight", random(experts, ffn, d))
            w.add_tensor(p + "ffn_up_exps.weight", random(experts, ffn, d))
            w.add_tensor(p + "ffn_down_exps.weight", random(experts, d, ffn))
        else:
            w.add_tensor(p + "ffn_gate.weight", random(ffn, d))
            w.add_tensor(p + "ffn_up.weight", random(ffn, d))
            w.add_tensor(p + "ffn_down.weight", random(d, ffn))


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("out")
    ap.add_argument("--vocab-from", required=True)
    ap.add_argument("--shape", choices=SHAPES, default="1b")
    a = ap.parse_args()
    w = GGUFWriter(a.out, "llama")
    write_metadata(w, SHAPES[a.shape], a.vocab_from)
    write_tensors(w, SHAPES[a.shape])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
