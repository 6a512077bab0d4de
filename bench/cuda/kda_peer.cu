// The KDA mixer of prompts as a shared library, so that peers.py times it in the process of the
// others.  Every pointer is device memory; heads of 128 channels, one sequence from position 0.
#include <cstdio>

#include "ops/cuda/prefill_kda.h"

using namespace percheron::ops;

extern "C" std::size_t percheron_kda_bytes(int heads, int rows) {
    return cuda::kda_prompt_bytes(heads, (rows + 63) / 64);
}

// 0: launched on `stream`.  sequence: a DeviceSequence's seven numbers.
extern "C" int percheron_kda(int heads, int rows, const float* projections, const float* beta,
                             const float* decay, const float* gate, const float* conv,
                             const float* a_log, const float* dt_bias, const float* out_norm,
                             float* state, float* history, const void* sequence, void* prepared,
                             void* output, cudaStream_t stream) {
    const int width = heads * 128;
    cuda::KdaPrompt prompt;
    prompt.heads = heads;
    prompt.projections = projections;
    prompt.projection_stride = 3 * width;
    prompt.beta = beta;
    prompt.beta_stride = heads;
    prompt.decay = decay;
    prompt.decay_stride = width;
    prompt.gate = gate;
    prompt.gate_stride = width;
    prompt.conv = conv;
    prompt.a_log = a_log;
    prompt.dt_bias = dt_bias;
    prompt.out_norm = out_norm;
    prompt.slots = {state, 0, history, 0, nullptr, 0, 4};
    prompt.sequences = static_cast<const cuda::DeviceSequence*>(sequence);
    prompt.sequence_count = 1;
    prompt.prepared = static_cast<std::byte*>(prepared);
    prompt.prepared_chunks = (rows + 63) / 64;
    prompt.output = static_cast<__nv_bfloat16*>(output);
    const std::uint32_t count = static_cast<std::uint32_t>(rows);
    const percheron::Status status = cuda::kda_prompt(prompt, {&count, 1}, {stream, 132, false});
    if (!status.ok()) std::printf("%s\n", status.error().message().c_str());
    return status.ok() ? 0 : 1;
}
