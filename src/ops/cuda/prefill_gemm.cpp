#include "ops/cuda/prefill_gemm.h"

#include "ops/cuda/prefill_launch.h"

namespace percheron::ops::cuda {
namespace {

Status launch_format(WeightFormat format, PrefillLaunch& launch, bool swiglu,
                     const LaunchContext& context) {
    switch (format) {
        case WeightFormat::bf16:
            return launch_prefill<WeightFormat::bf16>(launch, swiglu, context);
        case WeightFormat::fp8_block:
            return launch_prefill<WeightFormat::fp8_block>(launch, swiglu, context);
        case WeightFormat::w4a16:
            return launch_prefill<WeightFormat::w4a16>(launch, swiglu, context);
        case WeightFormat::nvfp4:
            return launch_prefill<WeightFormat::nvfp4>(launch, swiglu, context);
        case WeightFormat::f32:
            break;
    }
    return Error(ErrorCode::unsupported, "the product of many rows has no kernel for this format");
}

int tile_rows_of(WeightFormat format, bool swiglu, bool grouped) {
    return format == WeightFormat::bf16 ? prefill_tile_rows<WeightFormat::bf16>(swiglu, grouped)
                                        : prefill_tile_rows<WeightFormat::w4a16>(swiglu, grouped);
}

// Outputs of a tile, in tiles of weights.
constexpr int unit_tiles(bool swiglu) {
    return swiglu ? 4 : 8;
}

Error unsuited(const char* what) {
    return Error(ErrorCode::invalid_argument, std::string("a product of many rows needs ") + what);
}

}  // namespace

bool has_prefill_kernels() {
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
               cudaSuccess &&
           major == 9 && minor == 0;
}

Status describe_rows(CUtensorMap& map, const __nv_bfloat16* x, int rows, int columns, int x_stride,
                     int box_rows) {
    using Encode =
        CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                     const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static const Encode encode = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                             cudaEnableDefault, &result) != cudaSuccess ||
            result != cudaDriverEntryPointSuccess)
            found = nullptr;
        return reinterpret_cast<Encode>(found);
    }();
    if (encode == nullptr)
        return Error(ErrorCode::unsupported,
                     "the driver knows no tensor maps; a newer one is needed");
    const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(x_stride) * sizeof(__nv_bfloat16)};
    const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
    const cuuint32_t steps[2] = {1, 1};
    const CUresult code =
        encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16*>(x), sizes,
               strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        return Error(ErrorCode::internal,
                     "describing a product's rows failed with code " + std::to_string(code));
    return {};
}

Status prefill_gemm(std::span<const PrefillProduct> products, int rows, float swiglu_limit,
                    const LaunchContext& context) {
    if (products.empty() || products.size() > largest_prefill_count || rows < 1)
        return unsuited("1 to 8 matrices and at least one row");
    if (!has_prefill_kernels())
        return Error(ErrorCode::unsupported,
                     "the products of many rows need compute capability 9.0");
    const PackedMatrix& like = products[0].weight;
    const bool swiglu = products[0].up.data != nullptr;
    const int box_rows = tile_rows_of(like.format, swiglu, false);
    PrefillLaunch launch = {};
    launch.segment_count = static_cast<int>(products.size());
    launch.rows = rows;
    launch.blocks = like.blocks();
    launch.row_tiles = (rows + box_rows - 1) / box_rows;
    launch.limit = swiglu_limit;
    for (std::size_t i = 0; i < products.size(); ++i) {
        const PrefillProduct& product = products[i];
        const PackedMatrix& weight = product.weight;
        if (weight.format != like.format || weight.k != like.k || weight.k % 32 != 0)
            return unsuited("matrices of one format and one k, a multiple of 32");
        if ((product.up.data != nullptr) != swiglu ||
            (swiglu && (product.up.format != weight.format || product.up.n != weight.n ||
                        product.up.k != weight.k)))
            return unsuited("plain matrices alone, or gates and ups of one format and shape");
        if (product.x_stride % 8 != 0) return unsuited("rows of x that start on 16 bytes");
        if (swiglu && product.y_rows == PrefillRows::f32)
            return unsuited("gate and up's results as bf16");
        if (product.y_rows != PrefillRows::f32 &&
            (weight.n % (product.y_rows == PrefillRows::bf16 ? 8 : 32) != 0 ||
             product.y_stride % 8 != 0))
            return unsuited("bf16 results in whole pieces of 8, ordered ones of 32");
        const int inputs = product.outputs_per_input > 0 ? weight.n / product.outputs_per_input : 1;
        if (product.outputs_per_input > 0 &&
            (product.outputs_per_input % 128 != 0 || weight.n % product.outputs_per_input != 0 ||
             product.input_step % 32 != 0 || weight.k % block_columns != 0))
            return unsuited(
                "heads of whole tiles of 128 outputs and of whole blocks of 128 inputs");
        PrefillSegment& s = launch.segments[i];
        PERCHERON_TRY(describe_rows(s.x, product.x, rows,
                                    (inputs - 1) * product.input_step + weight.k, product.x_stride,
                                    box_rows));
        s.weight[0] = weight.data;
        s.weight[1] = swiglu ? product.up.data : weight.data;
        s.scale[0] = weight.global_scale;
        s.scale[1] = swiglu ? product.up.global_scale : weight.global_scale;
        s.y = product.y;
        s.y_stride = product.y_stride;
        s.n = weight.n;
        s.tiles = weight.tiles();
        s.outputs_per_input = product.outputs_per_input;
        s.input_step = product.input_step;
        s.y_rows = product.y_rows;
        s.first_unit_row = launch.unit_rows;
        launch.unit_rows += (s.tiles + unit_tiles(swiglu) - 1) / unit_tiles(swiglu);
    }
    return launch_format(like.format, launch, swiglu, context);
}

Status prefill_experts(const PrefillExperts& product, float swiglu_limit,
                       const LaunchContext& context) {
    const bool swiglu = product.ups != nullptr;
    if (product.k % 32 != 0 || product.x_stride % 8 != 0 ||
        (swiglu && (product.n % 32 != 0 || product.y_stride % 8 != 0)))
        return unsuited("rows of whole pieces of 32 columns that start on 16 bytes");
    if (!has_prefill_kernels())
        return Error(ErrorCode::unsupported,
                     "the products of many rows need compute capability 9.0");
    PrefillLaunch launch = {};
    launch.segment_count = 1;
    launch.rows = product.pairs;
    launch.blocks = (product.k + block_columns - 1) / block_columns;
    launch.groups = product.groups;
    launch.group_count = product.group_count;
    launch.pair_order = product.pair_order;
    launch.expert_weights[0] = product.weights;
    launch.expert_weights[1] = product.ups;
    launch.expert_scales[0] = product.scales;
    launch.expert_scales[1] = product.up_scales;
    launch.limit = swiglu_limit;
    PrefillSegment& s = launch.segments[0];
    PERCHERON_TRY(describe_rows(s.x, product.x, product.pairs, product.k, product.x_stride,
                                grouped_box_rows));
    s.y = product.y;
    s.y_stride = product.y_stride;
    s.y_rows = swiglu ? PrefillRows::ordered_bf16 : PrefillRows::f32;
    s.n = product.n;
    s.tiles = (product.n + tile_rows - 1) / tile_rows;
    launch.unit_rows = (s.tiles + unit_tiles(swiglu) - 1) / unit_tiles(swiglu);
    return launch_format(product.format, launch, swiglu, context);
}

}  // namespace percheron::ops::cuda
