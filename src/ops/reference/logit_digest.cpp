#include "ops/reference/logit_digest.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"

namespace percheron::ops::reference {
namespace {

double noise(const DigestRequest& request, std::uint32_t token) {
    const auto words = philox4x32_10(
        {token, request.position, request.choice, 0},
        {static_cast<std::uint32_t>(request.seed), static_cast<std::uint32_t>(request.seed >> 32)});
    const std::uint64_t bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 12;
    return -std::log(-std::log((static_cast<double>(bits) + 0.5) * 0x1p-52));
}

}  // namespace

LogitDigest digest_of(std::span<const float> logits, const DigestRequest& request,
                      const std::vector<bool>& excluded) {
    LogitDigest digest;
    digest.finite =
        std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
    if (digest.finite == 0) return digest;
    digest.largest = *std::max_element(logits.begin(), logits.end());
    digest.smallest = *std::min_element(logits.begin(), logits.end());
    std::vector<LogitDigest::Entry> order;
    for (std::uint32_t v = 0; v < logits.size(); ++v) {
        if (!excluded[v]) order.push_back({logits[v], v});
        if ((request.wants & DigestRequest::plain_total) != 0)
            digest.plain_total += std::exp(double{logits[v]} - digest.largest);
    }
    if (order.empty()) return digest;
    const double temperature = request.temperature == 0.0f ? 1.0 : request.temperature;
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.logit > b.logit; });
    digest.best = order.front().id;
    digest.best_logit = order.front().logit;
    if ((request.wants & DigestRequest::top) != 0) {
        digest.top_count =
            static_cast<std::uint32_t>(std::min<std::size_t>(order.size(), LogitDigest::top_room));
        std::copy_n(order.begin(), digest.top_count, digest.top.begin());
    }
    if ((request.wants & DigestRequest::total) != 0) {
        for (const auto& entry : order)
            digest.total += std::exp(entry.logit / temperature - order.front().logit / temperature);
        digest.total_error = 1e-11 * digest.total;
    }
    if ((request.wants & DigestRequest::noisy) != 0) {
        std::vector<double> sums;
        for (const auto& entry : order)
            sums.push_back(entry.logit / temperature + noise(request, entry.id));
        const double least =
            *std::max_element(sums.begin(), sums.end()) - LogitDigest::noisy_margin;
        for (std::size_t i = 0; i < order.size(); ++i) {
            if (sums[i] < least) continue;
            if (digest.noisy_count < LogitDigest::noisy_room)
                digest.noisy[digest.noisy_count] = order[i];
            ++digest.noisy_count;
        }
    }
    return digest;
}

}  // namespace percheron::ops::reference
