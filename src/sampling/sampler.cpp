#include "sampling/sampler.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace percheron::sampling {

namespace {

using Candidate = Sampler::Candidate;

std::size_t index(TokenId token) {
    return static_cast<std::size_t>(to_int(token));
}

bool before(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : to_int(a.id) < to_int(b.id);
}

// What one pass over a row of logits tells, in vectors of four whatever processor it is.
struct RowSummary {
    float largest = 0, smallest = 0;
    bool finite = true;
};

RowSummary summarise(std::span<const float> logits) {
    using Four = float __attribute__((vector_size(16)));
    constexpr std::size_t chains = 4;
    constexpr std::size_t block = chains * 4;
    RowSummary row{logits.front(), logits.front(), true};
    // 0 times a number is 0; times an infinity or NaN it is NaN, and stays it in a sum.
    float faults = 0;
    const auto add = [&](float logit) {
        row.largest = logit > row.largest ? logit : row.largest;
        row.smallest = logit < row.smallest ? logit : row.smallest;
        faults += logit * 0.0f;
    };
    Four largest[chains], smallest[chains], fault[chains];
    for (std::size_t c = 0; c < chains; ++c) {
        largest[c] = smallest[c] = Four{} + logits.front();
        fault[c] = Four{};
    }
    std::size_t i = 0;
    for (; i + block <= logits.size(); i += block) {
#pragma GCC unroll 4
        for (std::size_t c = 0; c < chains; ++c) {
            Four x;
            std::memcpy(&x, logits.data() + i + 4 * c, sizeof(x));
            largest[c] = x > largest[c] ? x : largest[c];
            smallest[c] = x < smallest[c] ? x : smallest[c];
            fault[c] += x * 0.0f;
        }
    }
    for (std::size_t c = 0; c < chains; ++c) {
        for (std::size_t lane = 0; lane < 4; ++lane) {
            add(largest[c][lane]);
            add(smallest[c][lane]);
            faults += fault[c][lane];
        }
    }
    for (; i < logits.size(); ++i) {
        add(logits[i]);
    }
    row.finite = faults == 0.0f;
    return row;
}

// The first of the logits that equal the largest; both zeros are alike.
std::size_t first_of(std::span<const float> logits, float largest) {
    constexpr std::size_t block = 64;
    std::size_t i = 0;
    for (; i + block <= logits.size(); i += block) {
        unsigned found = 0;
        for (std::size_t j = 0; j < block; ++j) {
            found |= logits[i + j] == largest ? 1u : 0u;
        }
        if (found != 0) {
            break;
        }
    }
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(i);
    return static_cast<std::size_t>(std::find(first, logits.end(), largest) - logits.begin());
}

bool contains(std::span<const TokenId> list, TokenId token) {
    return std::find(list.begin(), list.end(), token) != list.end();
}

Error no_token_left(Position position) {
    return Error(ErrorCode::internal,
                 "no token is allowed at position " + std::to_string(position) +
                     ": grammar and masks together exclude the whole vocabulary",
                 reasons::no_token_left);
}

}  // namespace

// A broken network must end the request by name, never hand out a token.
Status check_logits(bool finite, float largest, float smallest, std::size_t vocabulary,
                    Position position) {
    const auto fault = [position](const char* what) {
        return Error(ErrorCode::internal,
                     "numerical_fault: the logits at position " + std::to_string(position) + what +
                         "; the weights or the state of this request are broken",
                     reasons::numerical_fault);
    };
    if (!finite) {
        return fault(" are not all finite");
    }
    if (largest == smallest && vocabulary > 1) {
        return fault(" are all equal");
    }
    return {};
}

bool uses_counts(const SamplingParameters& parameters) {
    return parameters.repetition_penalty != 1.0f || parameters.presence_penalty != 0.0f ||
           parameters.frequency_penalty != 0.0f;
}

Sampler::Sampler(std::size_t vocabulary) : logits_(vocabulary), excluded_(vocabulary) {
    candidates_.reserve(vocabulary);
    sorted_.reserve(vocabulary);
}

void Sampler::penalise(const SamplingRow& row) {
    const SamplingParameters& parameters = *row.parameters;
    if (row.counts != nullptr && uses_counts(parameters)) {
        const double repetition = parameters.repetition_penalty;
        for (const TokenId token : row.counts->seen()) {
            double& logit = logits_[index(token)];
            logit = logit > 0 ? logit / repetition : logit * repetition;
            logit -= parameters.presence_penalty;
            logit -= double{parameters.frequency_penalty} * row.counts->of(token);
        }
    }
    for (const auto& [token, bias] : parameters.logit_bias) {
        logits_[index(token)] += bias;
    }
}

Result<std::span<const Candidate>> Sampler::candidates(const SamplingRow& row) {
    PERCHERON_TRY(row.logits.fetch());
    const std::span<const float> logits = row.logits.values;
    assert(logits.size() == logits_.size());
    const RowSummary summary = summarise(logits);
    PERCHERON_TRY(check_logits(summary.finite, summary.largest, summary.smallest, logits.size(),
                               row.position));
    std::copy(logits.begin(), logits.end(), logits_.begin());
    penalise(row);

    exclude(row, 1);
    const SamplingParameters& parameters = *row.parameters;
    const bool greedy = parameters.temperature == 0.0f;
    const double temperature = greedy ? 1.0 : parameters.temperature;
    candidates_.clear();
    for (std::size_t v = 0; v < logits_.size(); ++v) {
        if (is_allowed(row, v)) {
            candidates_.push_back({logits_[v] / temperature, TokenId(static_cast<int>(v))});
        }
    }
    exclude(row, 0);
    if (candidates_.empty()) {
        return no_token_left(row.position);
    }
    if (!greedy) {
        if (parameters.top_k > 0) {
            keep_top_k(static_cast<std::size_t>(parameters.top_k));
        }
        if (parameters.top_p < 1.0f) {
            keep_top_p(parameters.top_p);
        }
        if (parameters.min_p > 0.0f) {
            keep_min_p(parameters.min_p);
        }
    }
    return std::span<const Candidate>(candidates_);
}

void Sampler::keep_top_k(std::size_t count) {
    if (count < candidates_.size()) {
        const auto edge = candidates_.begin() + static_cast<std::ptrdiff_t>(count);
        std::nth_element(candidates_.begin(), edge, candidates_.end(), before);
        candidates_.resize(count);
        std::sort(candidates_.begin(), candidates_.end(), before);
    }
}

void Sampler::keep_top_p(double share) {
    double largest = -std::numeric_limits<double>::infinity();
    for (const Candidate& candidate : candidates_) {
        largest = std::max(largest, candidate.logit);
    }
    double total = 0;
    for (const Candidate& candidate : candidates_) {
        total += std::exp(candidate.logit - largest);
    }
    // Sorting a whole vocabulary for a nucleus of a few tokens would cost more than a layer: sort
    // what is near the top, and look further down only when that does not reach the share.
    for (const double depth : {6.0, 12.0, 24.0, std::numeric_limits<double>::infinity()}) {
        sorted_.clear();
        for (const Candidate& candidate : candidates_) {
            if (candidate.logit >= largest - depth) {
                sorted_.push_back(candidate);
            }
        }
        std::sort(sorted_.begin(), sorted_.end(), before);
        double reached = 0;
        for (std::size_t kept = 0; kept < sorted_.size(); ++kept) {
            reached += std::exp(sorted_[kept].logit - largest);
            if (reached >= share * total) {
                sorted_.resize(kept + 1);
                candidates_.swap(sorted_);
                return;
            }
        }
    }
    // Rounding kept the whole sum below its own share: everything stays.
}

void Sampler::keep_min_p(double share) {
    double largest = -std::numeric_limits<double>::infinity();
    for (const Candidate& candidate : candidates_) {
        largest = std::max(largest, candidate.logit);
    }
    const double floor = largest + std::log(share);
    std::erase_if(candidates_,
                  [floor](const Candidate& candidate) { return candidate.logit < floor; });
}

Result<TokenId> Sampler::choose(const SamplingRow& row) {
    if (row.logits.digest != nullptr) {
        if (std::optional<Result<TokenId>> token = choose_from_digest(row)) {
            return *std::move(token);
        }
    }
    return choose_from_row(row);
}

Result<TokenId> Sampler::choose_from_row(const SamplingRow& row) {
    if (row.parameters->temperature == 0.0f) {
        return choose_greedily(row);
    }
    PERCHERON_ASSIGN(const std::span<const Candidate> candidates, this->candidates(row));
    return coupled_argmax(candidates, row.noise, row.position);
}

// The argmax without a list of candidates, straight from the logits if nothing changes them.
Result<TokenId> Sampler::choose_greedily(const SamplingRow& row) {
    PERCHERON_TRY(row.logits.fetch());
    const std::span<const float> logits = row.logits.values;
    const RowSummary summary = summarise(logits);
    PERCHERON_TRY(check_logits(summary.finite, summary.largest, summary.smallest, logits.size(),
                               row.position));
    const SamplingParameters& parameters = *row.parameters;
    if (row.allowed.empty() && parameters.logit_bias.empty() &&
        (row.counts == nullptr || !uses_counts(parameters))) {
        const auto best = TokenId(static_cast<int>(first_of(logits, summary.largest)));
        if (!contains(row.banned, best) && !contains(row.masked, best)) {
            return best;
        }
    }
    std::copy(logits.begin(), logits.end(), logits_.begin());
    penalise(row);
    exclude(row, 1);
    double largest = -std::numeric_limits<double>::infinity();
    std::size_t best = logits_.size();
    for (std::size_t v = 0; v < logits_.size(); ++v) {
        if (logits_[v] > largest && is_allowed(row, v)) {
            largest = logits_[v];
            best = v;
        }
    }
    exclude(row, 0);
    if (best == logits_.size()) {
        return no_token_left(row.position);
    }
    return TokenId(static_cast<int>(best));
}

void Sampler::exclude(const SamplingRow& row, std::uint8_t mark) {
    for (const std::span<const TokenId> list : {row.banned, row.masked}) {
        for (const TokenId token : list) {
            excluded_[index(token)] = mark;
        }
    }
}

bool Sampler::is_allowed(const SamplingRow& row, std::size_t v) const {
    const bool by_grammar = row.allowed.empty() || (row.allowed[v / 32] >> (v % 32) & 1u) != 0;
    return by_grammar && excluded_[v] == 0;
}

TokenId coupled_argmax(std::span<const Candidate> candidates, NoiseStream noise,
                       Position position) {
    assert(!candidates.empty());
    // The likeliest token first: with its sum known, the bound rules out nearly all others before
    // a logarithm is taken.
    const Candidate& likeliest = *std::min_element(candidates.begin(), candidates.end(), before);
    TokenId best = likeliest.id;
    double best_sum = likeliest.logit + coupled_noise(noise, position, likeliest.id);
    for (const Candidate& candidate : candidates) {
        const NoiseBits bits = noise_bits(noise, position, candidate.id);
        if (candidate.logit + bits.bound() < best_sum) {
            continue;
        }
        const double sum = candidate.logit + bits.noise();
        if (sum > best_sum || (sum == best_sum && to_int(candidate.id) < to_int(best))) {
            best = candidate.id;
            best_sum = sum;
        }
    }
    return best;
}

Status Sampler::log_probabilities(const LogitRow& row, TokenId chosen, std::size_t top,
                                  std::span<const TokenId> banned, EngineEvents::Logprobs& out) {
    if (row.digest != nullptr && log_probabilities_from_digest(*row.digest, chosen, top, out)) {
        return {};
    }
    PERCHERON_TRY(row.fetch());
    const std::span<const float> logits = row.values;
    const double largest = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (const float logit : logits) {
        total += std::exp(logit - largest);
    }
    const double normaliser = largest + std::log(total);
    out.chosen = static_cast<float>(logits[index(chosen)] - normaliser);
    out.top.clear();
    if (top == 0) {
        return {};
    }
    sorted_.clear();
    for (const TokenId token : banned) {
        excluded_[index(token)] = 1;
    }
    for (std::size_t v = 0; v < logits.size(); ++v) {
        if (excluded_[v] == 0) {
            sorted_.push_back({logits[v], TokenId(static_cast<int>(v))});
        }
    }
    for (const TokenId token : banned) {
        excluded_[index(token)] = 0;
    }
    const auto edge = sorted_.begin() + static_cast<std::ptrdiff_t>(std::min(top, sorted_.size()));
    std::partial_sort(sorted_.begin(), edge, sorted_.end(), before);
    std::for_each(sorted_.begin(), edge, [&](const Candidate& candidate) {
        out.top.push_back({candidate.id, static_cast<float>(candidate.logit - normaliser)});
    });
    return {};
}

}  // namespace percheron::sampling
