// Choosing from a digest: the same comparisons on the same numbers as from the row, or nothing.
#include <algorithm>
#include <cmath>
#include <limits>

#include "sampling/sampler.h"

namespace percheron::sampling {
namespace {

using ops::DigestRequest;
using ops::LogitDigest;

bool contains(std::span<const TokenId> list, std::uint32_t id) {
    return std::find(list.begin(), list.end(), TokenId(static_cast<int>(id))) != list.end();
}

TokenId token_of(std::uint32_t id) {
    return TokenId(static_cast<int>(id));
}

bool cuts_candidates(const SamplingParameters& parameters) {
    return parameters.top_k > 0 || parameters.top_p < 1.0f || parameters.min_p > 0.0f;
}

std::span<const LogitDigest::Entry> top_of(const LogitDigest& digest) {
    return std::span(digest.top).first(digest.top_count);
}

}  // namespace

DigestRequest digest_request(const SamplingParameters& parameters, NoiseStream noise,
                             Position position, bool masks) {
    DigestRequest request;
    request.seed = noise.seed;
    request.choice = noise.choice;
    request.position = position;
    request.temperature = parameters.temperature;
    // Whatever changes logits is done on the host, with the row.
    const bool with_row = uses_counts(parameters) || !parameters.logit_bias.empty();
    const bool greedy = parameters.temperature == 0.0f;
    if (!with_row && greedy && masks) request.wants |= DigestRequest::top;
    if (!with_row && !greedy) {
        request.wants |= cuts_candidates(parameters) ? DigestRequest::top : DigestRequest::noisy;
        if (parameters.top_k == 0 && parameters.top_p < 1.0f) request.wants |= DigestRequest::total;
    }
    if (parameters.top_logprobs >= 0) request.wants |= DigestRequest::plain_total;
    if (parameters.top_logprobs > 0) request.wants |= DigestRequest::top;
    return request;
}

std::optional<Result<TokenId>> Sampler::choose_from_digest(const SamplingRow& row) {
    const LogitDigest& digest = *row.logits.digest;
    const SamplingParameters& parameters = *row.parameters;
    const Status sound = check_logits(digest.finite != 0, digest.largest, digest.smallest,
                                      logits_.size(), row.position);
    if (!sound.ok()) return Result<TokenId>(sound.error());
    if (!row.allowed.empty() || !parameters.logit_bias.empty() ||
        (row.counts != nullptr && uses_counts(parameters)) || digest.best == LogitDigest::nobody)
        return std::nullopt;
    const auto is_masked = [&](const LogitDigest::Entry& entry) {
        return contains(row.masked, entry.id);
    };
    if (parameters.temperature == 0.0f) {
        if (!contains(row.masked, digest.best)) return token_of(digest.best);
        const auto top = top_of(digest);
        const auto best = std::find_if_not(top.begin(), top.end(), is_masked);
        if (best == top.end()) return std::nullopt;
        return token_of(best->id);
    }
    if (cuts_candidates(parameters)) {
        const std::optional<TokenId> token = choose_among_top(row);
        if (!token) return std::nullopt;
        return *token;
    }
    // Sums of very large numbers are so coarse that a device's roundings would count.
    if (digest.noisy_count == 0 || digest.noisy_count > LogitDigest::noisy_room ||
        std::abs(digest.best_logit / double{parameters.temperature}) > 1e5)
        return std::nullopt;
    candidates_.clear();
    for (const auto& entry : std::span(digest.noisy).first(digest.noisy_count)) {
        // Without it others would come into question.
        if (is_masked(entry)) return std::nullopt;
        candidates_.push_back({entry.logit / double{parameters.temperature}, token_of(entry.id)});
    }
    return coupled_argmax(candidates_, row.noise, row.position);
}

// Where all that top-k, top-p and min-p leave is among the largest.
std::optional<TokenId> Sampler::choose_among_top(const SamplingRow& row) {
    const LogitDigest& digest = *row.logits.digest;
    const SamplingParameters& parameters = *row.parameters;
    const double temperature = parameters.temperature;
    const auto top = top_of(digest);
    if (top.empty() || contains(row.masked, top.front().id)) return std::nullopt;
    const double largest = top.front().logit / temperature;
    const double last = top.back().logit / temperature;
    candidates_.clear();
    // What masked ids have of the total: known of those that are here, bounded of the others.
    double left_out = 0, doubt = 0;
    std::size_t masked_here = 0;
    for (const auto& entry : top) {
        const double logit = entry.logit / temperature;
        if (!contains(row.masked, entry.id)) {
            candidates_.push_back({logit, token_of(entry.id)});
            continue;
        }
        left_out += std::exp(logit - largest);
        ++masked_here;
    }
    if (row.masked.size() > masked_here)
        doubt = static_cast<double>(row.masked.size() - masked_here) * std::exp(last - largest);

    bool complete = false;  // candidates_ is all that steps 6 and 7 leave
    if (parameters.top_k > 0) {
        if (static_cast<std::size_t>(parameters.top_k) > candidates_.size()) return std::nullopt;
        keep_top_k(static_cast<std::size_t>(parameters.top_k));
        complete = true;
        if (parameters.top_p < 1.0f) keep_top_p(parameters.top_p);
    } else if (parameters.top_p < 1.0f) {
        if (!keep_top_p_of_digest(digest, parameters.top_p, left_out, doubt)) return std::nullopt;
        complete = true;
    }
    if (parameters.min_p > 0.0f) {
        if (!complete && last >= largest + std::log(double{parameters.min_p})) return std::nullopt;
        keep_min_p(parameters.min_p);
    }
    return coupled_argmax(candidates_, row.noise, row.position);
}

// keep_top_p() with a total that is known within bounds; false: they leave a doubt.
bool Sampler::keep_top_p_of_digest(const LogitDigest& digest, double share, double left_out,
                                   double doubt) {
    if (digest.total == 0) return false;
    const double largest = candidates_.front().logit;
    const double total = digest.total - left_out;
    // The sum over the row has its own rounding, of at most a unit for each of its terms.
    const double error = digest.total_error + 4e-16 * static_cast<double>(logits_.size()) * total;
    double reached = 0;
    for (std::size_t kept = 0; kept < candidates_.size(); ++kept) {
        reached += std::exp(candidates_[kept].logit - largest);
        if (reached >= share * (total + error)) {
            candidates_.resize(kept + 1);
            return true;
        }
        if (reached >= share * (total - error - doubt)) return false;
    }
    return false;
}

bool Sampler::log_probabilities_from_digest(const LogitDigest& digest, TokenId chosen,
                                            std::size_t top, EngineEvents::Logprobs& out) {
    if (digest.plain_total == 0 || digest.top_count < top) return false;
    const auto id = static_cast<std::uint32_t>(to_int(chosen));
    const auto noisy =
        std::span(digest.noisy).first(std::min(digest.noisy_count, LogitDigest::noisy_room));
    std::optional<float> logit;
    if (digest.best == id) logit = digest.best_logit;
    for (const std::span<const LogitDigest::Entry> list : {top_of(digest), noisy}) {
        for (const auto& entry : list) {
            if (entry.id == id) logit = entry.logit;
        }
    }
    if (!logit) return false;
    const double normaliser = double{digest.largest} + std::log(digest.plain_total);
    out.chosen = static_cast<float>(*logit - normaliser);
    out.top.clear();
    for (const auto& entry : top_of(digest).first(top))
        out.top.push_back({token_of(entry.id), static_cast<float>(entry.logit - normaliser)});
    return true;
}

}  // namespace percheron::sampling
