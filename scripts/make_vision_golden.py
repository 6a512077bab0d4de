#!/usr/bin/env python3
"""Golden numbers of the vision tower, from the Hugging Face implementation in fp32 on a CPU.

  make_vision_golden.py random OUT    a small random checkpoint with a tower of odd sizes, and its
                                      features for random patches
  make_vision_golden.py of MODEL OUT  a checkpoint's features of the pictures in OUT/golden.json,
                                      and its logits and replies to the prompts there:
                                      {"prompts": [{"name", "ids", "images": ["x.png"]}, ...]},
                                      pictures beside it; quantised weights are widened to fp32

Needs torch, transformers >= 5.17 with models/glm5_next, and Pillow.  OUT/golden.safetensors holds

  X.f32.features        [tokens, hidden] of picture X.png, or of the patches in
  X.pixel_values        [patches, values] with
  X.grid                [2] patches a column and a row
  NAME.ids              a prompt with its placeholders, and as in make_golden.py
  NAME.f32.logits, .f32.logit_rows, .f32.top4_ids, .f32.top4_logits, .f32.greedy, .f32.greedy_gap
"""
import argparse
import json
import os
import tempfile

import torch
from safetensors.torch import save_file

import make_golden

TOWER = dict(seed=51, depth=3, hidden=48, heads=3, inter=88, patch=5, proj=72, clamp=1.5, eps=1e-5,
             grids=[(2, 2), (4, 6), (10, 2), (6, 16)])
TEXT = dict(make_golden.CHECKPOINTS["random_b"], seed=50, vocab=64, hidden=64, layers=[make_golden.K],
            dense_layers=1, dense_inter=32, kda_dim=32)


def random_tower(c, out_hidden):
    rng = torch.Generator().manual_seed(c["seed"])
    tensors = {}

    def put(name, tensor):
        tensors["model.visual." + name] = tensor.to(torch.bfloat16)

    def normal(shape, deviation, mean=0.0):
        return torch.randn(shape, generator=rng) * deviation + mean

    def linear(stem, n, k, gain=1.0, bias=True):
        put(stem + ".weight", normal((n, k), gain * k ** -0.5))
        if bias:
            put(stem + ".bias", normal((n,), 0.3))

    width, values = c["hidden"], 3 * 2 * c["patch"] ** 2
    put("patch_embed.proj.weight",
        normal((width, 3, 2, c["patch"], c["patch"]), values ** -0.5))
    put("patch_embed.proj.bias", normal((width,), 0.3))
    for i in range(c["depth"]):
        at = f"blocks.{i}."
        for norm in ("norm1", "norm2"):
            put(at + norm + ".weight", normal((width,), 0.2, 1.0))
        linear(at + "attn.qkv", 3 * width, width, 1.5)
        for norm in ("q_norm", "k_norm"):
            put(at + f"attn.{norm}.weight", normal((width // c["heads"],), 0.3, 1.5))
        linear(at + "attn.proj", width, width)
        linear(at + "mlp.gate_proj", c["inter"], width, 1.5)
        linear(at + "mlp.up_proj", c["inter"], width, 1.5)
        linear(at + "mlp.down_proj", width, c["inter"])
    put("post_layernorm.weight", normal((width,), 0.2, 1.0))
    put("downsample.weight", normal((out_hidden, width, 2, 2), (4 * width) ** -0.5))
    put("downsample.bias", normal((out_hidden,), 0.3))
    linear("merger.proj", out_hidden, out_hidden, bias=False)
    put("merger.post_projection_norm.weight", normal((out_hidden,), 0.2, 1.0))
    put("merger.post_projection_norm.bias", normal((out_hidden,), 0.2))
    linear("merger.gate_proj", c["proj"], out_hidden, 1.5, bias=False)
    linear("merger.up_proj", c["proj"], out_hidden, 1.5, bias=False)
    linear("merger.down_proj", out_hidden, c["proj"], bias=False)
    return tensors


def write_random(out):
    make_golden.write_checkpoint(TEXT, out)
    path = os.path.join(out, "config.json")
    with open(path) as f:
        config = json.load(f)
    c = TOWER
    config["vision_config"] = {
        "model_type": "glm5_next_vision", "depth": c["depth"], "hidden_size": c["hidden"],
        "num_heads": c["heads"], "intermediate_size": c["inter"], "patch_size": c["patch"],
        "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3,
        "out_hidden_size": TEXT["hidden"], "projection_intermediate_size": c["proj"],
        "rms_norm_eps": c["eps"], "swiglu_limit": c["clamp"], "hidden_act": "silu",
        "attention_bias": True, "attention_dropout": 0.0,
        "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0}}
    with open(path, "w") as f:
        f.write(json.dumps(config, indent=1) + "\n")
    tensors = {**make_golden.random_tensors(TEXT), **random_tower(c, TEXT["hidden"])}
    save_file(tensors, os.path.join(out, "model.safetensors"), {"format": "pt"})


def features(model, pixels, grid):
    with torch.no_grad():
        grid = torch.tensor([[1, grid[0], grid[1]]])
        return model.model.get_image_features(pixels, grid).pooler_output[0].float()


def random_goldens(model):
    rng = torch.Generator().manual_seed(TOWER["seed"] + 1000)
    values = 3 * 2 * TOWER["patch"] ** 2
    for height, width in TOWER["grids"]:
        name = f"grid{height}x{width}"
        pixels = torch.randn((height * width, values), generator=rng)
        yield f"{name}.pixel_values", pixels
        yield f"{name}.grid", torch.tensor([height, width], dtype=torch.int32)
        yield f"{name}.f32.features", features(model, pixels, (height, width))


def picture_goldens(model, folder, greedy=24):
    from PIL import Image
    from transformers.models.glm5_next.image_processing_pil_glm5_next import (
        Glm5NextImageProcessorPil)
    processor = Glm5NextImageProcessorPil()
    with open(os.path.join(folder, "golden.json")) as f:
        listed = json.load(f)

    def inputs(names):
        images = [Image.open(os.path.join(folder, name)).convert("RGB") for name in names]
        return processor(images=images, return_tensors="pt")

    for name in sorted({name for prompt in listed["prompts"] for name in prompt["images"]}
                       | set(listed.get("pictures", []))):
        made = inputs([name])
        yield name.removesuffix(".png") + ".f32.features", features(
            model, made["pixel_values"], made["image_grid_thw"][0, 1:].tolist())
    for prompt in listed["prompts"]:
        name, ids = prompt["name"], prompt["ids"]
        made = dict(inputs(prompt["images"]))
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False, **made).logits[0].float()
            reply = model.generate(
                input_ids=torch.tensor([ids]), max_new_tokens=greedy, do_sample=False,
                output_logits=True, return_dict_in_generate=True, **made)
        rows = [len(ids) - 1]
        top = logits.topk(4, -1)
        yield f"{name}.ids", torch.tensor(ids, dtype=torch.int32)
        yield f"{name}.f32.top4_ids", top.indices.to(torch.int32)
        yield f"{name}.f32.top4_logits", top.values
        yield f"{name}.f32.logit_rows", torch.tensor(rows, dtype=torch.int32)
        yield f"{name}.f32.logits", logits[rows]
        yield f"{name}.f32.greedy", reply.sequences[0, len(ids):].to(torch.int32)
        steps = torch.stack([step[0].float() for step in reply.logits])
        best = steps.topk(2, -1).values
        rms = (steps - steps.mean(-1, keepdim=True)).square().mean(-1).sqrt()
        yield f"{name}.f32.greedy_gap", (best[:, 0] - best[:, 1]) / rms
        print(name, len(ids), reply.sequences[0, len(ids):].tolist(), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("random").add_argument("out")
    of = commands.add_parser("of")
    of.add_argument("model")
    of.add_argument("out")
    arguments = parser.parse_args()
    if arguments.command == "random":
        write_random(arguments.out)
        tensors = dict(random_goldens(make_golden.load(arguments.out)))
    else:
        with tempfile.TemporaryDirectory() as twin:
            model = make_golden.load(make_golden.plain_twin(arguments.model, twin))
        model.generation_config.do_sample = False
        tensors = dict(picture_goldens(model, arguments.out))
    import transformers
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, os.path.join(arguments.out, "golden.safetensors"),
              {"made_by": f"transformers {transformers.__version__}, fp32, eager, CPU"})


if __name__ == "__main__":
    main()
