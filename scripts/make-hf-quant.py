#!/usr/bin/env python3
"""Writes tests/data/hfquant: one directory for each quantisation scheme of Hugging Face checkpoints.

Each holds config.json and model.safetensors with a matrix "q" (and for some schemes more) packed as
the scheme's library packs it, and "<stem>.want.weight", F32: what the library's unpacking gives,
computed here in float32 from the codes before they are packed. The layouts are written down from
AutoGPTQ, AutoAWQ, compressed-tensors, ModelOpt, transformers (bitnet) and bitsandbytes. Needs numpy.
Python is not part of the build; the files are checked in."""
import json
import os
import struct
import sys

import numpy as np

N, K = 16, 128
rng = np.random.default_rng(7)
out_dir = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../tests/data/hfquant")
f32 = np.float32


def save(name, quant, tensors):
    path = os.path.join(out_dir, name)
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump({"model_type": "llama", "quantization_config": quant}, f)
        f.write("\n")
    header, data = {}, b""
    for key, (dtype, a) in tensors.items():
        raw = np.ascontiguousarray(a).tobytes()
        header[key] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + data)


def bf16(a):  # -> (bits, value), cut: any bf16 number will do
    bits = (a.astype(f32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(f32)


def e4m3():  # the values of all codes; 0x7f and 0xff are NaN
    v = np.zeros(256, f32)
    for c in range(256):
        e, m = c >> 3 & 15, c & 7
        x = np.ldexp(m / 8, -6) if e == 0 else np.ldexp(1 + m / 8, e - 7)
        v[c] = -x if c & 128 else x
    return v


E4M3 = e4m3()
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], f32)


def fp8_codes():
    q = rng.integers(0, 256, (N, K)).astype(np.uint8)
    q[(q & 127) == 127] = 0
    return q


def scales(*shape):
    return (rng.random(shape) * 0.01 + 0.001).astype(f32)


def fp8():
    q = fp8_codes()
    s = scales(2, 2)  # blocks of 12 x 64: the last block of rows is short
    full = np.repeat(np.repeat(s, 12, 0)[:N], 64, 1)
    save("fp8_block", {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [12, 64]},
         {"q.weight": ("F8_E4M3", q), "q.weight_scale_inv": ("F32", s), "q.want.weight": ("F32", E4M3[q] * full)})
    bits, v = bf16(scales(N, 1))
    one = scales(1)
    save("fp8_channel", {"quant_method": "compressed-tensors", "format": "float-quantized"},
         {"q.weight": ("F8_E4M3", q), "q.weight_scale": ("BF16", bits), "q.want.weight": ("F32", E4M3[q] * v),
          "t.weight": ("F8_E4M3", q), "t.weight_scale": ("F32", one), "t.input_scale": ("F32", one),
          "t.want.weight": ("F32", E4M3[q] * one)})


def nvfp4():
    q = rng.integers(0, 16, (N, K)).astype(np.uint8)
    packed = q[:, ::2] | q[:, 1::2] << 4
    s = rng.integers(32, 120, (N, K // 16)).astype(np.uint8)
    g = f32(0.00123)
    save("modelopt_nvfp4", {"quant_method": "modelopt", "quant_algo": "NVFP4"},
         {"q.weight": ("U8", packed), "q.weight_scale": ("F8_E4M3", s), "q.weight_scale_2": ("F32", g.reshape(())),
          "q.want.weight": ("F32", np.repeat(E4M3[s] * g, 16, 1) * E2M1[q])})
    g = f32(812.3)
    save("ct_nvfp4", {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
         {"q.weight_packed": ("U8", packed), "q.weight_scale": ("F8_E4M3", s),
          "q.weight_global_scale": ("F32", g.reshape(1)),
          "q.want.weight": ("F32", np.repeat(E4M3[s] / g, 16, 1) * E2M1[q])})


def pack(a, bits):  # rows to streams of little-endian words, as pack_to_int32 and gptq (also 3 bits)
    b = (a[:, :, None].astype(np.uint32) >> np.arange(bits) & 1).reshape(len(a), -1)
    b = np.pad(b, ((0, 0), (0, -b.shape[1] % 32)))
    return (b.reshape(len(a), -1, 32) << np.arange(32, dtype=np.uint32)).sum(2).astype(np.uint32).astype(np.int32)


def compressed():
    t = {}
    for name, bits, group, sym in (("a", 4, 64, True), ("b", 4, 32, False), ("c", 8, K, True), ("d", 4, K, False)):
        q = rng.integers(0, 1 << bits, (N, K))
        b, v = bf16(scales(N, K // group))
        z = np.full((N, K // group), 1 << (bits - 1)) if sym else rng.integers(0, 1 << bits, (N, K // group))
        t[name + ".weight_packed"] = ("I32", pack(q, bits))
        t[name + ".weight_scale"] = ("BF16", b)
        t[name + ".weight_shape"] = ("I64", np.array([N, K], np.int64))
        if not sym:
            t[name + ".weight_zero_point"] = ("I32", pack(z.T, bits).T)
        t[name + ".want.weight"] = ("F32", (q - np.repeat(z, group, 1)).astype(f32) * np.repeat(v, group, 1))
    save("ct_int", {"quant_method": "compressed-tensors", "format": "pack-quantized"}, t)
    q = rng.integers(-128, 128, (N, K)).astype(np.int8)
    b, v = bf16(scales(N, 1))
    save("ct_int8", {"quant_method": "compressed-tensors", "format": "int-quantized"},
         {"q.weight": ("I8", q), "q.weight_scale": ("BF16", b), "q.want.weight": ("F32", q.astype(f32) * v)})


def gptq():
    for name, extra, first in (("gptq", {}, 1), ("gptq_v2", {"checkpoint_format": "gptq_v2"}, 0)):
        t = {}
        for bits in (2, 3, 4, 8) if first else (4,):
            n = 32 if bits == 3 else N  # whole words of zeros
            q = rng.integers(0, 1 << bits, (n, K))
            z = rng.integers(first, (1 << bits), (n, K // 64))
            s = scales(n, K // 64).astype(np.float16)
            stem = "q%d" % bits
            t[stem + ".qweight"] = ("I32", pack(q, bits).T)
            t[stem + ".qzeros"] = ("I32", pack((z - first).T, bits))
            t[stem + ".scales"] = ("F16", s.T)
            t[stem + ".g_idx"] = ("I32", (np.arange(K) // 64).astype(np.int32))
            t[stem + ".want.weight"] = ("F32", (q - np.repeat(z, 64, 1)).astype(f32) * np.repeat(s.astype(f32), 64, 1))
        if first:
            for part in ("qweight", "qzeros", "scales"):
                t["act." + part] = t["q4." + part]
            t["act.g_idx"] = ("I32", (np.arange(K)[::-1] // 64).astype(np.int32))
        save(name, {"quant_method": "gptq", "group_size": 64, "desc_act": False, "dynamic": {}, **extra}, t)


def awq():
    q = rng.integers(0, 16, (N, K))
    z = rng.integers(0, 16, (N, K // 64))
    s = scales(N, K // 64).astype(np.float16)

    def columns(a):  # [n][m] -> [m][n / 8]
        words = np.zeros((a.shape[1], N // 8), np.uint32)
        for i, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            words |= a.T[:, column::8].astype(np.uint32) << np.uint32(4 * i)
        return words.astype(np.int32)

    save("awq", {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True},
         {"q.qweight": ("I32", columns(q)), "q.qzeros": ("I32", columns(z)), "q.scales": ("F16", s.T),
          "q.want.weight": ("F32", (q - np.repeat(z, 64, 1)).astype(f32) * np.repeat(s.astype(f32), 64, 1))})


def bitnet():
    q = rng.integers(-1, 2, (N, K))
    packed = sum((q[i * N // 4:(i + 1) * N // 4] + 1) << (2 * i) for i in range(4)).astype(np.uint8)
    b, v = bf16(np.array([0.37], f32))
    for name, kind, s in (("bitnet", "autobitlinear", v[0]), ("bitnet_div", "bitlinear", f32(1) / v[0])):
        save(name, {"quant_method": "bitnet", "linear_class": kind},
             {"q.weight": ("U8", packed), "q.weight_scale": ("BF16", b), "q.want.weight": ("F32", q.astype(f32) * s)})


NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                0.7229568362236023, 1.0], f32)


def bnb():
    q = rng.integers(0, 16, (N, K)).astype(np.uint8)
    t = {}
    for name, nested in (("p", False), ("n", True)):
        w = name + ".weight"
        state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [N, K]}
        t[w] = ("U8", (q[:, ::2] << 4 | q[:, 1::2]).reshape(-1, 1))
        t[w + ".quant_map"] = ("F32", NF4)
        maxima = scales(N * K // 64)
        if nested:
            codes = rng.integers(0, 256, N * K // 64).astype(np.uint8)
            table, top, offset = np.linspace(-1, 1, 256).astype(f32), scales(2), 0.02
            maxima = table[codes] * np.repeat(top, 16) + f32(offset)
            state.update(nested_blocksize=16, nested_dtype="float32", nested_offset=offset)
            t[w + ".nested_quant_map"], t[w + ".nested_absmax"] = ("F32", table), ("F32", top)
        t[w + ".absmax"] = ("U8", codes) if nested else ("F32", maxima)
        t[w + ".quant_state.bitsandbytes__nf4"] = ("U8", np.frombuffer(json.dumps(state).encode(), np.uint8))
        t[name + ".want.weight"] = ("F32", NF4[q] * np.repeat(maxima, 64).reshape(N, K))
    save("bnb_nf4", {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, t)


for make in (fp8, nvfp4, compressed, gptq, awq, bitnet, bnb):
    make()
