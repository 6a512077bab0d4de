#!/usr/bin/env python3
"""DFlash2 drafters in NumPy, double precision, written from their formulas alone.

  dflash_oracle.py golden OUT.safetensors   numbers of every shape in SHAPES, for the tests
  dflash_oracle.py check                    compares with the package `dflash` (PyPI) on the same
                                            weights and inputs, and the mask file with torch.load;
                                            needs torch, transformers >= 5.17 and
                                            pip install --no-deps dflash==0.1.0
                                            (--mask FILE: a mask_embedding.pt to be read too)

Weights and inputs are made from (seed, name, element) as `percheron synth` makes them, so that a
test has the same without a file.  For a shape X and a block of K places behind the newest token:

  X.logits [K, vocabulary]   of the places
  X.path [K]                 the greedy walk; X.scores [K, top]: S of its candidates, in descending
                             order of U (only where the shape has a selector)

Context: c_t = RMS(fc [tap_1(t); ..]; hidden_norm); a layer's keys rope(RMS_head(W_k c_t), t) and
values W_v c_t, for all t before the newest token's position p.  Block: E[newest], then mask vectors;
  n = RMS(x); gates = W_g n [side, tap, group]; n' = conv(n; 0); q, k = rope(RMS_head(W n')), v = W n'
  x += conv(W_o attention(q; context and block, |t - s| < window); 1)
  m = RMS(x); x += conv(W_down(silu(W_gate m') * W_up m'); 1), m' = conv(m; 0)
  conv(z; side)_t[c] = sum_tap (base[side, tap, c] + gates_t[side, tap, c // width]) z_(t - tap)[c]
Head: U = lm_head RMS(x); S_t(b) = U_t(b) + sum_r P[a_(t-1), r] (W h_t)_r Q[b, r] over the largest U.
"""
import argparse
import json
import struct
import sys

import numpy as np

SHAPES = {
    "reference": dict(seed=5, vocabulary=67, hidden=48, intermediate=80, heads=6, kv_heads=2,
                      head_dim=16, windows=[24] * 5, taps=3, target_layers=7, block=8, conv=2,
                      width=4, rank=12, top=6, mask=66, own=False, begin=0, end=90, places=7),
    "full": dict(seed=6, vocabulary=59, hidden=40, intermediate=56, heads=4, kv_heads=4,
                 head_dim=24, windows=[0] * 8, taps=9, target_layers=12, block=8, conv=3, width=8,
                 rank=8, top=16, mask=58, own=True, begin=0, end=71, places=7),
    "plain": dict(seed=7, vocabulary=61, hidden=32, intermediate=72, heads=4, kv_heads=1,
                  head_dim=32, windows=[20, 0], taps=2, target_layers=5, block=16, conv=0, width=1,
                  rank=0, top=0, mask=3, own=False, begin=0, end=130, places=5),
    "far": dict(seed=8, vocabulary=67, hidden=48, intermediate=80, heads=6, kv_heads=2,
                head_dim=16, windows=[100] * 5, taps=3, target_layers=7, block=8, conv=2, width=4,
                rank=12, top=6, mask=66, own=False, begin=1000000, end=1000070, places=1),
}
EPS = 1e-5
THETA = 10000.0


# ---- values of made-up tensors

def fnv1a(text):
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return value


def philox(counter, key):
    """Philox4x32-10 of arrays of counters: [n, 4] words."""
    c = [x.astype(np.uint64) for x in counter]
    k = list(key)
    low = np.uint64(0xffffffff)
    shift = np.uint64(32)
    for _ in range(10):
        first = np.uint64(0xD2511F53) * c[0]
        second = np.uint64(0xCD9E8D57) * c[2]
        c = [(second >> shift) ^ c[1] ^ np.uint64(k[0]), second & low,
             (first >> shift) ^ c[3] ^ np.uint64(k[1]), first & low]
        k = [(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff]
    return np.stack(c, axis=1)


def bf16(values):
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + np.uint64(0x7fff) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def normal(seed, name, shape, deviation, mean=0.0, rounded=True):
    """mean + deviation times a sum of four random bytes of mean square 21845, in the file's type."""
    count = int(np.prod(shape))
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    key = fnv1a(name)
    zero = np.zeros_like(blocks)
    words = philox([blocks & np.uint64(0xffffffff), blocks >> np.uint64(32),
                    zero + np.uint64(seed & 0xffffffff), zero + np.uint64(seed >> 32)],
                   (key & 0xffffffff, key >> 32)).reshape(-1)[:count]
    total = sum((words >> np.uint64(8 * i)) & np.uint64(255) for i in range(4)).astype(np.float64)
    scale = float(np.float32(deviation / np.sqrt(21845.0)))
    values = (float(np.float32(mean)) + scale * (total - 510.0)).astype(np.float32)
    return (bf16(values) if rounded else values).astype(np.float64).reshape(shape)


class Weights:
    """Of a shape, by published name, as `percheron synth` scales them."""

    def __init__(self, shape):
        self.shape = shape
        self.seed = shape["seed"]

    def __call__(self, name, *extents):
        if name.endswith("base_kernel"):
            return normal(self.seed, name, extents, 0.3, 0.5)
        if name.endswith("codebook"):
            return normal(self.seed, name, extents, self.shape["rank"] ** -0.25)
        if len(extents) == 1:
            return normal(self.seed, name, extents, 0.2, 1.0)
        if name == "embed_tokens.weight":
            return normal(self.seed, name, extents, 1.0)
        gain = 0.3 if "kernel_projection" in name else 1.0
        return normal(self.seed, name, extents, gain / np.sqrt(extents[1]))

    def embedding(self):
        size = (self.shape["vocabulary"], self.shape["hidden"])
        if self.shape["own"]:
            return self("embed_tokens.weight", *size)
        return normal(self.seed, "input.embed_tokens", size, 1.0)

    def head(self):
        size = (self.shape["vocabulary"], self.shape["hidden"])
        if self.shape["own"]:
            return self("lm_head.weight", *size)
        return normal(self.seed, "input.lm_head", size, 1.0 / np.sqrt(size[1]))

    def mask(self):
        if self.shape["own"]:
            return normal(self.seed, "mask_embedding", (self.shape["hidden"],), 1.0)
        return self.embedding()[self.shape["mask"]]

    def inputs(self):
        rows = self.shape["end"] - self.shape["begin"]
        return normal(self.seed, "input.taps", (self.shape["taps"], rows, self.shape["hidden"]),
                      1.0, rounded=False)

    def newest(self):
        return 7 * self.seed % self.shape["vocabulary"]


# ---- the drafter

def rms(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def rope(x, positions):
    """x [T, heads, d]: halves turned together."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * THETA ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)


def conv(z, base, gates, width):
    """base [taps, D], gates [T, taps, groups]"""
    out = np.zeros_like(z)
    for tap in range(base.shape[0]):
        before = np.zeros_like(z)
        before[tap:] = z[:len(z) - tap]
        out += (base[tap] + np.repeat(gates[:, tap], width, axis=1)) * before
    return out


class Sublayer:
    """The convolutions around one sublayer."""

    def __init__(self, weights, name):
        s = weights.shape
        self.taps, self.width = s["conv"], s["width"]
        if self.taps:
            self.base = weights(name + ".base_kernel", 2, self.taps, s["hidden"])
            self.projection = weights(name + ".kernel_projection.weight",
                                      2 * self.taps * (s["hidden"] // self.width), s["hidden"])

    def enter(self, n):
        if not self.taps:
            return n
        self.gates = (n @ self.projection.T).reshape(len(n), 2, self.taps, -1)
        return conv(n, self.base[0], self.gates[:, 0], self.width)

    def leave(self, y):
        return conv(y, self.base[1], self.gates[:, 1], self.width) if self.taps else y


def drafted(shape):
    """U of the places, and the greedy walk with its candidates and scores."""
    w = Weights(shape)
    hidden, dim = shape["hidden"], shape["head_dim"]
    heads, kv_heads = shape["heads"], shape["kv_heads"]
    joined = np.concatenate(list(w.inputs()), axis=1)
    context = rms(joined @ w("fc.weight", hidden, shape["taps"] * hidden).T,
                  w("hidden_norm.weight", hidden))
    rows = 1 + shape["places"]
    x = np.stack([w.embedding()[w.newest()]] + [w.mask()] * shape["places"])
    known = np.arange(shape["begin"], shape["end"], dtype=np.float64)
    here = shape["end"] + np.arange(rows, dtype=np.float64)
    for index, window in enumerate(shape["windows"]):
        at = f"layers.{index}."
        attention = at + "self_attn."

        def split(rows_of, name, count):
            product = rows_of @ w(attention + name + ".weight", count * dim, hidden).T
            return product.reshape(len(rows_of), count, dim)

        key_norm = w(attention + "k_norm.weight", dim)
        sublayer = Sublayer(w, at + "attention_conv")
        n = sublayer.enter(rms(x, w(at + "input_layernorm.weight", hidden)))
        query = rope(rms(split(n, "q_proj", heads), w(attention + "q_norm.weight", dim)), here)
        keys = np.concatenate([rope(rms(split(context, "k_proj", kv_heads), key_norm), known),
                               rope(rms(split(n, "k_proj", kv_heads), key_norm), here)])
        values = np.concatenate([split(context, "v_proj", kv_heads), split(n, "v_proj", kv_heads)])
        distance = np.abs(here[:, None] - np.concatenate([known, here])[None, :])
        unseen = distance >= window if window else np.zeros_like(distance, bool)
        out = np.zeros((rows, heads, dim))
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = query[:, head] @ keys[:, shared].T / np.sqrt(dim)
            scores[unseen] = -np.inf
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = scores / scores.sum(axis=1, keepdims=True) @ values[:, shared]
        out = out.reshape(rows, -1) @ w(attention + "o_proj.weight", hidden, heads * dim).T
        x = x + sublayer.leave(out)

        sublayer = Sublayer(w, at + "mlp_conv")
        m = sublayer.enter(rms(x, w(at + "post_attention_layernorm.weight", hidden)))
        inter = shape["intermediate"]
        gate = m @ w(at + "mlp.gate_proj.weight", inter, hidden).T
        up = m @ w(at + "mlp.up_proj.weight", inter, hidden).T
        product = gate / (1 + np.exp(-gate)) * up
        x = x + sublayer.leave(product @ w(at + "mlp.down_proj.weight", hidden, inter).T)

    h = rms(x, w("norm.weight", hidden))[1:]
    logits = h @ w.head().T
    if not shape["rank"]:
        return logits, None, None
    name = "candidate_selector."
    before = w(name + "predecessor_codebook", shape["vocabulary"], shape["rank"])
    after = w(name + "successor_codebook", shape["vocabulary"], shape["rank"])
    projected = h @ w(name + "hidden_projection.weight", shape["rank"], hidden).T
    path, all_scores, last = [], [], w.newest()
    for t in range(len(h)):
        best = np.argsort(-logits[t], kind="stable")[:shape["top"]]
        scores = logits[t, best] + after[best] @ (before[last] * projected[t])
        last = int(best[np.argmax(scores)])
        path.append(last)
        all_scores.append(scores)
    return logits, np.array(path), np.array(all_scores)


# ---- goldens

def write(path, tensors):
    codes = {np.dtype(np.float32): "F32", np.dtype(np.int32): "I32"}
    header, data = {}, b""
    for name, value in sorted(tensors.items()):
        raw = np.ascontiguousarray(value).tobytes()
        header[name] = {"dtype": codes[value.dtype], "shape": list(value.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def golden(path):
    tensors = {}
    for name, shape in SHAPES.items():
        logits, chosen, scores = drafted(shape)
        tensors[name + ".logits"] = logits.astype(np.float32)
        if chosen is not None:
            tensors[name + ".path"] = chosen.astype(np.int32)
            tensors[name + ".scores"] = scores.astype(np.float32)
    write(path, tensors)


# ---- the comparison with another implementation

def check():
    import torch
    from dflash.model import DFlash2DraftModel, DFlashDraftModel
    from transformers import DynamicCache, Qwen3Config

    worst = 0.0
    for name, shape in SHAPES.items():
        w = Weights(shape)
        types = ["sliding_attention" if window else "full_attention" for window in shape["windows"]]
        config = Qwen3Config(
            vocab_size=shape["vocabulary"], hidden_size=shape["hidden"],
            intermediate_size=shape["intermediate"], num_hidden_layers=len(shape["windows"]),
            num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"],
            head_dim=shape["head_dim"], rms_norm_eps=EPS, max_position_embeddings=1 << 21,
            layer_types=types, sliding_window=max(shape["windows"]) or None,
            use_sliding_window=any(shape["windows"]), attention_bias=False,
            rope_parameters={"rope_type": "default", "rope_theta": THETA})
        config.is_causal = False
        config.num_target_layers = shape["target_layers"]
        config.dflash_config = dict(
            block_size=shape["block"], mask_token_id=shape["mask"],
            target_layer_ids=list(range(shape["taps"])), conv_kernel_size=shape["conv"],
            conv_group_size=shape["width"], selector_rank=shape["rank"],
            selector_top_k=shape["top"])
        config._attn_implementation = "sdpa"
        model = (DFlash2DraftModel if shape["rank"] else DFlashDraftModel)(config).double().eval()
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                stored = key.replace("codebook.weight", "codebook")
                parameter.copy_(torch.from_numpy(w(stored, *parameter.shape)))
        rows = shape["end"] - shape["begin"]
        embedded = np.stack([w.embedding()[w.newest()]] + [w.mask()] * shape["places"])
        # The package counts a window by places in its cache, so the far shape's fits as it is.
        with torch.no_grad():
            hidden = model(
                position_ids=torch.arange(shape["begin"], shape["end"] + 1 + shape["places"])[None],
                noise_embedding=torch.from_numpy(embedded)[None],
                target_hidden=torch.from_numpy(np.concatenate(list(w.inputs()), axis=1))[None],
                past_key_values=DynamicCache(), use_cache=True)[0, 1:]
            logits = hidden @ torch.from_numpy(w.head()).T
            ours, path, _ = drafted(shape)
            error = float(np.abs(logits.numpy() - ours).max())
            walk = ""
            if path is not None:
                theirs, _, _ = model.candidate_selector.select(
                    hidden[None], logits[None], torch.tensor([w.newest()]), 0.0)
                walk = "walk " + ("equal" if theirs[0].tolist() == path.tolist() else "DIFFERS")
                if "DIFFERS" in walk:
                    worst = np.inf
        # The package's angles are fp32: what that costs at a million is another matter.
        allowed = 1e-5 if shape["begin"] == 0 else 0.2
        print(f"{name:10} {rows} positions: largest difference of U {error:.2e} {walk}")
        worst = max(worst, error / allowed)
    return worst <= 1


def check_mask(path):
    import torch
    vector = torch.load(path, weights_only=True)
    print(f"{path}: {tuple(vector.shape)} {vector.dtype}")
    return bool(torch.isfinite(vector.float()).all())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("golden").add_argument("out")
    commands.add_parser("check").add_argument("--mask")
    arguments = parser.parse_args()
    if arguments.command == "golden":
        golden(arguments.out)
        return 0
    good = check()
    if arguments.mask:
        good = check_mask(arguments.mask) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
