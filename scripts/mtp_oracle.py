#!/usr/bin/env python3
"""The MTP layer in NumPy, double precision, written from its formulas alone, and goldens made of it.

  mtp_oracle.py of MODEL TRUNK OUT   goldens of MODEL's layer for the prompts of TRUNK, a folder with
                                     golden.safetensors that holds X.ids and X.f32.hidden (the
                                     trunk's final normed rows, from another implementation)
  mtp_oracle.py random OUT           a small random checkpoint with an MTP layer of odd sizes, and
                                     goldens for random hidden rows
  mtp_oracle.py compare MODEL TRUNK GOLDEN
                                     compares with GOLDEN's X.mtp.hidden and X.mtp.last_logits that
                                     others computed

Needs NumPy.  OUT/golden.safetensors then holds, for every prompt X of n tokens, rows 0..n-2:

  X.ids, X.mtp.input_hidden [n-1, hidden]
  X.mtp.hidden [n-1, hidden]          after shared_head.norm
  X.mtp.last_logits [vocabulary]      of the last row
  X.mtp.top8_ids, X.mtp.top8_logits   [n-1, 8]

Row t: e = RMS(E[token t+1]; enorm), the zero vector before the norm at t = 0; h = RMS(hidden_t;
hnorm); x = W_eh [e; h]; x += SparseAttention(RMS(x)); x += MoE(RMS(x)); out = RMS(x; shared_head).
"""
import glob
import json
import os
import struct
import sys

import numpy as np

CODES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32, "I16": np.int16,
         "U8": np.uint8, "F16": np.float16}


def e4m3_table():
    table = np.zeros(256)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = (mantissa / 8 * 2.0 ** -6 if exponent == 0
                 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))
        table[code] = -value if code & 128 else value
    table[[127, 255]] = np.nan
    return table


def read(path):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        data = f.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        raw, shape = data[first:last], entry["shape"]
        if entry["dtype"] == "BF16":
            bits = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
            tensors[name] = bits.view(np.float32).reshape(shape)
        elif entry["dtype"] == "F8_E4M3":
            tensors[name] = e4m3_table()[np.frombuffer(raw, np.uint8)].reshape(shape)
        else:
            tensors[name] = np.frombuffer(raw, CODES[entry["dtype"]]).reshape(shape)
    return tensors


def write(path, tensors, bf16=()):
    header, blobs, at = {}, [], 0
    names = {np.dtype(np.float32): "F32", np.dtype(np.int32): "I32"}
    for name, value in sorted(tensors.items()):
        if name in bf16:
            bits = value.astype(np.float32).view(np.uint32)
            blob = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
            dtype = "BF16"
        else:
            blob, dtype = np.ascontiguousarray(value).tobytes(), names[value.dtype]
        header[name] = {"dtype": dtype, "shape": list(value.shape),
                        "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


class Weights:
    """A checkpoint's tensors, widened to double when they are asked for."""

    def __init__(self, folder):
        self.stored = {}
        for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
            if os.path.basename(path) != "golden.safetensors":
                self.stored.update(read(path))
        with open(os.path.join(folder, "config.json")) as f:
            config = json.load(f)
        self.config = config.get("text_config", config)

    def __call__(self, name):
        stored = self.stored
        if name + "_packed" in stored:
            n, k = stored[name + "_shape"]
            codes = stored[name + "_packed"].astype(np.uint32)[:, :, None] >> (4 * np.arange(8))
            codes = (codes & 15).reshape(n, k).astype(float) - 8
            return codes * np.repeat(stored[name + "_scale"].astype(float), 128, 1)[:, :k]
        value = stored[name].astype(float)
        if name + "_scale_inv" in stored:
            scale = stored[name + "_scale_inv"].astype(float)
            n, k = value.shape
            value = value * np.repeat(np.repeat(scale, 128, 0)[:n], 128, 1)[:, :k]
        return value


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x, axis):
    x = np.exp(x - x.max(axis, keepdims=True))
    return x / x.sum(axis, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class MtpLayer:
    def __init__(self, weights):
        self.w, self.c = weights, weights.config
        self.at = f"model.language_model.layers.{self.c['num_hidden_layers']}."

    def matrix(self, name):
        return self.w(self.at + name)

    def attention(self, x):
        c, m = self.c, lambda name: self.matrix("self_attn." + name)
        rows, heads, eps = len(x), c["num_attention_heads"], c["rms_norm_eps"]
        keys, values = c["qk_nope_head_dim"], c["v_head_dim"]
        query_rank = rms(x @ m("q_a_proj.weight").T, m("q_a_layernorm.weight"), eps)
        latent = rms(x @ m("kv_a_proj_with_mqa.weight").T, m("kv_a_layernorm.weight"), eps)
        q = (query_rank @ m("q_b_proj.weight").T).reshape(rows, heads, keys)
        kv = (latent @ m("kv_b_proj.weight").T).reshape(rows, heads, keys + values)
        seen = self.selected(x, query_rank)
        out = np.zeros((rows, heads, values))
        for head in range(heads):
            scores = q[:, head] @ kv[:, head, :keys].T / np.sqrt(keys)
            out[:, head] = softmax(np.where(seen, scores, -np.inf), 1) @ kv[:, head, keys:]
        return out.reshape(rows, -1) @ m("o_proj.weight").T

    def selected(self, x, query_rank):
        """[row, token]: the best complete pools and the incomplete tail."""
        c, m = self.c, lambda name: self.matrix("self_attn.indexer." + name)
        rows, heads, dim = len(x), c["index_n_heads"], c["index_head_dim"]
        pool, most = c["index_kpool"], c["index_topk"] // c["index_kpool"]
        query = (query_rank @ m("wq_b.weight").T).reshape(rows, heads, dim)
        key = x @ m("wk.weight").T
        key = key - key.mean(-1, keepdims=True)
        key = key / np.sqrt((key * key).mean(-1, keepdims=True) + 1e-6)
        key = key * m("k_norm.weight") + m("k_norm.bias")
        gate = x @ m("index_kpool_compress_gate").T
        head_weight = x @ m("weights_proj.weight").T / np.sqrt(heads)
        whole = rows // pool
        share = softmax(gate[:whole * pool].reshape(whole, pool, dim)
                        + m("index_kpool_compress_ape"), 1)
        pooled = (share * key[:whole * pool].reshape(whole, pool, dim)).sum(1)
        scores = np.einsum("rhd,pd->rhp", query, pooled) / np.sqrt(dim)
        scores = (np.maximum(scores, 0) * head_weight[:, :, None]).sum(1)
        seen = np.zeros((rows, rows), bool)
        for t in range(rows):
            complete = (t + 1) // pool
            best = np.argsort(-scores[t, :complete], kind="stable")[:most]
            for p in best:
                seen[t, p * pool:(p + 1) * pool] = True
            seen[t, complete * pool:t + 1] = True
        return seen

    def swiglu(self, at, x):
        limit = self.c["swiglu_limit"]
        gate = np.minimum(x @ self.matrix(at + "gate_proj.weight").T, limit)
        up = np.clip(x @ self.matrix(at + "up_proj.weight").T, -limit, limit)
        return (gate * sigmoid(gate) * up) @ self.matrix(at + "down_proj.weight").T

    def experts(self, x):
        c = self.c
        score = sigmoid(x @ self.matrix("mlp.gate.weight").T)
        order = np.argsort(-(score + self.matrix("mlp.gate.e_score_correction_bias")), 1,
                           kind="stable")[:, :c["num_experts_per_tok"]]
        out = self.swiglu("mlp.shared_experts.", x)
        picked = np.take_along_axis(score, order, 1)
        weight = c["routed_scaling_factor"] * picked
        if c["norm_topk_prob"]:
            weight = weight / (picked.sum(1, keepdims=True) + 1e-20)
        for expert in range(c["n_routed_experts"]):
            rows, place = np.nonzero(order == expert)
            if len(rows) > 0:
                y = self.swiglu(f"mlp.experts.{expert}.", x[rows])
                out[rows] += weight[rows, place][:, None] * y
        return out

    def __call__(self, ids, hidden):
        """ids [n], hidden [n-1, D] -> h' [n-1, D], logits [n-1, vocabulary]"""
        eps = self.c["rms_norm_eps"]
        table = self.w("model.language_model.embed_tokens.weight")
        embedded = table[np.asarray(ids[1:])].copy()
        embedded[0] = 0
        joined = np.concatenate([rms(embedded, self.matrix("enorm.weight"), eps),
                                 rms(hidden, self.matrix("hnorm.weight"), eps)], 1)
        x = joined @ self.matrix("eh_proj.weight").T
        x = x + self.attention(rms(x, self.matrix("input_layernorm.weight"), eps))
        x = x + self.experts(rms(x, self.matrix("post_attention_layernorm.weight"), eps))
        out = rms(x, self.matrix("shared_head.norm.weight"), eps)
        return out, out @ self.w("lm_head.weight").T


def golden_of(layer, name, ids, hidden):
    out, logits = layer(ids, hidden.astype(float))
    top = np.argsort(-logits, 1, kind="stable")[:, :8]
    return {f"{name}.ids": np.asarray(ids, np.int32),
            f"{name}.mtp.input_hidden": hidden.astype(np.float32),
            f"{name}.mtp.hidden": out.astype(np.float32),
            f"{name}.mtp.last_logits": logits[-1].astype(np.float32),
            f"{name}.mtp.top8_ids": top.astype(np.int32),
            f"{name}.mtp.top8_logits": np.take_along_axis(logits, top, 1).astype(np.float32)}


def random_checkpoint(out, rng):
    """Trunk of one KDA layer, an MTP layer of odd sizes: pools of 8, three heads, a clamp."""
    hidden, vocabulary, experts, inter, rank, latent = 48, 97, 5, 24, 40, 56
    heads, keys, values, index_heads, index_dim, pool = 3, 24, 16, 5, 16, 8
    text = {
        "model_type": "glm5_next_text", "dtype": "bfloat16", "vocab_size": vocabulary,
        "hidden_size": hidden, "num_hidden_layers": 1, "intermediate_size": 40,
        "moe_intermediate_size": inter, "num_attention_heads": heads,
        "num_key_value_heads": heads, "q_lora_rank": rank, "kv_lora_rank": latent,
        "qk_nope_head_dim": keys, "qk_rope_head_dim": 0, "qk_head_dim": keys,
        "v_head_dim": values, "head_dim": 0, "mla_use_nope": True, "attention_bias": False,
        "attention_dropout": 0.0, "hidden_act": "silu", "swiglu_limit": 1.5, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "n_routed_experts": experts, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.7,
        "moe_router_dtype": "float32", "first_k_dense_replace": 1, "mlp_layer_types": ["dense"],
        "layer_types": ["linear_attention"],
        "linear_attn_config": {"num_heads": 1, "head_dim": 32, "short_conv_kernel_size": 4,
                               "gate_lower_bound": -5.0, "kda_layers": [0],
                               "full_attn_layers": []},
        "index_n_heads": index_heads, "index_head_dim": index_dim, "index_topk": 24,
        "index_kpool": pool, "index_kpool_compress": True, "index_kpool_always_select_tail": True,
        "indexer_types": ["full"], "indexer_rope_interleave": True,
        "index_share_for_mtp_iteration": True, "mhc": True, "hc_mult": 4, "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6, "num_nextn_predict_layers": 1, "initializer_range": 0.02,
        "pad_token_id": 0, "eos_token_id": [0], "tie_word_embeddings": False}
    config = {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next",
              "dtype": "bfloat16", "tie_word_embeddings": False, "eos_token_id": [0],
              "pad_token_id": 0, "text_config": text}
    tensors, exact = {}, set()

    def put(name, shape, deviation, mean=0.0, f32=False):
        tensors[name] = (rng.standard_normal(shape) * deviation + mean).astype(np.float32)
        if f32:
            exact.add(name)

    def matrix(name, n, k, gain=1.0):
        put(name, (n, k), gain * k ** -0.5)

    def norm(name, n):
        put(name, (n,), 0.2, 1.0)

    def swiglu(at, width):
        for part in ("gate_proj", "up_proj"):
            matrix(at + part + ".weight", width, hidden, 1.5)
        matrix(at + "down_proj.weight", hidden, width)

    root = "model.language_model."
    put(root + "embed_tokens.weight", (vocabulary, hidden), 1.0)
    matrix("lm_head.weight", vocabulary, hidden, 2.0)
    norm(root + "norm.weight", hidden)
    at = root + "layers.0."
    for site in ("attn", "ffn"):
        matrix(at + f"hc_{site}_fn", 24, 4 * hidden)
        put(at + f"hc_{site}_base", (24,), 0.7, f32=True)
        put(at + f"hc_{site}_scale", (3,), 0.2, 1.0, f32=True)
    norm(at + "input_layernorm.weight", hidden)
    norm(at + "post_attention_layernorm.weight", hidden)
    for name in "qkv":
        matrix(at + f"self_attn.{name}_proj.weight", 32, hidden)
        put(at + f"self_attn.{name}_conv1d.weight", (32, 1, 4), 0.6)
    for name in "fg":
        matrix(at + f"self_attn.{name}_a_proj.weight", 32, hidden)
        matrix(at + f"self_attn.{name}_b_proj.weight", 32, 32)
    matrix(at + "self_attn.b_proj.weight", 1, hidden)
    put(at + "self_attn.A_log", (1,), 0.5, f32=True)
    put(at + "self_attn.dt_bias", (32,), 1.0, -2.0, f32=True)
    norm(at + "self_attn.o_norm.weight", 32)
    matrix(at + "self_attn.o_proj.weight", hidden, 32)
    swiglu(at + "mlp.", 40)

    at = root + "layers.1."
    for name in ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm",
                 "shared_head.norm"):
        norm(at + name + ".weight", hidden)
    matrix(at + "eh_proj.weight", hidden, 2 * hidden)
    a = at + "self_attn."
    matrix(a + "q_a_proj.weight", rank, hidden)
    norm(a + "q_a_layernorm.weight", rank)
    matrix(a + "q_b_proj.weight", heads * keys, rank, 1.5)
    matrix(a + "kv_a_proj_with_mqa.weight", latent, hidden)
    norm(a + "kv_a_layernorm.weight", latent)
    matrix(a + "kv_b_proj.weight", heads * (keys + values), latent)
    matrix(a + "o_proj.weight", hidden, heads * values)
    x = a + "indexer."
    matrix(x + "wq_b.weight", index_heads * index_dim, rank)
    matrix(x + "wk.weight", index_dim, hidden)
    norm(x + "k_norm.weight", index_dim)
    put(x + "k_norm.bias", (index_dim,), 0.2)
    matrix(x + "weights_proj.weight", index_heads, hidden)
    matrix(x + "index_kpool_compress_gate", index_dim, hidden)
    put(x + "index_kpool_compress_ape", (pool, index_dim), 0.7)
    matrix(at + "mlp.gate.weight", experts, hidden)
    put(at + "mlp.gate.e_score_correction_bias", (experts,), 0.2, f32=True)
    for e in range(experts):
        swiglu(f"{at}mlp.experts.{e}.", inter)
    swiglu(at + "mlp.shared_experts.", inter)
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "config.json"), "w") as f:
        f.write(json.dumps(config, indent=1) + "\n")
    write(os.path.join(out, "model.safetensors"), tensors, set(tensors) - exact)
    return hidden, vocabulary


def main():
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "random":
        out, = arguments
        rng = np.random.default_rng(61)
        hidden, vocabulary = random_checkpoint(out, rng)
        layer, tensors = MtpLayer(Weights(out)), {}
        for n in (2, 9, 40, 130):
            ids = rng.integers(1, vocabulary, n).tolist()
            rows = rng.standard_normal((n - 1, hidden)).astype(np.float32)
            tensors.update(golden_of(layer, f"text{n}", ids, rows))
        write(os.path.join(out, "golden.safetensors"), tensors)
    elif command == "of":
        model, trunk, out = arguments
        layer, tensors = MtpLayer(Weights(model)), {}
        golden = read(os.path.join(trunk, "golden.safetensors"))
        for name in sorted(golden):
            stem = name.removesuffix(".f32.hidden")
            if stem != name:
                tensors.update(golden_of(layer, stem, golden[stem + ".ids"].tolist(),
                                         golden[name][:-1]))
        os.makedirs(out, exist_ok=True)
        write(os.path.join(out, "golden.safetensors"), tensors)
    else:
        model, trunk, folder = arguments
        layer, golden = MtpLayer(Weights(model)), read(os.path.join(folder, "golden.safetensors"))
        rows = read(os.path.join(trunk, "golden.safetensors"))
        for name in sorted(golden):
            stem = name.removesuffix(".mtp.hidden")
            if stem == name:
                continue
            given = rows[stem + ".f32.hidden"][:-1]
            out, logits = layer(golden[stem + ".ids"].tolist(), given.astype(float))
            theirs = golden[name]
            ratio = np.abs(out - theirs).max(1) / np.sqrt((theirs ** 2).mean(1))
            last = golden[stem + ".mtp.last_logits"]
            spread = last - last.mean()
            off = np.abs(logits[-1] - logits[-1].mean() - spread).max()
            print(f"{stem}: hidden max|d|/RMS {ratio.max():.3g}, last logits "
                  f"{off / np.sqrt((spread ** 2).mean()):.3g}")


if __name__ == "__main__":
    main()
