// What a made-up checkpoint is to look like: counts, weight format and seed, read from
// "layers=45,experts=288,format=w4a16,seed=1" or set one by one.  Whatever is not named has the
// value of GLM-5.3-Flash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/architecture.h"
#include "core/status.h"
#include "model/config.h"
#include "ops/weight_matrix.h"

namespace percheron::checkpoint {

struct SyntheticSpec {
    std::size_t layers = 45;
    std::size_t dense_layers = 3;  // the first ones; no more than there are layers
    std::size_t vocabulary = 154880;
    std::size_t hidden = 4096;
    std::size_t intermediate = 12288;
    std::size_t experts = 288;
    std::size_t experts_per_token = 8;
    std::size_t shared_experts = 1;
    std::size_t expert_intermediate = 2048;
    std::size_t attention_heads = 64;
    std::size_t query_rank = 1536;
    std::size_t latent = 512;
    std::size_t query_key_dim = 256;
    std::size_t value_dim = 256;
    std::size_t index_heads = 32;
    std::size_t index_dim = 128;
    std::size_t index_topk = 2048;
    std::size_t kda_heads = 64;
    std::size_t kda_dim = 128;
    std::size_t mtp = 1;
    std::size_t context = 1048576;
    std::size_t vision = 24;  // blocks of the tower; 0: no tower
    std::size_t vision_hidden = 1024;
    std::size_t vision_heads = 16;
    std::size_t vision_intermediate = 4096;
    std::size_t vision_projection = 10240;

    // bf16       everything
    // fp8_block  routed and shared experts, dense FFN, q_a, q_b, kv_a and o of sparse attention
    // w4a16      routed experts of the trunk
    // nvfp4      routed experts of the trunk and the dense FFN
    ops::WeightFormat format = ops::WeightFormat::bf16;
    std::uint64_t seed = 1;
};

// A count that can be set.
struct SpecCount {
    const char* key;
    std::size_t SyntheticSpec::*member;
    std::size_t least;
    std::size_t most;
    std::size_t multiple;  // the count is a multiple of it
    const char* meaning;
};

std::span<const SpecCount> spec_counts();

// "bf16", "fp8", "w4a16", "nvfp4".  Errors: invalid_argument.
Result<ops::WeightFormat> spec_format(std::string_view name);
std::string_view spec_name(ops::WeightFormat format);

// "key=value,key=value", keys of spec_counts(), format and seed; empty: all defaults.
// Errors: invalid_argument, one sentence, for unknown keys, no numbers and what check_spec refuses.
Result<SyntheticSpec> parse_spec(std::string_view text);

// Errors: invalid_argument for counts out of their range or at odds with each other.
Status check_spec(const SyntheticSpec& spec);

// The smallest vocabulary that holds the embedded model's tokenizer.  A spec with at least so many
// ids has that tokenizer's special ids, a smaller one its own at the end of its vocabulary.
inline constexpr std::size_t embedded_vocabulary = 8192;

// config.json without a quantization_config, as text.
std::string config_text(const SyntheticSpec& spec);

// Which format a weight has.
ops::WeightFormat format_of(const SyntheticSpec& spec, const ExpectedTensor& tensor);

}  // namespace percheron::checkpoint
