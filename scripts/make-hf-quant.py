#!/usr/bin/env python3
"""Writes tests/data/hfquant: a tiny model in each quantisation scheme of Hugging Face checkpoints, quantised and packed by
the scheme's own library.

  python make-hf-quant.py [--out DIR] [SCHEME ...]

All but ct_int4_act, which has to be named and wants compressed-tensors 0.9.4.

A scheme's directory holds config.json and model.safetensors as its library writes or packs them, and golden.safetensors:
  ids, logits    of transformers on the CPU, F32, with the weights as the library unpacks them
  <stem>.rows    of each row of those weights the FNV-1a hash (32 bits) of its bytes as F32. The library unpacks with its
                 scales held in F32, so it does not round to the model's type.
The model is a Llama of one layer with random weights (hidden 64, MLP 128), BF16, or F16 where the library wants that.

Made with torch 2.15.0 (CPU), transformers 5.24.0, compressed-tensors 0.19.0 and llmcompressor 0.14.0.1, auto-gptq 0.7.1, gptqmodel 7.7.0,
autoawq 0.2.9, bitsandbytes 0.50.2, nvidia-modelopt 0.47.0, datasets 5.2.0.
Python is not part of the build; the files are checked in."""
import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import types

os.environ.update(CUDA_VISIBLE_DEVICES="", TORCHDYNAMO_DISABLE="1")
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
HIDDEN, FFN, VOCAB = 64, 128, 64
IDS = [5, 40, 17, 33, 4, 50, 1, 63, 28]
f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16


# ---- the model ----


def model(dtype=bf16):
    torch.manual_seed(7)
    config = LlamaConfig(hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=1, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=16, vocab_size=VOCAB, max_position_embeddings=128, rms_norm_eps=1e-5,
                         tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, dtype=dtype)
    m = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, p in m.named_parameters():
            if p.dim() == 1:
                p.copy_(1 + (torch.rand(p.shape) - 0.5) / 2)
            else:
                p.copy_(torch.randn(p.shape) * (0.2 if "embed" in name else 1.2 / p.shape[1] ** 0.5))
    return m.to(dtype)


def linears(m):
    return {n: l for n, l in m.named_modules() if isinstance(l, torch.nn.Linear) and n != "lm_head"}


def calibration(n=8):
    g = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCAB, (1, 32), generator=g) for _ in range(n)]


def row_hashes(w):
    h = np.full(len(w), 0x811C9DC5, np.uint32)
    for b in w.view(np.uint8).reshape(len(w), -1).T:
        h = (h ^ b) * np.uint32(0x01000193)
    return torch.from_numpy(h.view(np.int32))


def finish(name, base, config, tensors, want):
    """Writes a scheme's directory. base: the model whose other weights are used; tensors: of the quantised matrices;
    want: stem -> what they stand for, F32."""
    path = os.path.join(args.out, name)
    os.makedirs(path, exist_ok=True)
    head = base.config.to_dict()
    head["quantization_config"] = config
    head["architectures"] = ["LlamaForCausalLM"]
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(head, f, indent=1, sort_keys=True, default=str)
        f.write("\n")
    rest = {k: v for k, v in base.state_dict().items() if k.rsplit(".", 1)[0] not in want and k != "lm_head.weight"}
    save_file({k: v.detach().clone().contiguous() for k, v in {**rest, **tensors}.items()},
              os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    plain = {k: v for k, v in base.config.to_dict().items() if k not in ("dtype", "quantization_config")}
    ref = LlamaForCausalLM(LlamaConfig(**plain)).to(f32).eval()
    state = {k: v.to(f32) for k, v in rest.items()}
    for stem, w in want.items():
        assert w.dtype == f32 and w.shape == ref.get_submodule(stem).weight.shape, (stem, w.dtype, w.shape)
        state[stem + ".weight"] = w
    keys = ref.load_state_dict(state, strict=False)
    assert keys.missing_keys in ([], ["lm_head.weight"]) and not keys.unexpected_keys, keys
    ref.tie_weights()
    with torch.no_grad():
        logits = ref(torch.tensor([IDS])).logits[0]
    golden = {"ids": torch.tensor(IDS, dtype=torch.int32), "logits": logits.contiguous()}
    for stem, w in want.items():
        golden[stem + ".rows"] = row_hashes(w.contiguous().numpy())
    save_file(golden, os.path.join(path, "golden.safetensors"))
    for f in os.listdir(path):
        os.chmod(os.path.join(path, f), 0o644)
    error = max(float((w - base.get_submodule(s).weight.detach().to(f32)).abs().max()) for s, w in want.items())
    print("%-22s %6d bytes, logits: sd %.2f, largest weight error %.3g" %
          (name, sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path)), logits.std(), error))


# ---- transformers: fp8 in blocks, bitnet ----


def fp8_block(name):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
    m = model()
    config = transformers.FineGrainedFP8Config(weight_block_size=(32, 32))
    q = types.SimpleNamespace(quantization_config=config)
    t, want = {}, {}
    for stem, l in linears(m).items():
        parts = Fp8Quantize(q).convert({stem + ".weight": l.weight.data})
        t.update(parts)
        want[stem] = Fp8Dequantize(q)._dequantize_one(parts[stem + ".weight"], parts[stem + ".weight_scale_inv"], f32)
    finish(name, m, config.to_dict(), t, want)


def bitnet(name, kind):
    """transformers packs and unpacks; it has no quantiser of its own, so the weights are rounded here."""
    from transformers.integrations.bitnet import pack_weights, unpack_weights
    m = model()
    t, want = {}, {}
    for stem, l in linears(m).items():
        w = l.weight.data
        scale = w.abs().mean()
        multiplies = kind == "autobitlinear"
        if not multiplies:
            scale = 1 / scale
        t[stem + ".weight"] = pack_weights((w / scale if multiplies else w * scale).round().clamp(-1, 1))
        t[stem + ".weight_scale"] = scale.reshape(1)
        q = unpack_weights(t[stem + ".weight"], dtype=f32)
        want[stem] = q * scale.to(f32) if multiplies else q / scale.to(f32)
    finish(name, m, transformers.BitNetQuantConfig(linear_class=kind, quantization_mode="offline").to_dict(), t, want)


# ---- bitsandbytes ----


def bnb_nf4(name, nested):
    import bitsandbytes.functional as F
    m = model()
    config = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=nested,
                                             bnb_4bit_compute_dtype=bf16).to_dict()
    t, want = {}, {}
    for stem, l in linears(m).items():
        q, state = F.quantize_4bit(l.weight.data, blocksize=64, compress_statistics=nested, quant_type="nf4")
        t[stem + ".weight"] = q
        for k, v in state.as_dict(packed=True).items():
            t[stem + ".weight." + k] = v
        state.dtype = f32
        want[stem] = F.dequantize_4bit(q, state)
    finish(name, m, config, t, want)


# ---- compressed-tensors, by llmcompressor ----


def oneshot(name, recipe, calibrated):
    from datasets import Dataset
    import llmcompressor
    with tempfile.TemporaryDirectory() as d:
        model().save_pretrained(d)
        for n in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(HERE, "../tests/data/tiny", n), d)
        m = LlamaForCausalLM.from_pretrained(d, dtype=bf16)
        rows = [{"input_ids": c[0].tolist(), "attention_mask": [1] * c.shape[1]} for c in calibration()]
        data = dict(dataset=Dataset.from_list(rows), max_seq_length=32, num_calibration_samples=8) if calibrated else {}
        llmcompressor.oneshot(model=m, recipe=recipe, **data)
        m.save_pretrained(d + "/out", save_compressed=True)
        with open(d + "/out/config.json") as f:
            return json.load(f)["quantization_config"], load_file(d + "/out/model.safetensors")


def ct(name, kind, calibrated, scheme=None, **weights):
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    modifier = GPTQModifier if kind == "gptq" else QuantizationModifier
    if scheme:
        recipe = modifier(targets="Linear", scheme=scheme, ignore=["lm_head"])
    else:
        groups = {"group_0": QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(type="int", **weights))}
        recipe = modifier(config_groups=groups, ignore=["lm_head"])
    config, parts = oneshot(name, recipe, calibrated)
    said = QuantizationScheme.model_validate(config["config_groups"]["group_0"])
    m = model()
    t, want = {}, {}
    for stem, l in linears(m).items():
        mine = {k[len(stem) + 1:]: v for k, v in parts.items() if k.startswith(stem + ".")}
        t.update({stem + "." + k: v for k, v in mine.items()})
        if mine["weight_scale"].dtype == bf16:
            mine["weight_scale"] = mine["weight_scale"].to(f32)
        compressor = BaseCompressor.get_value_from_registry(config["format"])
        if "nvfp4" in config["format"]:  # its decompress() gives BF16 whatever the scales are
            q = unpack_fp4_from_uint8(mine["weight_packed"], *l.weight.shape, dtype=f32)
            want[stem] = dequantize(q, scale=compressor._decompress_scale(mine["weight_scale"], f32), args=said.weights,
                                    global_scale=mine["weight_global_scale"], dtype=f32)
        else:
            want[stem] = compressor.decompress(mine, said)["weight"]
    finish(name, m, config, t, want)


def ct_act(name):
    """Groups in the order of activations, which compressed-tensors dropped after 0.9: its 0.9.4 scales, packs and unpacks."""
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.utils import calculate_qparams
    weights = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32, actorder="group")
    packer = PackedQuantizationCompressor()
    m = model(f32)
    seen = inputs_of(m)
    m = m.to(bf16)
    t, want = {}, {}
    for stem, l in linears(m).items():
        order = torch.cat([x[0] for x in seen[stem]]).square().mean(0).argsort(descending=True)
        g_idx = torch.empty(len(order), dtype=torch.int32)
        g_idx[order] = torch.arange(len(order), dtype=torch.int32) // 32
        groups = l.weight.data[:, order].unflatten(1, (-1, 32))
        scale, zero = calculate_qparams(groups.amin(2), groups.amax(2), weights)
        mine = packer.compress_weight(weight=l.weight.data, scale=scale, zero_point=zero, g_idx=g_idx, quantization_args=weights)
        mine.update(weight_scale=scale.to(bf16), weight_g_idx=g_idx)
        t.update({stem + "." + k: v for k, v in mine.items()})
        want[stem] = packer.decompress_weight({**mine, "weight_scale": mine["weight_scale"].to(f32)}, weights)
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights.model_dump(mode="json")}}}
    finish(name, m, config, t, want)


# ---- auto-gptq and autoawq: only their modules that quantise and pack; the packages' own start wants older transformers ----


def packages(*names):
    root = os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin))
    for n in names:
        sys.modules[n] = types.ModuleType(n)
        sys.modules[n].__path__ = [os.path.join(root, n.replace(".", "/"))]


def inputs_of(m):
    seen = {}
    hooks = [l.register_forward_hook(lambda l, x, y, s=stem: seen.setdefault(s, []).append(x[0].detach()))
             for stem, l in linears(m).items()]
    with torch.no_grad():
        for ids in calibration():
            m(ids)
    for h in hooks:
        h.remove()
    return seen


def gptq(name, bits, group, sym, act):
    torch.cuda.synchronize = lambda *a: None  # the quantiser waits for a GPU
    packages("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear", "auto_gptq.quantization", "auto_gptq.utils")
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear
    from auto_gptq.quantization.gptq import GPTQ
    m = model(f32)
    seen = inputs_of(m)
    t, want = {}, {}
    for stem, l in linears(m.to(f16)).items():
        g = GPTQ(l)
        g.quantizer.configure(bits, perchannel=True, sym=sym, mse=False)
        for x in seen[stem]:
            g.add_batch(x, None)
        scale, zero, g_idx = g.fasterquant(group_size=group, actorder=act)
        q = QuantLinear(bits, group, l.in_features, l.out_features, False)
        q.pack(l, scale, zero, g_idx)
        t.update({stem + "." + k: v.clone() for k, v in q.state_dict().items()})
        q.scales = q.scales.to(f32)
        want[stem] = q(torch.eye(l.in_features)).T.contiguous()
    finish(name, model(f16), transformers.GPTQConfig(bits=bits, group_size=group, sym=sym, desc_act=act).to_dict(), t, want)


def gptq_v2(name):
    """GPT-QModel as a whole: it loads, calibrates, quantises and saves; then loads what it saved."""
    os.environ["GPTQMODEL_CPU_WORKERS"] = "3"
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
    how = QuantizeConfig(bits=4, group_size=32, desc_act=True, sym=False, format="gptq_v2", act_group_aware=False)
    base = model(f16)
    with tempfile.TemporaryDirectory() as d:
        base.config.pad_token_id = 0
        base.save_pretrained(d)
        base.config.pad_token_id = None
        for n in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(HERE, "../tests/data/tiny", n), d)
        m = GPTQModel.load(d, how)
        m.quantize([{"input_ids": c[0].tolist(), "attention_mask": [1] * c.shape[1]} for c in calibration()], batch_size=1)
        m.save(d + "/out")
        with open(d + "/out/config.json") as f:
            config = json.load(f)["quantization_config"]
        parts = load_file(d + "/out/model.safetensors")
        read = GPTQModel.load(d + "/out", device="cpu", backend=BACKEND.GPTQ_TORCH).model
        t, want = {}, {}
        for stem in linears(base):
            t.update({k: v for k, v in parts.items() if k.startswith(stem + ".")})
            l = read.get_submodule(stem)
            l.scales = parts[stem + ".scales"].to(f32)  # they were loaded as BF16
            want[stem] = l.dequantize_weight().T.to(f32).contiguous()
    config["meta"].pop("offload_to_disk_path", None)
    finish(name, base, config, t, want)


def awq(name):
    packages("awq", "awq.modules", "awq.modules.linear", "awq.utils", "awq.quantize")
    from awq.modules.linear.gemm import WQLinear_GEMM
    vars(sys.modules["awq.modules.linear"]).update(WQLinear_GEMM=WQLinear_GEMM, WQLinear_GEMV=None, WQLinear_Marlin=None,
                                                   WQLinear_GEMVFast=None)
    for n in ("awq.utils.calib_data", "awq.quantize.scale"):
        sys.modules[n] = types.ModuleType(n)
    sys.modules["awq.utils.calib_data"].get_calib_dataset = None
    vars(sys.modules["awq.quantize.scale"]).update(apply_scale=None, apply_clip=None)
    from awq.quantize.quantizer import AwqQuantizer
    from awq.utils.packing_utils import dequantize_gemm
    how = types.SimpleNamespace(w_bit=4, group_size=64, zero_point=True)
    t, want = {}, {}
    for stem, l in linears(model(f16)).items():
        l.weight.data, scales, zeros = AwqQuantizer.pseudo_quantize_tensor(how, l.weight.data)
        q = WQLinear_GEMM.from_linear(l, 4, 64, False, scales.t().contiguous(), zeros.t().contiguous())
        t.update({stem + "." + k: v for k, v in q.state_dict().items()})
        want[stem] = dequantize_gemm(q.qweight, q.qzeros, q.scales.to(f32), 4, 64).T.contiguous().to(f32)
    config = {"bits": 4, "group_size": 64, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
              "zero_point": True}
    finish(name, model(f16), config, t, want)


# ---- ModelOpt ----


def modelopt(name, which):
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.qtensor import NVFP4QTensor
    m = model()
    m.config.architectures = ["LlamaForCausalLM"]
    with tempfile.TemporaryDirectory() as d:
        mtq.quantize(m, getattr(mtq, which), lambda m: [m(ids) for ids in calibration()])
        with torch.no_grad():
            export_hf_checkpoint(m, export_dir=d)
        with open(d + "/config.json") as f:
            config = json.load(f)["quantization_config"]
        parts = load_file(d + "/model.safetensors")
    m = model()
    t, want = {}, {}
    for stem, l in linears(m).items():
        mine = {k[len(stem) + 1:]: v for k, v in parts.items() if k.startswith(stem + ".")}
        t.update({stem + "." + k: v for k, v in mine.items()})
        if "weight_scale_2" in mine:
            q = NVFP4QTensor(l.weight.shape, f32, mine["weight"])
            want[stem] = q.dequantize(dtype=f32, scale=mine["weight_scale"], double_scale=mine["weight_scale_2"],
                                      block_sizes={-1: 16})
        else:
            want[stem] = mine["weight"].to(f32) * mine["weight_scale"]
    finish(name, m, config, t, want)


SCHEMES = {
    "fp8_block": (fp8_block,),
    "bitnet": (bitnet, "autobitlinear"),
    "bitnet_div": (bitnet, "bitlinear"),
    "bnb_nf4": (bnb_nf4, False),
    "bnb_nf4_nested": (bnb_nf4, True),
    "ct_fp8_channel": (ct, "round", False, "FP8_DYNAMIC"),
    "ct_fp8_tensor": (ct, "round", True, "FP8"),
    "ct_int4": (ct, "gptq", True, dict(num_bits=4, strategy="group", group_size=64, symmetric=True)),
    "ct_int4_asym": (ct, "gptq", True, dict(num_bits=4, strategy="group", group_size=32, symmetric=False)),
    "ct_int4_act": (ct_act,),
    "ct_int4_channel_asym": (ct, "round", False, dict(num_bits=4, strategy="channel", symmetric=False)),
    "ct_int8_packed": (ct, "round", False, dict(num_bits=8, strategy="channel", symmetric=True)),
    "ct_int8": (ct, "round", True, "W8A8"),
    "ct_nvfp4": (ct, "round", False, "NVFP4A16"),
    "gptq_2": (gptq, 2, 32, False, False),
    "gptq_3_act": (gptq, 3, 64, False, True),
    "gptq_4": (gptq, 4, 32, False, False),
    "gptq_4_act": (gptq, 4, 32, True, True),
    "gptq_v2_act": (gptq_v2,),
    "gptq_8": (gptq, 8, 64, True, False),
    "awq": (awq,),
    "modelopt_fp8": (modelopt, "FP8_DEFAULT_CFG"),
    "modelopt_nvfp4": (modelopt, "NVFP4_DEFAULT_CFG"),
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--out", default=os.path.join(HERE, "../tests/data/hfquant"))
parser.add_argument("schemes", nargs="*", metavar="SCHEME", help=", ".join(SCHEMES))
args = parser.parse_args()
torch.set_num_threads(1)
for name in args.schemes or [s for s in SCHEMES if s != "ct_int4_act"]:
    make, *how = SCHEMES[name]
    last = how.pop() if how and isinstance(how[-1], dict) else {}
    make(name, *how, **last)
