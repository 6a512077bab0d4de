"""What others reach on this GPU at the decode kernels' shapes: PyTorch (cuBLAS, SDPA) and
flash-linear-attention where it can be imported.  Prints medians of CUDA graph replays in
microseconds, data rotated past the second-level cache."""

import ctypes
import os
import statistics
import sys
import traceback

import torch


def time_graph(calls):
    """Median microseconds of one of `calls` (callables captured into one graph)."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for i in range(9):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        if i >= 2:
            times.append(start.elapsed_time(stop) * 1000 / len(calls))
    return statistics.median(times)


def products():
    shapes = [(24896, 4096), (4096, 8192), (2336, 4096), (20480, 1536), (4096, 16384),
              (12448, 4096), (4096, 4096), (154880, 4096)]
    for n, k in shapes:
        copies = max(1, 400_000_000 // (n * k * 2)) + 1
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        for rows in (1, 8, 64):
            x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
            calls = [lambda w=weights[i % copies]: torch.nn.functional.linear(x, w)
                     for i in range(max(copies, 20))]
            us = time_graph(calls)
            print(f"torch linear bf16 {n}x{k} rows {rows}: {us:.2f} us, "
                  f"{n * k * 2 / us / 1e3:.0f} GB/s", flush=True)
        del weights


def kda():
    from fla.ops.kda import fused_recurrent_kda
    heads, dim = 64, 128
    for sequences, tokens in ((1, 1), (8, 1), (64, 1), (1, 8)):
        copies = max(1, 160 // sequences)
        make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        q, k, v, g = (make(sequences, tokens, heads, dim) for _ in range(4))
        beta = make(sequences, tokens, heads)
        a_log = torch.randn(heads, device="cuda")
        bias = torch.randn(heads * dim, device="cuda")
        states = [torch.randn(sequences, heads, dim, dim, device="cuda") for _ in range(copies)]
        calls = [lambda s=states[i % copies]: fused_recurrent_kda(
            q, k, v, g, beta, A_log=a_log, dt_bias=bias, initial_state=s, output_final_state=True,
            use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True, lower_bound=-5.0)
            for i in range(max(copies, 20))]
        us = time_graph(calls)
        print(f"fla fused_recurrent_kda sequences {sequences} tokens {tokens}: {us:.2f} us",
              flush=True)


def kda_prompt():
    from fla.ops.kda import chunk_kda
    heads, dim = 64, 128
    # Once round for its autotuner, which takes minutes.
    with torch.inference_mode():
        for warms, tokens in [(w, t) for w in (True, False) for t in (1024, 8192, 65536)]:
            make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
            q, k, v, g = (make(1, tokens, heads, dim) for _ in range(4))
            beta = make(1, tokens, heads)
            a_log = torch.randn(heads, device="cuda")
            bias = torch.randn(heads * dim, device="cuda")
            state = torch.randn(1, heads, dim, dim, device="cuda")
            call = lambda: chunk_kda(
                q, k, v, g, beta, A_log=a_log, dt_bias=bias, initial_state=state,
                output_final_state=True, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
                use_beta_sigmoid_in_kernel=True, safe_gate=True, lower_bound=-5.0)
            if warms:
                call()
                torch.cuda.synchronize()
                print(f"fla chunk_kda {tokens} tokens: tuned", flush=True)
                continue
            peer = time_graph([call] * 3)
            own = own_kda(heads, tokens, a_log, bias, state)
            print(f"KDA prefill {tokens} tokens: fla chunk_kda {peer:.1f} us, here "
                  f"{'library not found' if own is None else f'{own:.1f} us'}", flush=True)


def own_kda(heads, tokens, a_log, bias, state):
    """The engine's kernels on random inputs of their own types, from libkda_peer.so."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libkda_peer.so")
    library = os.environ.get("PERCHERON_KDA_PEER", beside)
    try:
        peer = ctypes.CDLL(library)
    except OSError:
        return None
    peer.percheron_kda_bytes.restype = ctypes.c_size_t
    width = heads * 128
    make = lambda *shape: torch.randn(*shape, device="cuda")
    # As many rows a step as the engine's largest, the state going on.
    rows = min(tokens, 8192)
    sequences = torch.tensor([[0, rows, at, at, rows, 0, 0] for at in range(0, tokens, rows)],
                             dtype=torch.int32, device="cuda")
    inputs = [make(rows, 3 * width), make(rows, heads), make(rows, width), make(rows, width),
              make(3 * width, 4), a_log, bias, make(128), state.clone(), make(4, 3 * width)]
    prepared = torch.empty(peer.percheron_kda_bytes(heads, rows), dtype=torch.uint8, device="cuda")
    output = make(rows, width).to(torch.bfloat16)
    pointer = lambda tensor: ctypes.c_void_p(tensor.data_ptr())

    def call():
        for sequence in sequences:
            code = peer.percheron_kda(
                heads, rows, *map(pointer, inputs), pointer(sequence),
                pointer(prepared), pointer(output),
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
            if code != 0:
                raise RuntimeError("the engine's KDA did not start")

    return time_graph([call] * 3)


def attention():
    from torch.nn.functional import scaled_dot_product_attention as sdpa
    # Absorbed form: 64 query heads over one shared key head of 512, keys = values.
    for tokens in (256, 2051):
        copies = 200
        for rows in (1, 8):
            q = torch.randn(rows, 64, 1, 512, device="cuda", dtype=torch.bfloat16)
            latents = [torch.randn(rows, 1, tokens, 512, device="cuda", dtype=torch.bfloat16)
                       for _ in range(copies)]
            calls = [lambda c=latents[i]: sdpa(q.reshape(rows, 1, 64, 512), c, c)
                     for i in range(copies)]
            us = time_graph(calls)
            print(f"torch sdpa 64 heads x 512, {tokens} tokens, rows {rows}: {us:.2f} us",
                  flush=True)


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for part in (products, attention, kda, kda_prompt):
        if len(sys.argv) > 1 and part.__name__ not in sys.argv[1:]:
            continue
        try:
            part()
        except Exception:
            traceback.print_exc(limit=3)
