#include "tools/prompt_reader.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "cache/cache_shape.h"

namespace percheron::tools {

std::size_t PromptReader::step_rows(std::size_t vocabulary) {
    constexpr std::size_t logit_bytes = std::size_t{64} << 20;
    const std::size_t rows = logit_bytes / (vocabulary * sizeof(float));
    return std::clamp<std::size_t>(rows / ops::page_tokens * ops::page_tokens, ops::page_tokens,
                                   512);
}

Result<PromptReader> PromptReader::load(ModelSource source, const DeviceOptions& device,
                                        std::size_t longest) {
    PromptReader reader;
    reader.source_ = std::move(source);
    const model::ModelConfig& config = reader.config();
    model::NetworkOptions rows;
    rows.max_rows = rows.max_logit_rows = step_rows(config.vocabulary);
    PERCHERON_ASSIGN(reader.backend_, make_backend(device, config, rows.max_rows));
    PERCHERON_ASSIGN(reader.network_,
                     model::Network::load(config, *reader.source_.weights, *reader.backend_, rows));
    PERCHERON_ASSIGN(const DType kv_dtype, cache::kv_dtype_of("auto", device.arithmetic));
    const std::uint32_t pages = cache::pages_for(longest);
    PERCHERON_ASSIGN(reader.caches_,
                     cache::CacheStore::create(cache::CacheShape::of(config, kv_dtype), pages, 1,
                                               *reader.backend_));
    for (std::uint32_t page = 0; page < pages; ++page)
        reader.pages_.push_back(PageId(page));
    return reader;
}

Result<std::span<const float>> PromptReader::step(std::span<const TokenId> ids, std::size_t first,
                                                  std::size_t count) {
    ops::SequenceRows rows;
    rows.row_count = rows.commit_rows = static_cast<std::uint32_t>(count);
    rows.first_position = rows.state_position = static_cast<Position>(first);
    rows.pages = pages_;
    logit_rows_.resize(count);
    std::iota(logit_rows_.begin(), logit_rows_.end(), 0u);
    ops::RowBatch batch;
    batch.numeric_class = ops::NumericClass::prefill;
    batch.sequences = {&rows, 1};
    batch.tokens = ids.subspan(first, count);
    batch.logit_rows = logit_rows_;
    return network_->forward(batch, caches_->views());
}

double log_normaliser(std::span<const float> logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) {
        sum += std::exp(logit - largest);
    }
    return largest + std::log(sum);
}

}  // namespace percheron::tools
