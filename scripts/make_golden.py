#!/usr/bin/env python3
"""Golden numbers of a checkpoint, from the Hugging Face implementation in fp32 on a CPU.

  make_golden.py random NAME OUT      a small random checkpoint (see CHECKPOINTS) and its goldens
  make_golden.py of MODEL OUT --ids FILE.json [--greedy N] [--small]
                                      goldens of an existing checkpoint; FILE holds {"name": [ids]};
                                      W4A16 and FP8 weights are widened to fp32 first, here;
                                      --small keeps few whole rows of logits and no layers or states

Needs torch and transformers >= 5.17 with models/glm5_next (pip install torch transformers).
OUT/golden.safetensors then holds, for every prompt:

  NAME.ids                   the prompt
  NAME.f32.logits            [T, vocabulary] at every position, or at those in
  NAME.f32.logit_rows        [m] when it is there
  NAME.f32.top4_ids          [T, 4] largest logits (with logit_rows), and
  NAME.f32.top4_logits       [T, 4] their values
  NAME.f32.layers            [layers, T, hidden] output of every layer, averaged over the streams
  NAME.f32.hidden            [T, hidden] after the final norm
  NAME.f32.greedy            greedy continuation, computed token by token with a cache
  NAME.f32.greedy_gap        per token of it: (largest logit - second) / RMS of the centred logits
  NAME.f32.poolsI            [T, pools] 1 where sparse layer I selected the pool
  NAME.f32.pool_gapI         [T] smallest selected score - largest rejected one; infinite without one
  NAME.f32.kda_stateI        [heads, key, value] of layer I after the prompt
  NAME.f32.conv_stateI       [channels, taps] raw projections of the last tokens, newest last

The numbers come from another implementation than this repository's and stay that way: a golden is
never made from our own output.
"""
import argparse
import glob
import json
import os
import tempfile

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch
from safetensors.torch import load_file, save_file

K, S = "linear_attention", "deepseek_sparse_attention"

# Sizes that share nothing with the embedded model but the architecture: odd counts, several pool
# lengths, a clamp that bites, weights large enough that every gate moves.
CHECKPOINTS = {
    "random_a": dict(
        seed=41, vocab=301, hidden=64, layers=[S, K, K, S, K], dense_layers=2, dense_inter=104,
        experts=5, chosen=2, expert_inter=32, scale=1.7, normalise=True, clamp=1.5,
        kda_heads=3, kda_dim=32, lower_bound=-5.0, heads=3, query_rank=72, latent=80, keys=32,
        values=48, index_heads=10, index_dim=16, pool=4, topk=16, sinkhorn=20, hc_eps=1e-6,
        eps=1e-5, lengths=[1, 5, 16, 17, 18, 19, 20, 65, 133], greedy=24),
    "random_b": dict(
        seed=42, vocab=200, hidden=80, layers=[K, S, K], dense_layers=1, dense_inter=88,
        experts=7, chosen=3, expert_inter=24, scale=2.5, normalise=False, clamp=10.0,
        kda_heads=1, kda_dim=128, lower_bound=-3.0, heads=2, query_rank=64, latent=96, keys=64,
        values=40, index_heads=7, index_dim=24, pool=8, topk=32, sinkhorn=7, hc_eps=1e-4,
        eps=1e-6, lengths=[1, 7, 39, 40, 41, 127], greedy=24),
}


def text_config(c):
    n = len(c["layers"])
    return {
        "model_type": "glm5_next_text", "dtype": "bfloat16", "vocab_size": c["vocab"],
        "hidden_size": c["hidden"], "num_hidden_layers": n, "intermediate_size": c["dense_inter"],
        "moe_intermediate_size": c["expert_inter"], "num_attention_heads": c["heads"],
        "num_key_value_heads": c["heads"], "q_lora_rank": c["query_rank"],
        "kv_lora_rank": c["latent"], "qk_nope_head_dim": c["keys"], "qk_rope_head_dim": 0,
        "qk_head_dim": c["keys"], "v_head_dim": c["values"], "head_dim": 0, "mla_use_nope": True,
        "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
        "swiglu_limit": c["clamp"], "rms_norm_eps": c["eps"], "max_position_embeddings": 4096,
        "n_routed_experts": c["experts"], "n_shared_experts": 1,
        "num_experts_per_tok": c["chosen"], "n_group": 1, "topk_group": 1,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": c["normalise"],
        "routed_scaling_factor": c["scale"], "moe_router_dtype": "float32",
        "first_k_dense_replace": c["dense_layers"],
        "mlp_layer_types": ["dense" if i < c["dense_layers"] else "sparse" for i in range(n)],
        "layer_types": c["layers"],
        "linear_attn_config": {
            "num_heads": c["kda_heads"], "head_dim": c["kda_dim"], "short_conv_kernel_size": 4,
            "gate_lower_bound": c["lower_bound"],
            "kda_layers": [i for i in range(n) if c["layers"][i] == K],
            "full_attn_layers": [i for i in range(n) if c["layers"][i] == S]},
        "index_n_heads": c["index_heads"], "index_head_dim": c["index_dim"],
        "index_topk": c["topk"], "index_kpool": c["pool"], "index_kpool_compress": True,
        "index_kpool_always_select_tail": True, "indexer_types": ["full"] * n,
        "indexer_rope_interleave": True, "index_share_for_mtp_iteration": True, "mhc": True,
        "hc_mult": 4, "hc_sinkhorn_iters": c["sinkhorn"], "hc_eps": c["hc_eps"],
        "num_nextn_predict_layers": 0, "initializer_range": 0.02, "use_cache": True,
        "pad_token_id": 0, "eos_token_id": [0], "tie_word_embeddings": False,
    }


def random_tensors(c):
    """Checkpoint names -> tensors.  Matrices have about unit gain."""
    rng = torch.Generator().manual_seed(c["seed"])
    tensors = {}

    def normal(shape, deviation, mean=0.0):
        return torch.randn(shape, generator=rng) * deviation + mean

    def matrix(name, n, k, gain=1.0):
        tensors[name] = normal((n, k), gain * k ** -0.5).to(torch.bfloat16)

    def put(name, tensor, dtype=torch.bfloat16):
        tensors[name] = tensor.to(dtype)

    def norm(name, n):
        put(name, normal((n,), 0.2, 1.0))

    def feed_forward(at, inter):
        matrix(at + "gate_proj.weight", inter, c["hidden"], 1.5)
        matrix(at + "up_proj.weight", inter, c["hidden"], 1.5)
        matrix(at + "down_proj.weight", c["hidden"], inter)

    root = "model.language_model."
    put(root + "embed_tokens.weight", normal((c["vocab"], c["hidden"]), 1.0))
    matrix("lm_head.weight", c["vocab"], c["hidden"], 2.0)
    norm(root + "norm.weight", c["hidden"])
    for i, kind in enumerate(c["layers"]):
        at = f"{root}layers.{i}."
        for site in ("attn", "ffn"):
            matrix(at + f"hc_{site}_fn", 24, 4 * c["hidden"])
            put(at + f"hc_{site}_base", normal((24,), 0.7), torch.float32)
            put(at + f"hc_{site}_scale", torch.rand(3, generator=rng) + 0.5, torch.float32)
        norm(at + "input_layernorm.weight", c["hidden"])
        norm(at + "post_attention_layernorm.weight", c["hidden"])
        a = at + "self_attn."
        if kind == K:
            width = c["kda_heads"] * c["kda_dim"]
            for name in "qkv":
                matrix(a + name + "_proj.weight", width, c["hidden"])
                put(a + name + "_conv1d.weight", normal((width, 1, 4), 0.6))
            for name in "fg":
                matrix(a + name + "_a_proj.weight", c["kda_dim"], c["hidden"])
                matrix(a + name + "_b_proj.weight", width, c["kda_dim"])
            matrix(a + "b_proj.weight", c["kda_heads"], c["hidden"])
            put(a + "A_log", normal((c["kda_heads"],), 0.5), torch.float32)
            put(a + "dt_bias", normal((width,), 1.0, -2.0), torch.float32)
            norm(a + "o_norm.weight", c["kda_dim"])
            matrix(a + "o_proj.weight", c["hidden"], width)
        else:
            matrix(a + "q_a_proj.weight", c["query_rank"], c["hidden"])
            norm(a + "q_a_layernorm.weight", c["query_rank"])
            matrix(a + "q_b_proj.weight", c["heads"] * c["keys"], c["query_rank"], 1.5)
            matrix(a + "kv_a_proj_with_mqa.weight", c["latent"], c["hidden"])
            norm(a + "kv_a_layernorm.weight", c["latent"])
            matrix(a + "kv_b_proj.weight", c["heads"] * (c["keys"] + c["values"]), c["latent"], 1.5)
            matrix(a + "o_proj.weight", c["hidden"], c["heads"] * c["values"])
            x = a + "indexer."
            matrix(x + "wq_b.weight", c["index_heads"] * c["index_dim"], c["query_rank"])
            matrix(x + "wk.weight", c["index_dim"], c["hidden"])
            norm(x + "k_norm.weight", c["index_dim"])
            put(x + "k_norm.bias", normal((c["index_dim"],), 0.2))
            matrix(x + "weights_proj.weight", c["index_heads"], c["hidden"])
            matrix(x + "index_kpool_compress_gate", c["index_dim"], c["hidden"])
            put(x + "index_kpool_compress_ape", normal((c["pool"], c["index_dim"]), 0.7))
        m = at + "mlp."
        if i < c["dense_layers"]:
            feed_forward(m, c["dense_inter"])
        else:
            matrix(m + "gate.weight", c["experts"], c["hidden"])
            put(m + "gate.e_score_correction_bias", normal((c["experts"],), 0.2), torch.float32)
            for e in range(c["experts"]):
                feed_forward(f"{m}experts.{e}.", c["expert_inter"])
            feed_forward(m + "shared_experts.", c["expert_inter"])
    return tensors


def write_checkpoint(c, out):
    os.makedirs(out, exist_ok=True)
    config = {
        "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next",
        "dtype": "bfloat16", "tie_word_embeddings": False, "eos_token_id": [0], "pad_token_id": 0,
        "image_token_id": 1, "video_token_id": 2, "image_start_token_id": 3,
        "image_end_token_id": 4, "video_start_token_id": 5, "video_end_token_id": 6,
        "text_config": text_config(c),
    }
    with open(os.path.join(out, "config.json"), "w") as f:
        f.write(json.dumps(config, indent=1) + "\n")
    save_file(random_tensors(c), os.path.join(out, "model.safetensors"), {"format": "pt"})


def widened(stored):
    """Quantised tensors as fp32 matrices under their plain names, everything else as it is.

    pack-quantized: eight codes an int32, lowest bits first, (code - 8) * scale of 128 inputs.
    FP8: value * scale of its 128 x 128 block.
    """
    plain = {}
    for name, tensor in stored.items():
        if name.endswith("_packed"):
            stem = name[:-len("_packed")]
            n, k = stored[stem + "_shape"].tolist()
            codes = torch.stack([(tensor >> (4 * i)) & 15 for i in range(8)], -1).view(n, k)
            scale = stored[stem + "_scale"].float().repeat_interleave(128, 1)[:, :k]
            plain[stem] = (codes.float() - 8.0) * scale
        elif name + "_scale_inv" in stored:
            n, k = tensor.shape
            scale = stored[name + "_scale_inv"]
            scale = scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
            plain[name] = tensor.float() * scale
        elif not name.endswith(("_scale_inv", "weight_scale", "weight_shape")):
            plain[name] = tensor
    return plain


def plain_twin(path, out):
    """Writes the checkpoint at `path` without quantised tensors; returns `out`."""
    stored = {}
    for shard in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        stored.update(load_file(shard))
    save_file(widened(stored), os.path.join(out, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(path, "config.json")) as f:
        config = json.load(f)
    for part in (config, config.get("text_config", {})):
        part.pop("quantization_config", None)
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f)
    return out


def load(path):
    from transformers import Glm5NextForConditionalGeneration
    model = Glm5NextForConditionalGeneration.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager")
    return model.float().eval()


class IndexerScores:
    """Collects the pool scores of every indexer call by standing in for Tensor.topk inside it."""

    def __init__(self, model):
        from transformers.models.glm5_next import modeling_glm5_next as modeling
        self.calls = []
        for module in model.modules():
            if isinstance(module, modeling.Glm5NextTextIndexer):
                module.forward = self.wrap(module.forward)

    def wrap(self, forward):
        def recorded(*args, **kwargs):
            original = torch.Tensor.topk

            def topk(tensor, k, *a, **b):
                found = original(tensor, k, *a, **b)
                self.calls.append((tensor[0].clone(), found.indices[0].clone()))
                return found
            torch.Tensor.topk = topk
            try:
                return forward(*args, **kwargs)
            finally:
                torch.Tensor.topk = original
        return recorded

    def selections(self):
        """(chosen [T, pools] uint8, gap [T]) per sparse layer; candidates only."""
        for scores, chosen in self.calls:
            candidate = scores > torch.finfo(scores.dtype).min
            if scores.shape[1] == 0:
                yield None, None
                continue
            mask = torch.zeros_like(candidate).scatter_(1, chosen, True) & candidate
            lowest = scores.masked_fill(~mask, float("inf")).min(1).values
            best = scores.masked_fill(mask | ~candidate, float("-inf")).max(1).values
            yield mask.to(torch.uint8), lowest - best


def golden_of(model, prompts, greedy, states=None, logit_rows=None):
    """`states`: the prompts whose layer outputs and KDA states are stored, None for all.
    `logit_rows`: how many whole rows of logits are stored, None for all."""
    text = model.model.language_model
    kinds = text.config.layer_types
    tensors = {}
    scores = IndexerScores(model)
    for name, ids in prompts.items():
        outputs = []
        hooks = [layer.register_forward_hook(lambda _m, _i, out: outputs.append(
            (out[0] if isinstance(out, tuple) else out)[0].mean(1))) for layer in text.layers]
        scores.calls.clear()
        with torch.no_grad():
            out = model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=True)
        for hook in hooks:
            hook.remove()
        tensors[f"{name}.ids"] = torch.tensor(ids, dtype=torch.int32)
        logits = out.logits[0].float()
        if logit_rows is not None:
            # Spread over the prompt, the last position included.
            count = min(logit_rows, len(ids))
            rows = [(len(ids) * (i + 1)) // count - 1 for i in range(count)]
            top = logits.topk(4, -1)
            tensors[f"{name}.f32.top4_ids"] = top.indices.to(torch.int32)
            tensors[f"{name}.f32.top4_logits"] = top.values
            tensors[f"{name}.f32.logit_rows"] = torch.tensor(rows, dtype=torch.int32)
            logits = logits[rows]
        tensors[f"{name}.f32.logits"] = logits
        if states is None or name in states:
            tensors[f"{name}.f32.layers"] = torch.stack(outputs)
            tensors[f"{name}.f32.hidden"] = out.hidden_states[-1][0]
        sparse = [i for i, kind in enumerate(kinds) if kind == S]
        for i, (mask, gap) in zip(sparse, scores.selections()):
            if mask is not None:
                tensors[f"{name}.f32.pools{i}"] = mask
                tensors[f"{name}.f32.pool_gap{i}"] = gap
        for i, kind in enumerate(kinds):
            if kind == K and (states is None or name in states):
                cache = out.past_key_values.layers[i]
                tensors[f"{name}.f32.kda_state{i}"] = cache.recurrent_states[0][0].float()
                tensors[f"{name}.f32.conv_state{i}"] = cache.conv_states[0][0].float()
        if greedy > 0:
            with torch.no_grad():
                reply = model.generate(
                    input_ids=torch.tensor([ids]), max_new_tokens=greedy, do_sample=False,
                    output_logits=True, return_dict_in_generate=True)
            tensors[f"{name}.f32.greedy"] = reply.sequences[0, len(ids):].to(torch.int32)
            logits = torch.stack([step[0].float() for step in reply.logits])
            top = logits.topk(2, -1).values
            rms = (logits - logits.mean(-1, keepdim=True)).square().mean(-1).sqrt()
            tensors[f"{name}.f32.greedy_gap"] = (top[:, 0] - top[:, 1]) / rms
        print(name, len(ids), flush=True)
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    random = commands.add_parser("random")
    random.add_argument("name", choices=sorted(CHECKPOINTS))
    random.add_argument("out")
    of = commands.add_parser("of")
    of.add_argument("model")
    of.add_argument("out")
    of.add_argument("--ids", required=True)
    of.add_argument("--greedy", type=int, default=0)
    of.add_argument("--small", action="store_true")
    arguments = parser.parse_args()

    if arguments.command == "random":
        c = CHECKPOINTS[arguments.name]
        write_checkpoint(c, arguments.out)
        rng = torch.Generator().manual_seed(c["seed"] + 1000)
        # Ids below 8 mean padding, pictures and ends.
        prompts = {f"text{n}": torch.randint(8, c["vocab"], (n,), generator=rng).tolist()
                   for n in c["lengths"]}
        model, greedy, logit_rows = load(arguments.out), c["greedy"], None
        states = [name for name in prompts if name in ("text133", "text127")]
        model.generation_config.eos_token_id = None
    else:
        with open(arguments.ids) as f:
            prompts = json.load(f)
        with tempfile.TemporaryDirectory() as twin:
            model = load(plain_twin(arguments.model, twin))
        greedy = arguments.greedy
        states, logit_rows = ([], 2) if arguments.small else (None, None)
    tensors = golden_of(model, prompts, greedy, states, logit_rows)
    os.makedirs(arguments.out, exist_ok=True)
    import transformers
    save_file(tensors, os.path.join(arguments.out, "golden.safetensors"),
              {"made_by": f"transformers {transformers.__version__}, fp32, eager, CPU"})


if __name__ == "__main__":
    main()
