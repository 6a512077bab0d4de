#include "tools/score.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>

#include <nlohmann/json.hpp>

#include "cache/cache_shape.h"
#include "cache/cache_store.h"
#include "model/network.h"
#include "tools/devices.h"
#include "tools/model_source.h"

namespace percheron::tools {
namespace {

Error invalid(std::string sentence) {
    return Error(ErrorCode::invalid_argument, std::move(sentence));
}

// Positions a step: as many as keep the step's logits within 64 MiB, on the prefill grid.
std::size_t step_rows(std::size_t vocabulary) {
    constexpr std::size_t logit_bytes = std::size_t{64} << 20;
    const std::size_t rows = logit_bytes / (vocabulary * sizeof(float));
    return std::clamp<std::size_t>(rows / ops::page_tokens * ops::page_tokens, ops::page_tokens,
                                   512);
}

// log of the sum of exponentials of the logits.
double log_normaliser(std::span<const float> logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) {
        sum += std::exp(logit - largest);
    }
    return largest + std::log(sum);
}

std::vector<std::pair<TokenId, double>> most_likely(std::span<const float> logits,
                                                    double normaliser, std::size_t count) {
    std::vector<std::uint32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0u);
    count = std::min(count, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count),
                      order.end(), [&](std::uint32_t a, std::uint32_t b) {
                          return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                      });
    std::vector<std::pair<TokenId, double>> top;
    for (std::size_t i = 0; i < count; ++i) {
        top.emplace_back(static_cast<TokenId>(order[i]), logits[order[i]] - normaliser);
    }
    return top;
}

Status check_ids(const std::vector<std::vector<TokenId>>& sequences,
                 const model::ModelConfig& config) {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        if (sequences[i].size() > config.context_limit) {
            return invalid("Sequence " + std::to_string(i) + " has " +
                           std::to_string(sequences[i].size()) +
                           " ids, more than the model's context of " +
                           std::to_string(config.context_limit) + ".");
        }
        for (const TokenId id : sequences[i]) {
            if (to_int(id) < 0 || static_cast<std::size_t>(to_int(id)) >= config.vocabulary) {
                return invalid("Sequence " + std::to_string(i) + " holds the id " +
                               std::to_string(to_int(id)) + "; the model's ids are 0 to " +
                               std::to_string(config.vocabulary - 1) + ".");
            }
        }
    }
    return {};
}

// Scores sequences one after the other, in the same pages and slot.
class Scorer {
  public:
    Scorer(model::Network& network, const cache::CacheStore& caches, std::uint32_t pages,
           std::size_t rows, std::size_t top)
        : network_(network), caches_(caches), rows_(rows), top_(top) {
        for (std::uint32_t page = 0; page < pages; ++page) {
            pages_.push_back(PageId(page));
        }
    }

    Result<SequenceScore> score(std::span<const TokenId> ids,
                                const std::function<void(std::size_t)>& computed) {
        SequenceScore result;
        for (std::size_t first = 0; first < ids.size(); first += rows_) {
            const std::size_t count = std::min(rows_, ids.size() - first);
            PERCHERON_ASSIGN(const auto logits, step(ids, first, count));
            const std::size_t vocabulary = logits.size() / count;
            for (std::size_t row = 0; row < count; ++row) {
                read_row(ids, first + row, logits.subspan(row * vocabulary, vocabulary), result);
            }
            computed(count);
        }
        return result;
    }

  private:
    Result<std::span<const float>> step(std::span<const TokenId> ids, std::size_t first,
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
        return network_.forward(batch, caches_.views());
    }

    void read_row(std::span<const TokenId> ids, std::size_t position, std::span<const float> logits,
                  SequenceScore& result) const {
        const double normaliser = log_normaliser(logits);
        if (position + 1 < ids.size()) {
            const auto next = static_cast<std::size_t>(to_int(ids[position + 1]));
            result.logprobs.push_back(logits[next] - normaliser);
        }
        result.top.push_back(most_likely(logits, normaliser, top_));
    }

    model::Network& network_;
    const cache::CacheStore& caches_;
    std::size_t rows_;
    std::size_t top_;
    std::vector<PageId> pages_;
    std::vector<std::uint32_t> logit_rows_;
};

}  // namespace

Result<std::vector<std::vector<TokenId>>> parse_sequences(const std::string& json) {
    const auto parsed = nlohmann::json::parse(json, nullptr, false);
    if (parsed.is_discarded()) {
        return invalid("it is not JSON; write a list of lists of token ids.");
    }
    if (!parsed.is_array() || parsed.empty()) {
        return invalid("it must be a list of lists of token ids, at least one.");
    }
    std::vector<std::vector<TokenId>> sequences;
    for (const auto& list : parsed) {
        const std::string name = "list " + std::to_string(sequences.size());
        if (!list.is_array() || list.empty()) {
            return invalid(name + " must be a list of at least one token id.");
        }
        std::vector<TokenId>& ids = sequences.emplace_back();
        for (const auto& id : list) {
            const bool fits = id.is_number_integer() &&
                              (!id.is_number_unsigned() || id.get<std::uint64_t>() <= 0x7fffffffu);
            if (!fits || id.get<std::int64_t>() < 0) {
                return invalid(
                    name + " holds " +
                    id.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 40) +
                    ", which is no token id.");
            }
            ids.push_back(static_cast<TokenId>(id.get<std::int32_t>()));
        }
    }
    return sequences;
}

Result<std::vector<SequenceScore>> score(const std::vector<std::vector<TokenId>>& sequences,
                                         const ScoreOptions& options) {
    PERCHERON_ASSIGN(const ModelSource source, open_model(options.folder, options.threads));
    const model::ModelConfig& config = source.config;
    PERCHERON_TRY(check_ids(sequences, config));

    model::NetworkOptions network_options;
    network_options.max_rows = network_options.max_logit_rows = step_rows(config.vocabulary);
    PERCHERON_ASSIGN(const auto backend,
                     make_backend({options.device, options.threads, options.arithmetic}, config,
                                  network_options.max_rows));
    PERCHERON_ASSIGN(const auto network,
                     model::Network::load(config, *source.weights, *backend, network_options));

    std::size_t longest = 0;
    std::size_t total = 0;
    for (const auto& ids : sequences) {
        longest = std::max(longest, ids.size());
        total += ids.size();
    }
    PERCHERON_ASSIGN(const DType kv_dtype, cache::kv_dtype_of("auto", options.arithmetic));
    const std::uint32_t pages = cache::pages_for(longest);
    PERCHERON_ASSIGN(
        const auto caches,
        cache::CacheStore::create(cache::CacheShape::of(config, kv_dtype), pages, 1, *backend));

    Scorer scorer(*network, *caches, pages, network_options.max_rows, options.top);
    std::vector<SequenceScore> scores;
    std::size_t done = 0;
    for (const auto& ids : sequences) {
        PERCHERON_ASSIGN(SequenceScore one, scorer.score(ids, [&](std::size_t count) {
            done += count;
            if (options.progress) options.progress(done, total);
        }));
        scores.push_back(std::move(one));
    }
    return scores;
}

std::string to_json(const std::vector<SequenceScore>& scores) {
    nlohmann::ordered_json json;
    json["sequences"] = nlohmann::ordered_json::array();
    for (const SequenceScore& score : scores) {
        auto logprobs = nlohmann::ordered_json::array({nullptr});
        for (const double logprob : score.logprobs) {
            logprobs.push_back(logprob);
        }
        auto top = nlohmann::ordered_json::array();
        for (const auto& position : score.top) {
            auto& list = top.emplace_back(nlohmann::ordered_json::array());
            for (const auto& [id, logprob] : position) {
                list.push_back(nlohmann::ordered_json::array({to_int(id), logprob}));
            }
        }
        json["sequences"].push_back({{"logprobs", std::move(logprobs)}, {"top", std::move(top)}});
    }
    return json.dump();
}

}  // namespace percheron::tools
