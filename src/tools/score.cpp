#include "tools/score.h"

#include <algorithm>
#include <numeric>
#include <span>

#include <nlohmann/json.hpp>

#include "tools/model_source.h"
#include "tools/prompt_reader.h"

namespace percheron::tools {
namespace {

Error invalid(std::string sentence) {
    return Error(ErrorCode::invalid_argument, std::move(sentence));
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

void read_row(std::span<const TokenId> ids, std::size_t position, std::span<const float> logits,
              std::size_t top, SequenceScore& result) {
    const double normaliser = log_normaliser(logits);
    if (position + 1 < ids.size()) {
        const auto next = static_cast<std::size_t>(to_int(ids[position + 1]));
        result.logprobs.push_back(logits[next] - normaliser);
    }
    result.top.push_back(most_likely(logits, normaliser, top));
}

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
    PERCHERON_ASSIGN(ModelSource source, open_model(options.folder, options.threads));
    PERCHERON_TRY(check_ids(sequences, source.config));
    std::size_t longest = 0;
    std::size_t total = 0;
    for (const auto& ids : sequences) {
        longest = std::max(longest, ids.size());
        total += ids.size();
    }
    PERCHERON_ASSIGN(
        PromptReader reader,
        PromptReader::load(std::move(source), {options.device, options.threads, options.arithmetic},
                           longest));
    const std::size_t vocabulary = reader.config().vocabulary;
    const std::size_t rows = PromptReader::step_rows(vocabulary);
    std::vector<SequenceScore> scores;
    std::size_t done = 0;
    for (const auto& ids : sequences) {
        SequenceScore& one = scores.emplace_back();
        for (std::size_t first = 0; first < ids.size(); first += rows) {
            const std::size_t count = std::min(rows, ids.size() - first);
            PERCHERON_ASSIGN(const auto logits, reader.step(ids, first, count));
            for (std::size_t row = 0; row < count; ++row) {
                read_row(ids, first + row, logits.subspan(row * vocabulary, vocabulary),
                         options.top, one);
            }
            done += count;
            if (options.progress) options.progress(done, total);
        }
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
