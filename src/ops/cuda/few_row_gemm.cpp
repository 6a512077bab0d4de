#include "ops/cuda/few_row_gemm.h"

#include "ops/cuda/few_row_launch.h"
#include "ops/cuda/row_parts.h"

namespace percheron::ops::cuda {
namespace {

int log2_of_slices(WeightFormat format, int k) {
    const int slices = slice_count(format, k);
    return slices == 8 ? 3 : slices == 4 ? 2 : slices == 2 ? 1 : 0;
}

}  // namespace

Status few_row_gemm(std::span<const FewRowProduct> products, int rows, float swiglu_limit,
                    const LaunchContext& context, const WeightsAhead& ahead) {
    if (products.empty() || products.size() > largest_product_count || rows < 1)
        return Error(ErrorCode::invalid_argument,
                     "a few-row product takes 1 to 8 matrices and at least one row");
    const WeightFormat format = products[0].weight.format;
    const bool swiglu = products[0].up.data != nullptr;
    FewRowLaunch launch = {};
    launch.segment_count = static_cast<int>(products.size());
    launch.rows = rows;
    launch.limit = swiglu_limit;
    launch.y_factor = 1.0f;
    launch.ahead = ahead;
    launch.blocks = products[0].weight.blocks();
    launch.slices_log2 = log2_of_slices(format, products[0].weight.k);
    for (std::size_t i = 0; i < products.size(); ++i) {
        const FewRowProduct& product = products[i];
        const PackedMatrix& weight = product.weight;
        if (weight.format != format || (product.up.data != nullptr) != swiglu)
            return Error(ErrorCode::invalid_argument,
                         "the matrices of one few-row product must share format and kind");
        if (swiglu &&
            (product.up.format != format || product.up.n != weight.n || product.up.k != weight.k))
            return Error(ErrorCode::invalid_argument, "gate and up must share format and shape");
        if (weight.k != products[0].weight.k)
            return Error(ErrorCode::invalid_argument,
                         "the matrices of one few-row product must share k");
        if (product.x_stride % 8 != 0 || product.input_step % 8 != 0 ||
            product.x_stride < weight.blocks() * block_columns)
            return Error(ErrorCode::invalid_argument,
                         "a few-row product needs rows of x padded to a multiple of 128 columns");
        FewRowSegment& s = launch.segments[i];
        s.weight[0] = weight.data;
        s.weight[1] = swiglu ? product.up.data : weight.data;
        s.scale[0] = weight.global_scale;
        s.scale[1] = swiglu ? product.up.global_scale : weight.global_scale;
        s.x = product.x;
        s.x_stride = product.x_stride;
        s.y = product.y;
        s.y_stride = product.y_stride;
        s.n = weight.n;
        s.tiles = weight.tiles();
        s.tiles_per_input = s.tiles;
        if (product.outputs_per_input > 0) {
            // Two tiles are computed together, so an input's tiles come in pairs.
            if (product.outputs_per_input % (2 * tile_rows) != 0 ||
                weight.n % product.outputs_per_input != 0)
                return Error(ErrorCode::invalid_argument,
                             "outputs that share an input come in multiples of 32");
            s.tiles_per_input = product.outputs_per_input / tile_rows;
            s.input_step = product.input_step;
        }
        s.y_is_bf16 = product.y_is_bf16;
    }
    switch (format) {
        case WeightFormat::bf16:
            return launch_product<WeightFormat::bf16>(launch, swiglu, context);
        case WeightFormat::fp8_block:
            return launch_product<WeightFormat::fp8_block>(launch, swiglu, context);
        case WeightFormat::w4a16:
            return launch_product<WeightFormat::w4a16>(launch, swiglu, context);
        case WeightFormat::nvfp4:
            return launch_product<WeightFormat::nvfp4>(launch, swiglu, context);
        case WeightFormat::f32:
            break;
    }
    return Error(ErrorCode::unsupported, "the few-row product has no kernel for this format");
}

Status expert_gemm(const ExpertProduct& product, const ExpertChoice& choice, float swiglu_limit,
                   const LaunchContext& context) {
    const bool swiglu = product.ups != nullptr;
    const int blocks = (product.k + block_columns - 1) / block_columns;
    if (product.x_stride % 8 != 0 || product.x_stride < blocks * block_columns)
        return Error(ErrorCode::invalid_argument,
                     "an expert product needs rows of x padded to a multiple of 128 columns");
    FewRowLaunch launch = {};
    launch.segment_count = 1;
    launch.rows = expert_group_rows;
    launch.limit = swiglu_limit;
    launch.y_factor = product.y_is_raised ? raised_by : 1.0f;
    launch.blocks = blocks;
    launch.slices_log2 = log2_of_slices(product.format, product.k);
    launch.groups = choice.groups;
    launch.group_count = choice.group_count;
    launch.most_groups = choice.pairs;
    launch.pair_order = choice.pair_order;
    launch.expert_weights[0] = product.weights;
    launch.expert_weights[1] = product.ups;
    launch.expert_scales[0] = product.scales;
    launch.expert_scales[1] = product.up_scales;
    launch.pairs_per_row = product.pairs_per_row;
    launch.choice_is_older = product.choice_is_older;
    FewRowSegment& s = launch.segments[0];
    s.x = product.x;
    s.x_stride = product.x_stride;
    s.y = product.y;
    s.y_stride = product.y_stride;
    s.y_is_bf16 = swiglu;
    s.n = product.n;
    s.tiles = (product.n + tile_rows - 1) / tile_rows;
    s.tiles_per_input = s.tiles;
    switch (product.format) {
        case WeightFormat::bf16:
            return launch_experts<WeightFormat::bf16>(launch, swiglu, context);
        case WeightFormat::fp8_block:
            return launch_experts<WeightFormat::fp8_block>(launch, swiglu, context);
        case WeightFormat::w4a16:
            return launch_experts<WeightFormat::w4a16>(launch, swiglu, context);
        case WeightFormat::nvfp4:
            return launch_experts<WeightFormat::nvfp4>(launch, swiglu, context);
        case WeightFormat::f32:
            break;
    }
    return Error(ErrorCode::unsupported, "the expert product has no kernel for this format");
}

}  // namespace percheron::ops::cuda
