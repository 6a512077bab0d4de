"""EXL3 folders against the exllamav3 package; see scripts/check-exl3."""
import ast
import ctypes
import json
import math
import pathlib
import sys
import tempfile

import exl3_oracle as oracle
import numpy as np
import torch
from stored_formats import floats, read, write_file
from twins import Twins, write_small_model

BITS = (1, 2, 3, 4, 5, 6, 7, 8, 1.5, 2.5, 3.5)


def check_decoder(library, random):
    """The package's decoder, device code compiled for the CPU, against the oracle's."""
    library.exl3_decode.restype = ctypes.c_bool
    for bits in BITS:
        for index, name in enumerate(oracle.CODEBOOKS):
            if bits != int(bits) and name != "mul1":
                continue
            tiles = random.integers(-32768, 32768, (4096, int(16 * bits))).astype(np.int16)
            theirs = np.zeros((len(tiles), 256), np.float32)
            assert library.exl3_decode(int(2 * bits), index, tiles.ctypes.data_as(ctypes.c_void_p),
                                       ctypes.c_long(len(tiles)), theirs.ctypes.data_as(ctypes.c_void_p))
            ours = oracle.codebook(name)[oracle.states_of(tiles, bits)].astype(np.float32)
            assert np.array_equal(ours.view(np.int32), theirs.view(np.int32)), (bits, name)
            assert np.array_equal(oracle.tiles_from(oracle.states_of(tiles, bits), bits), tiles), bits
    print("exllamav3's decoder gives the oracle's values, 4,096 tiles of each kind")


def functions_of(path, names, **globals_of):
    """Functions and classes of a source file, without the rest of it, which wants CUDA."""
    found = [node for node in ast.parse(path.read_text()).body if getattr(node, "name", None) in names]
    for node in found:
        node.decorator_list = []
    namespace = {"torch": torch, "math": math, **globals_of}
    exec(compile(ast.Module(found, []), str(path), "exec"), namespace)
    return [namespace[name] for name in names]


def check_layout(package, random):
    """Order of a tile's codes, signs, and the rotation, by the package's functions in fp32."""
    (sylvester,) = functions_of(package / "util" / "hadamard.py", ["sylvester"])

    def hadamard(size, device, dtype, scale):
        matrix = torch.ones(1, 1)
        while len(matrix) < size:
            matrix = sylvester(matrix)
        return (matrix * scale).to(dtype)

    order, left, right = functions_of(
        package / "modules" / "quant" / "exl3_lib" / "quantize.py",
        ["tensor_core_perm", "preapply_had_l", "preapply_had_r"], get_hadamard_dt=hadamard, _HAD_MAX_GEMM_ROWS=1 << 19)
    rows, columns = oracle.places()
    assert order("cpu").tolist() == (16 * rows + columns).tolist()
    (linear,) = [node for node in ast.parse((package / "modules" / "quant" / "exl3.py").read_text()).body
                 if getattr(node, "name", None) == "LinearEXL3"]
    (unpack,) = [node for node in linear.body if getattr(node, "name", None) == "unpack_bf"]
    namespace = {"torch": torch}
    exec(compile(ast.Module([unpack], []), "exl3.py", "exec"), namespace)
    words = torch.from_numpy(random.integers(-32768, 32768, 24).astype(np.int16))
    owner = type("Owner", (), {"transformers_fix": False})()
    assert namespace["unpack_bf"](owner, words).tolist() == oracle.signs(words.numpy()).tolist()
    trellis = random.integers(-32768, 32768, (16, 8, 64)).astype(np.int16)
    inputs, outputs = (random.standard_normal(size).astype(np.float16) for size in (256, 128))
    theirs = right(left(torch.from_numpy(oracle.codes_of(trellis, 4, "mcg")).float(), 128)
                   * torch.from_numpy(inputs).float()[:, None], 128) * torch.from_numpy(outputs).float()
    ours = oracle.dequantise(trellis, inputs, outputs, 4, "mcg", (128, 256))
    difference = np.max(np.abs(ours.T - theirs.numpy())) / np.sqrt(np.mean(ours ** 2))
    print(f"exllamav3's order and signs are the oracle's; its rotation in fp32 differs by {difference:.1e} of RMS")
    assert difference < 1e-5


def half(values):
    return "F16", values.shape, values.astype(np.float16).tobytes()


def stack_of(name):
    """The stack the package puts a tensor into, or itself, and which share of it."""
    for stack, shares in ((".self_attn.qkv_proj", ("q_proj", "k_proj", "v_proj")),
                          (".self_attn.conv1d", ("q_conv1d", "k_conv1d", "v_conv1d"))):
        for index, share in enumerate(shares):
            if f".self_attn.{share}." in name:
                return name.replace(f".self_attn.{share}", stack), index
    return name, 0


def quantises(stem, shape):
    """Whether the package gives a matrix a trellis; it keeps small and sensitive ones in F16."""
    kept = ("f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj", "b_proj", "kv_b_proj", "wk", "weights_proj", "gate",
            "embed_tokens", "hc_attn_fn", "hc_ffn_fn", "index_kpool_compress_gate", "index_kpool_compress_ape")
    return len(shape) == 2 and stem.rsplit(".", 1)[-1] not in kept


def write_exl3(source, folder, random):
    """`source` as the package lays it out; what is not a trellis as F32 under its own names, and stem -> values."""
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "exl3", "version": "1.6.5", "bits": 4, "head_bits": 6}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = read(source)
    stored, rest, values, stacks = {}, {}, {}, {}
    for name, (dtype, shape, _) in tensors.items():
        whole = floats(tensors[name])
        stack, index = stack_of(name)
        if stack != name:
            stacks.setdefault(stack, {})[index] = name
        elif name.startswith("model.visual.") and ".attn.qkv." in name:
            for share, part in zip("qkv", np.split(whole, 3)):
                stacks[name.replace(".attn.qkv", f".attn.{share}_proj")] = part
        else:
            stacks[name] = whole
    for name, content in stacks.items():
        shares = [content[i] for i in range(3)] if isinstance(content, dict) else [name]
        whole = np.concatenate([floats(tensors[share]) for share in shares]) if isinstance(content, dict) else content
        stem = name.removesuffix(".weight")
        if stem != name and quantises(stem, whole.shape):
            bits = BITS[random.integers(len(BITS))]
            book = list(oracle.CODEBOOKS)[random.integers(3)] if bits == int(bits) else "mul1"
            trellis, inputs, outputs = oracle.encode(whole, bits, book, random)
            stored[stem + ".trellis"] = ("I16", trellis.shape, trellis.tobytes())
            if random.integers(2):
                stored[stem + ".suh"] = half(inputs)
            else:
                words = ((inputs.reshape(-1, 16) < 0) << np.arange(16)).sum(1).astype(np.uint16).view(np.int16)
                stored[stem + ".su"] = ("I16", words.shape, words.tobytes())
            stored[stem + ".svh"] = half(outputs)
            if oracle.CODEBOOKS[book]:
                stored[f"{stem}.{book}"] = ("I32", [], np.uint32(oracle.CODEBOOKS[book]).tobytes())
            made = oracle.dequantise(trellis, inputs, outputs, bits, book, whole.shape)
        elif whole.dtype == np.float32 and (name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "A_log",
                                                           "dt_bias", "conv1d.weight")) or "hc_" in name
                                            or name.endswith(("_ape", "_bias"))):
            made = whole
            kind = "F32" if "hc_" in name or name.endswith("_ape") else tensors[shares[0]][0]
            stored[name] = (kind, whole.shape, b"".join(tensors[share][2] for share in shares)
                            if kind == tensors[shares[0]][0] else whole.tobytes())
        else:
            stored[name] = half(whole)
            made = whole.astype(np.float16).astype(np.float32)
        for share, part in zip(shares, np.split(made, len(shares))):
            if stem != name and quantises(stem, whole.shape):
                values[share.removesuffix(".weight")] = part
            else:
                rest[share] = part
    for name in tensors:
        if name.startswith("model.visual.") and ".attn.qkv." in name:
            pieces = [name.replace(".attn.qkv", f".attn.{share}_proj") for share in "qkv"]
            for where, key in ((rest, lambda piece: piece), (values, lambda piece: piece.removesuffix(".weight"))):
                if key(pieces[0]) in where:
                    where[key(name)] = np.concatenate([where.pop(key(piece)) for piece in pieces])
    write_file(folder / "model.safetensors", stored)
    return {name: ("F32", of.shape, of.tobytes()) for name, of in rest.items()}, values


def main():
    program, package = sys.argv[1], pathlib.Path(sys.argv[2])
    random = np.random.default_rng(1)
    check_decoder(ctypes.CDLL(str(package / "reference.so")), random)
    check_layout(package / "exllamav3", random)
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        source = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else root / "source"
        if len(sys.argv) <= 3:
            write_small_model(program, source, vision="2")
        folder = root / "exl3"
        rest, values = write_exl3(source, folder, random)
        print(f"exl3: {len(values)} weights")
        Twins(program, source, root).compare(folder, rest, values)
    print("passed")


main()
