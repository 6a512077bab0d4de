// kernel_bench [FILTER]: times the decode kernels at the full model's shapes and prints, for each,
// the bytes that it must move, the time they would take at this run's read ceiling, the measured
// median and the share of the ceiling.
#include <cstring>
#include <string>

#include "cuda/measure.h"
#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/kda_step.h"

using namespace percheron;
using namespace percheron::bench;
using check::OnDevice;
using ops::WeightFormat;

namespace {

double ceiling = 0;  // GB/s
int multiprocessors = 0;

void report(const std::string& name, int rows, double bytes, double plain, double dependent) {
    const double floor = bytes / ceiling / 1e3;
    std::printf(
        "%-34s rows %3d  %8.1f MB  floor %7.2f us  plain %7.2f us %5.1f %%  "
        "dependent %7.2f us %5.1f %%\n",
        name.c_str(), rows, bytes / 1e6, floor, plain, 100 * floor / plain, dependent,
        100 * floor / dependent);
    std::fflush(stdout);
}

// One product or a set of equal ones that share their input.
struct ProductCase {
    const char* name;
    WeightFormat format;
    int n, k, count;
    bool swiglu;
};

constexpr ProductCase products[] = {
    {"bf16 kda inputs 24896x4096", WeightFormat::bf16, 24896, 4096, 1, false},
    {"bf16 kda output 4096x8192", WeightFormat::bf16, 4096, 8192, 1, false},
    {"bf16 sparse inputs 2336x4096", WeightFormat::bf16, 2336, 4096, 1, false},
    {"bf16 q_b, index q 20480x1536", WeightFormat::bf16, 20480, 1536, 1, false},
    {"bf16 sparse output 4096x16384", WeightFormat::bf16, 4096, 16384, 1, false},
    {"bf16 f_b, g_b 2x8192x128", WeightFormat::bf16, 8192, 128, 2, false},
    {"bf16 shared gate, up 2048x4096", WeightFormat::bf16, 2048, 4096, 1, true},
    {"bf16 shared down 4096x2048", WeightFormat::bf16, 4096, 2048, 1, false},
    {"bf16 head 154880x4096", WeightFormat::bf16, 154880, 4096, 1, false},
    {"bf16 tp2 kda inputs 12448x4096", WeightFormat::bf16, 12448, 4096, 1, false},
    {"bf16 tp2 kda output 4096x4096", WeightFormat::bf16, 4096, 4096, 1, false},
    {"fp8 sparse output 4096x16384", WeightFormat::fp8_block, 4096, 16384, 1, false},
    {"fp8 8 experts gate, up 2048x4096", WeightFormat::fp8_block, 2048, 4096, 8, true},
    {"fp8 8 experts down 4096x2048", WeightFormat::fp8_block, 4096, 2048, 8, false},
    {"w4a16 8 experts gate, up 2048x4096", WeightFormat::w4a16, 2048, 4096, 8, true},
    {"w4a16 8 experts down 4096x2048", WeightFormat::w4a16, 4096, 2048, 8, false},
    {"w4a16 4096x8192", WeightFormat::w4a16, 4096, 8192, 1, false},
    {"nvfp4 8 experts gate, up 2048x4096", WeightFormat::nvfp4, 2048, 4096, 8, true},
    {"nvfp4 8 experts down 4096x2048", WeightFormat::nvfp4, 4096, 2048, 8, false},
};

void bench_product(const ProductCase& one) {
    const std::size_t bytes_each =
        ops::cuda::packed_bytes(one.format, one.n, one.k) * (one.swiglu ? 2 : 1);
    const std::size_t bytes = bytes_each * one.count;
    // At least 400 MB go by before the same weights come again.
    const int copies = static_cast<int>((400'000'000 + bytes - 1) / bytes);
    const RandomMemory weights(bytes * copies);
    for (int rows : {1, 4, 8, 16, 64}) {
        check::Random random(5);
        const OnDevice<__nv_bfloat16> x(
            check::as_bf16(check::normals(random, static_cast<std::size_t>(rows) * one.k)));
        OnDevice<float> y(static_cast<std::size_t>(rows) * one.n * one.count);
        const auto time = [&](bool dependent) {
            const int calls = std::max(copies, 20);
            return microseconds(calls, [&](cudaStream_t stream, int call) {
                std::vector<ops::cuda::FewRowProduct> set;
                for (int i = 0; i < one.count; ++i) {
                    const std::uint8_t* at =
                        weights.data() + (call % copies) * bytes + i * bytes_each;
                    ops::cuda::FewRowProduct product;
                    product.weight = {one.format, one.n, one.k, at, 1.0f};
                    if (one.swiglu)
                        product.up = {one.format, one.n, one.k, at + bytes_each / 2, 1.0f};
                    product.x = x.data();
                    product.x_stride = one.k;
                    product.y = y.data() + static_cast<std::size_t>(i) * rows * one.n;
                    product.y_stride = one.n;
                    product.y_is_bf16 = one.swiglu;
                    set.push_back(product);
                }
                const auto status =
                    ops::cuda::few_row_gemm(set, rows, 10.0f, {stream, multiprocessors, dependent});
                if (!status.ok()) {
                    std::printf("%s\n", status.error().message().c_str());
                    std::exit(1);
                }
            });
        };
        report(one.name, rows, static_cast<double>(bytes), time(false), time(true));
    }
}

void bench_kda(int sequences, int rows_each, int commit) {
    constexpr int heads = 64, dim = 128, channels = heads * dim;
    constexpr std::uint32_t ring = 16;
    const int copies = std::max(1, 160 / sequences);
    const std::size_t state_size = static_cast<std::size_t>(heads) * dim * dim;
    check::Random random(7);
    OnDevice<float> state(check::normals(random, 1 << 20)),
        all_states(state_size * sequences * copies);
    for (std::size_t at = 0; at < all_states.size(); at += 1 << 20)
        require(cudaMemcpy(all_states.data() + at, state.data(), sizeof(float) << 20,
                           cudaMemcpyDeviceToDevice),
                "state");
    const int rows = sequences * rows_each;
    const std::size_t kept_width = ops::kda_kept_row(heads, dim);
    const RandomMemory conv(sizeof(float) * sequences * copies * ring * 3 * channels);
    const RandomMemory kept(sizeof(float) * sequences * copies * ring * kept_width);
    const OnDevice<float> projections(check::normals(random, 3u * channels * rows)),
        beta(check::normals(random, heads * rows)), decay(check::normals(random, channels * rows)),
        gate(check::normals(random, channels * rows)),
        weight(check::normals(random, 12 * channels)), a_log(check::normals(random, heads)),
        bias(check::normals(random, channels)), norm(check::normals(random, dim));
    OnDevice<__nv_bfloat16> output(static_cast<std::size_t>(channels) * rows);
    std::vector<ops::cuda::DeviceSequence> host;
    for (int copy = 0; copy < copies; ++copy) {
        for (int s = 0; s < sequences; ++s)
            host.push_back({static_cast<std::uint32_t>(s * rows_each),
                            static_cast<std::uint32_t>(rows_each), 1000,
                            static_cast<std::uint32_t>(commit > 0 ? 1000 : 1000 - 3),
                            static_cast<std::uint32_t>(commit),
                            static_cast<std::uint32_t>(copy * sequences + s), 0});
    }
    const OnDevice<ops::cuda::DeviceSequence> batch(host);
    const auto time = [&](bool dependent) {
        return microseconds(std::max(copies, 20), [&](cudaStream_t stream, int call) {
            ops::cuda::KdaStep step;
            step.heads = heads;
            step.projections = projections.data();
            step.projection_stride = 3 * channels;
            step.beta = beta.data();
            step.beta_stride = heads;
            step.decay = decay.data();
            step.decay_stride = channels;
            step.gate = gate.data();
            step.gate_stride = channels;
            step.conv = weight.data();
            step.a_log = a_log.data();
            step.dt_bias = bias.data();
            step.out_norm = norm.data();
            step.slots = {all_states.data(),
                          state_size,
                          reinterpret_cast<float*>(conv.data()),
                          ring * 3 * channels,
                          reinterpret_cast<float*>(kept.data()),
                          ring * kept_width,
                          ring};
            step.sequences = batch.data() + (call % copies) * sequences;
            step.sequence_count = sequences;
            step.output = output.data();
            const auto status = ops::cuda::kda_step(step, {stream, multiprocessors, dependent});
            if (!status.ok()) std::exit(1);
        });
    };
    const double bytes = 8.0 * static_cast<double>(state_size) * sequences;
    report("kda step, " + std::to_string(sequences) + " sequences" + (commit ? "" : ", verify"),
           rows, bytes, time(false), time(true));
}

}  // namespace

int main(int argc, char** argv) {
    const auto wanted = [&](const char* name) {
        return argc < 2 || std::strstr(name, argv[1]) != nullptr;
    };
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0), "device");
    multiprocessors = properties.multiProcessorCount;
    ceiling = read_ceiling();
    std::printf("%s, %d multiprocessors, read ceiling %.0f GB/s, copy %.0f GB/s (read + written)\n",
                properties.name, multiprocessors, ceiling, copy_rate());
    for (const ProductCase& one : products)
        if (wanted(one.name)) bench_product(one);
    if (wanted("kda step")) {
        for (int sequences : {1, 2, 4, 8, 64})
            bench_kda(sequences, 1, 1);
        bench_kda(1, 8, 0);
        bench_kda(8, 8, 0);
    }
    return 0;
}
