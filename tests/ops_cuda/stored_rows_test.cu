// Rows of an fp8 cache on the device: stored and read as ops/stored_rows.h says, to the bit.
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cuda/sparse_rows.h"
#include "ops/cuda/stored_rows.cuh"
#include "ops/stored_rows.h"
#include "ops_cuda/check.h"
#include "ops_cuda/support.h"

using namespace percheron;
using namespace percheron::check;

namespace {

constexpr int width = 128;

// One warp a row: its codes and scale, and the numbers that they stand for.
__global__ void store_and_load(const float* values, std::uint32_t* codes, std::uint8_t* scales,
                               uint2* loaded, float* scale_values) {
    const std::size_t at = static_cast<std::size_t>(blockIdx.x) * 32 + threadIdx.x;
    std::uint32_t most = 0;
    for (int i = 0; i < 4; ++i)
        most = max(most, ops::cuda::magnitude_bits(values[at * 4 + i]));
    const std::uint32_t scale = ops::cuda::scale_byte(__reduce_max_sync(0xffffffffu, most));
    std::uint32_t word = 0;
    for (int i = 0; i < 4; ++i)
        word |= ops::cuda::row_code(values[at * 4 + i], scale) << (8 * i);
    codes[at] = word;
    const uint2 pairs = ops::cuda::widen_4(word);
    const std::uint32_t pair = ops::cuda::scale_pair(scale);
    loaded[at] = make_uint2(ops::cuda::multiply_bf16x2(pairs.x, pair),
                            ops::cuda::multiply_bf16x2(pairs.y, pair));
    if (threadIdx.x == 0) {
        scales[blockIdx.x] = static_cast<std::uint8_t>(scale);
        scale_values[blockIdx.x] = ops::cuda::scale_value(scale);
    }
}

}  // namespace

KERNEL_TEST(stored_rows_on_the_device_are_those_of_the_contract) {
    Random random(41);
    constexpr std::size_t rows = 4096;
    std::vector<float> values(rows * width);
    for (std::size_t row = 0; row < rows; ++row) {
        for (int i = 0; i < width; ++i) {
            float& value = values[row * width + i];
            if (row % 4 == 0) {
                // Any bits: NaN, infinities, subnormals.
                const auto bits = static_cast<std::uint32_t>(random.bits());
                std::memcpy(&value, &bits, 4);
                if (row % 8 == 0 && !std::isfinite(value)) value = 0.0f;
            } else {
                value = random.normal() * std::exp2(random.uniform(-120.0f, 120.0f));
            }
        }
        // Rows of nothing but codes and the middles between them.
        if (row % 16 == 1) {
            for (int i = 0; i < width; ++i) {
                const auto code = [](int bits) {
                    return static_cast<float>(
                        Float8E4M3::from_bits(static_cast<std::uint8_t>(bits % 0x7f)));
                };
                const int low = static_cast<int>(random.below(0x7e));
                values[row * width + i] =
                    std::ldexp((code(low) + code(low + static_cast<int>(random.below(2)))) / 2,
                               static_cast<int>(row % 64) - 32);
            }
            values[row * width] = std::ldexp(448.0f, static_cast<int>(row % 64) - 32);
        }
    }
    const OnDevice<float> memory(values);
    OnDevice<std::uint32_t> codes(rows * width / 4);
    OnDevice<std::uint8_t> scales(rows);
    OnDevice<uint2> loaded(rows * width / 4);
    OnDevice<float> scale_values(rows);
    store_and_load<<<rows, 32>>>(memory.data(), codes.data(), scales.data(), loaded.data(),
                                 scale_values.data());
    const auto got = codes.download();
    const auto got_scales = scales.download();
    const auto got_numbers = loaded.download();
    const auto got_scale_values = scale_values.download();
    std::size_t nans = 0;
    std::vector<std::uint8_t> share(ops::stored_rows_bytes(DType::f8_e4m3, 1, width));
    for (std::size_t row = 0; row < rows; ++row) {
        const auto expected = ops::stored_row(share.data(), DType::f8_e4m3, 1, width, 0);
        ops::store_row(expected, DType::f8_e4m3, {values.data() + row * width, width});
        CHECK_THAT(got_scales[row] == *expected.scale, "row %zu: scale %d, not %d", row,
                   got_scales[row], *expected.scale);
        CHECK_THAT(std::memcmp(&got[row * width / 4], share.data(), width) == 0,
                   "row %zu: other codes", row);
        bool same = true;
        for (int i = 0; i < width; ++i) {
            std::uint16_t bits = 0;
            std::memcpy(&bits, reinterpret_cast<const char*>(&got_numbers[row * width / 4]) + 2 * i,
                        2);
            const auto number = static_cast<float>(BFloat16::from_bits(bits));
            const float want = ops::load_stored(expected, DType::f8_e4m3, i);
            same &= std::isnan(want) ? std::isnan(number) : number == want;
            nans += std::isnan(want);
        }
        CHECK_THAT(same, "row %zu: other numbers", row);
        const float scale = ops::row_scale(*expected.scale);
        CHECK_THAT(
            std::isnan(scale) ? std::isnan(got_scale_values[row]) : scale == got_scale_values[row],
            "row %zu: scale reads as %g", row, static_cast<double>(got_scale_values[row]));
    }
    CHECK_THAT(nans > width && nans < rows * width / 4, "%zu NaN", nans);
}

// What a sparse layer leaves of its rows in fp8 is what it leaves in bf16, but for the rounding;
// and its bits do not depend on who is beside a row.
KERNEL_TEST(stored_rows_of_a_sparse_layer) {
    Random random(42);
    constexpr int latent = 512, dim = 128, rank = 128, stride = rank + latent + 2 * dim;
    constexpr std::uint32_t ring = 16;
    for (const std::size_t rows : {1, 3, 7, 8, 9, 64, 255, 512}) {
        // One sequence from position 62 on, over a page's edge.
        const std::uint32_t first = 62;
        const auto projections = normals(random, rows * stride, 3.0f);
        const auto tails = normals(random, ring * 2 * dim);
        const auto norms = normals(random, rank + latent + 2 * dim + 4 * dim);
        const std::size_t page_count = (first + rows) / 64 + 1;
        std::vector<std::uint32_t> pages(page_count);
        for (std::size_t page = 0; page < page_count; ++page)
            pages[page] = static_cast<std::uint32_t>(page_count - 1 - page);
        const OnDevice<float> projection_memory(projections), norm_memory(norms);
        const OnDevice<std::uint32_t> page_memory(pages);
        const auto run = [&](DType dtype, std::size_t from, std::size_t count,
                             const std::vector<float>& ring_before, OnDevice<std::uint8_t>& latents,
                             OnDevice<std::uint8_t>& pooled) {
            OnDevice<float> tail_memory(ring_before);
            const auto position = static_cast<std::uint32_t>(first + from);
            const auto sequence_rows = static_cast<std::uint32_t>(count);
            const OnDevice<ops::cuda::DeviceSequence> sequence(
                std::vector<ops::cuda::DeviceSequence>{
                    {0, sequence_rows, position, position, sequence_rows, 0, 0}});
            const OnDevice<std::uint32_t> zeros(std::vector<std::uint32_t>(count, 0));
            OnDevice<__nv_bfloat16> query(count * rank);
            ops::cuda::SparseRows op;
            op.projections = projection_memory.data() + from * stride;
            op.stride = stride;
            op.latent_at = rank;
            op.key_at = rank + latent;
            op.gate_at = rank + latent + dim;
            op.query_rank = rank;
            op.query_norm = norm_memory.data();
            op.latent_norm = norm_memory.data() + rank;
            op.key_norm = norm_memory.data() + rank + latent;
            op.key_bias = op.key_norm + dim;
            op.ape = op.key_bias + dim;
            op.pages.latents = latents.data();
            op.pages.latent_dtype = op.pages.pooled_dtype = dtype;
            op.pages.latent_page_bytes = ops::stored_rows_bytes(dtype, 64, latent);
            op.pages.pooled = pooled.data();
            op.pages.pooled_page_bytes = ops::stored_rows_bytes(dtype, 16, dim);
            op.pages.tails = tail_memory.data();
            op.pages.tail_stride = ring * 2 * dim;
            op.pages.tail_ring = ring;
            op.batch = {static_cast<int>(count), sequence.data(), 1, zeros.data(),
                        page_memory.data()};
            op.query = query.data();
            CHECK_OK(ops::cuda::sparse_rows(op, {}));
            require(cudaDeviceSynchronize(), "rows");
            return tail_memory.download();
        };
        const auto memory = [&](DType dtype, std::size_t page_rows, std::size_t columns) {
            return page_count * ops::stored_rows_bytes(dtype, page_rows, columns);
        };
        OnDevice<std::uint8_t> latents8(memory(DType::f8_e4m3, 64, latent)),
            pooled8(memory(DType::f8_e4m3, 16, dim)), latents16(memory(DType::bf16, 64, latent)),
            pooled16(memory(DType::bf16, 16, dim));
        for (auto* each : {&latents8, &pooled8, &latents16, &pooled16})
            each->poison();
        run(DType::bf16, 0, rows, tails, latents16, pooled16);
        run(DType::f8_e4m3, 0, rows, tails, latents8, pooled8);
        auto wide = latents16.download(), narrow = latents8.download();
        auto wide_keys = pooled16.download(), narrow_keys = pooled8.download();

        const auto compare = [&](std::vector<std::uint8_t>& in_bf16,
                                 std::vector<std::uint8_t>& in_fp8, std::size_t page_rows,
                                 int columns, std::size_t place, const char* what) {
            const std::size_t page = pages[place / page_rows], row = place % page_rows;
            const auto row16 = ops::stored_row(
                &in_bf16[page * ops::stored_rows_bytes(DType::bf16, page_rows, columns)],
                DType::bf16, page_rows, columns, row);
            const auto row8 = ops::stored_row(
                &in_fp8[page * ops::stored_rows_bytes(DType::f8_e4m3, page_rows, columns)],
                DType::f8_e4m3, page_rows, columns, row);
            float most = 0;
            for (int i = 0; i < columns; ++i)
                most = std::fmax(most, std::fabs(ops::load_stored(row16, DType::bf16, i)));
            const float scale = ops::row_scale(*row8.scale);
            CHECK_THAT(most * 0x1.01p0f > 224 * scale && most < 448 * 0x1.01p0f * scale,
                       "%s %zu of %zu rows: scale %g for %g", what, place, rows,
                       static_cast<double>(scale), static_cast<double>(most));
            bool close = true;
            for (int i = 0; i < columns; ++i) {
                const float want = ops::load_stored(row16, DType::bf16, i);
                const float got = ops::load_stored(row8, DType::f8_e4m3, i);
                close &= std::fabs(got - want) <=
                         std::fmax(std::fabs(want) * (0x1p-4f + 0x1p-7f), 0x1p-9f * scale);
            }
            CHECK_THAT(close, "%s %zu of %zu rows is not the bf16 one, rounded", what, place, rows);
        };
        for (std::size_t i = 0; i < rows; ++i)
            compare(wide, narrow, 64, latent, first + i, "latent");
        std::size_t pools = 0;
        for (std::size_t pool = first / 4; pool * 4 + 3 < first + rows; ++pool, ++pools)
            compare(wide_keys, narrow_keys, 16, dim, pool, "pooled key");
        CHECK_THAT(pools == (first + rows) / 4 - first / 4, "%zu pools", pools);

        // The same rows in three steps leave the same bytes.
        OnDevice<std::uint8_t> stepped(latents8.size()), stepped_keys(pooled8.size());
        stepped.poison();
        stepped_keys.poison();
        std::vector<float> ring_now = tails;
        for (std::size_t done = 0; done < rows;) {
            const std::size_t count = std::min(rows - done, rows / 3 + 1);
            ring_now = run(DType::f8_e4m3, done, count, ring_now, stepped, stepped_keys);
            done += count;
        }
        CHECK_THAT(stepped.download() == narrow, "%zu rows in steps leave other latents", rows);
        CHECK_THAT(stepped_keys.download() == narrow_keys, "%zu rows in steps leave other keys",
                   rows);
    }
}
