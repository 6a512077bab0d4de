"""Written checkpoints against other readers of their formats; see scripts/check-formats."""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8, unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.utils.match import match_name
from modelopt.torch.quantization.qtensor import NVFP4QTensor
from stored_formats import floats, quantised, read, w4a16, without, write_file
from twins import Twins, same_bits, write_small_model

def check_compressed_tensors(folder, tensors, weights):
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    parsed = QuantizationConfig.model_validate(config)
    (group,) = parsed.config_groups.values()
    assert isinstance(group, QuantizationScheme) and group.weights.group_size == 128
    types = {"I32": torch.int32, "I64": torch.int64}
    for stem, expected in weights.items():
        state = {}
        for part in ("weight_packed", "weight_shape"):
            dtype, shape, data = tensors[f"{stem}.{part}"]
            state[part] = torch.frombuffer(bytearray(data), dtype=types[dtype]).reshape(shape)
        state["weight_scale"] = torch.from_numpy(floats(tensors[stem + ".weight_scale"]).copy())
        state["weight_shape"] = torch.Size(state["weight_shape"].tolist())
        values = PackedQuantizationCompressor.decompress(state, group)["weight"].numpy()
        assert values.dtype == np.float32 and np.array_equal(values.view(np.int32), expected.view(np.int32)), stem
    print(f"  compressed-tensors reads {len(weights)} weights with the same values")


def check_mixed(folder, forms):
    """compressed-tensors finds each of these modules in the group of its form, and no other module in any."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    parsed = QuantizationConfig.model_validate(config)
    groups = {group.format: group for group in parsed.config_groups.values()}
    assert set(groups) == set(forms)
    for form, modules in forms.items():
        others = set(config["ignore"]).union(*(of for name, of in forms.items() if name != form))
        assert all(any(match_name(module, target) for target in groups[form].targets) for module in modules)
        assert not any(match_name(module, target) for module in others for target in groups[form].targets)
    print(f"  compressed-tensors finds {sum(map(len, forms.values()))} modules in {len(forms)} groups")


def modelopt_values(data, blocks, factor):
    """What modelopt makes of stored parts; tensors of torch, scales fed as fp32."""
    stored = NVFP4QTensor(torch.Size([data.shape[0], data.shape[1] * 2]), torch.float32, data)
    return stored.dequantize(torch.float32, scale=blocks, double_scale=factor, block_sizes={-1: 16}).numpy()


def check_modelopt(tensors, weights):
    for stem, expected in weights.items():
        shape, data = tensors[stem + ".weight"][1:]
        values = modelopt_values(torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(shape),
                                 torch.from_numpy(floats(tensors[stem + ".weight_scale"]).copy()),
                                 torch.from_numpy(floats(tensors[stem + ".weight_scale_2"]).copy()))
        same_bits(values, expected, stem)
    print(f"  modelopt reads {len(weights)} weights with the same values")


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def made_by_modelopt(stem, weight):
    """Parts of a weight as modelopt stores it, and the values it gives them."""
    packed, blocks, factor = NVFP4QTensor.quantize(weight.clone(), 16)
    data = packed._quantized_data
    parts = {stem + ".weight": ("U8", data.shape, bytes_of(data)),
             stem + ".weight_scale": ("F8_E4M3", blocks.shape, bytes_of(blocks)),
             stem + ".weight_scale_2": ("F32", [], factor.numpy().tobytes()),
             stem + ".input_scale": ("F32", [], np.float32(0.01).tobytes())}
    return parts, modelopt_values(data, blocks, factor)


def made_by_compressed_tensors(stem, weight):
    """The same by compressed-tensors, whose file holds the inverse of the factor."""
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)
    inverse = (448 * 6 / weight.abs().max()).reshape(1).float()
    groups = weight.reshape(weight.shape[0], -1, 16)
    blocks = (groups.abs().amax(2) / 6 * inverse).to(torch.float8_e4m3fn).float()
    codes = quantize(weight, blocks, None, args, global_scale=inverse)
    data = pack_fp4_to_uint8(codes)
    values = dequantize(unpack_fp4_from_uint8(data, *weight.shape, dtype=torch.float32), blocks, None, args,
                        dtype=torch.float32, global_scale=inverse)
    parts = {stem + ".weight_packed": ("U8", data.shape, bytes_of(data)),
             stem + ".weight_scale": ("F8_E4M3", blocks.shape, bytes_of(blocks.to(torch.float8_e4m3fn))),
             stem + ".weight_global_scale": ("F32", [1], inverse.numpy().tobytes()),
             stem + ".input_global_scale": ("F32", [1], np.float32(100).tobytes())}
    return parts, values.numpy()


def write_foreign(source, folder, make):
    """`source` with its routed experts as another package writes them; stem -> the values it gives them."""
    folder.mkdir()
    (folder / "config.json").write_text((source / "config.json").read_text())
    tensors, values, parts = read(source), {}, {}
    for name in tensors:
        if ".experts." in name:
            stem = name.removesuffix(".weight")
            made, values[stem] = make(stem, torch.from_numpy(floats(tensors[name]).copy()))
            parts.update(made)
    write_file(folder / "model.safetensors", {**without(tensors, values), **parts})
    return values


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        source = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else root / "source"
        if len(sys.argv) <= 2:
            write_small_model(program, source)
        twins = Twins(program, source, root)
        for options in (["w4a16"], ["nvfp4"], ["fp8"], ["w4a16", "--rest", "fp8"], ["nvfp4", "--rest", "fp8"]):
            print(*options)
            label = options[0] + str(len(options))
            folder = root / label
            subprocess.run([program, "quantize", source, folder, "--format", *options], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            tensors = read(folder)
            weights = quantised(tensors)
            assert weights and all(np.all(np.isfinite(values)) for values in weights.values())
            if options == ["w4a16"]:
                check_compressed_tensors(folder, tensors, weights)
            if options == ["nvfp4"]:
                check_modelopt(tensors, weights)
            twins.compare(folder, tensors, weights)
        for make in (made_by_modelopt, made_by_compressed_tensors):
            print("nvfp4", make.__name__.replace("_", " "))
            folder = root / make.__name__
            values = write_foreign(source, folder, make)
            twins.compare(folder, read(folder), values)
        # What is carried over and what is made beside it: two forms, which compressed-tensors knows both.
        print("w4a16 beside nvfp4 of compressed-tensors")
        source, folder = root / "made_by_compressed_tensors", root / "carried"
        subprocess.run([program, "quantize", source, folder, "--format", "w4a16", "--include", "*.shared_experts.*"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        tensors = read(folder)
        made = {name.removesuffix(".weight_shape") for name in tensors if name.endswith(".weight_shape")}
        check_mixed(folder, {"pack-quantized": made, "nvfp4-pack-quantized": set(values)})
        twins.compare(folder, tensors, {**values, **{stem: w4a16(tensors, stem) for stem in made}})
    print("passed")


main()
