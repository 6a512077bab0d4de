// Digests of logits against the reference's, exact wherever logits are handed on.
#include <algorithm>
#include <cmath>

#include "ops/cuda/logit_digest.h"
#include "ops/reference/logit_digest.h"
#include "ops_cuda/check.h"
#include "ops_cuda/support.h"

namespace percheron {
namespace {

using check::OnDevice;
using check::Random;
using ops::DigestRequest;
using ops::LogitDigest;

constexpr std::uint32_t everything =
    DigestRequest::top | DigestRequest::total | DigestRequest::plain_total | DigestRequest::noisy;

DigestRequest random_request(Random& random) {
    DigestRequest request;
    request.seed = random.bits();
    request.choice = static_cast<std::uint32_t>(random.below(3));
    request.position = static_cast<Position>(random.below(1 << 20));
    request.temperature = random.below(4) == 0 ? 0.0f : random.uniform(0.05f, 2.5f);
    request.wants =
        static_cast<std::uint32_t>(random.below(3) == 0 ? random.below(16) : everything);
    return request;
}

// Rows like a network's, flat ones, ones with many ties and both zeros, ones with few that matter.
void fill_row(std::span<float> row, std::size_t kind, Random& random) {
    const float spread = kind == 1 ? 1e-3f : kind == 3 ? 12.0f : 3.0f;
    for (float& logit : row) {
        logit = spread * random.normal();
        if (kind == 2) logit = std::round(logit);
        if (kind == 2 && random.below(2) == 0) logit = -logit;
    }
    if (kind == 4) std::fill(row.begin(), row.end(), -5.0f);
    if (kind == 4) row[random.below(row.size())] = 3.0f;
}

std::vector<LogitDigest> digests_of(const OnDevice<float>& logits, std::size_t first_row, int rows,
                                    int vocabulary, const std::vector<DigestRequest>& requests,
                                    const OnDevice<std::uint32_t>& excluded) {
    const OnDevice<DigestRequest> asked(std::vector<DigestRequest>(
        requests.begin() + static_cast<std::ptrdiff_t>(first_row),
        requests.begin() + static_cast<std::ptrdiff_t>(first_row) + rows));
    OnDevice<LogitDigest> digests(static_cast<std::size_t>(rows));
    digests.poison();
    ops::cuda::LogitDigestion op;
    op.logits = logits.data() + first_row * static_cast<std::size_t>(vocabulary);
    op.rows = rows;
    op.vocabulary = vocabulary;
    op.requests = asked.data();
    op.excluded = excluded.data();
    op.digests = digests.data();
    CHECK_OK(ops::cuda::digest_logits(op, {}));
    return digests.download();
}

bool same(const LogitDigest::Entry& a, const LogitDigest::Entry& b) {
    return a.logit == b.logit && a.id == b.id;
}

void check_digest(const LogitDigest& got, const LogitDigest& wanted, bool is_usual) {
    CHECK_THAT(got.finite == wanted.finite && got.best == wanted.best, "best %u, not %u", got.best,
               wanted.best);
    if (wanted.finite == 0) return;
    CHECK_THAT(got.largest == wanted.largest && got.smallest == wanted.smallest,
               "from %g to %g, not %g to %g", got.smallest, got.largest, wanted.smallest,
               wanted.largest);
    CHECK_THAT(std::fabs(got.plain_total - wanted.plain_total) <= 1e-9 * wanted.plain_total,
               "plain total %.17g, not %.17g", got.plain_total, wanted.plain_total);
    if (wanted.best == LogitDigest::nobody) {
        CHECK_THAT(got.top_count + got.noisy_count == 0 && got.total == 0, "%u of nobody",
                   got.top_count);
        return;
    }
    CHECK_THAT(got.best_logit == wanted.best_logit, "best %g", got.best_logit);
    CHECK_THAT(std::fabs(got.total - wanted.total) <= got.total_error + wanted.total_error &&
                   got.total_error <= 3e-5 * wanted.total,
               "total %.17g within %g, not %.17g", got.total, got.total_error, wanted.total);
    // A prefix of the order; long enough where nothing stands against it.
    CHECK_THAT(is_usual ? got.top_count == wanted.top_count : got.top_count <= wanted.top_count,
               "%u of %u", got.top_count, wanted.top_count);
    for (std::uint32_t i = 0; i < std::min(got.top_count, wanted.top_count); ++i)
        CHECK_THAT(same(got.top[i], wanted.top[i]), "entry %u: %u (%g), not %u (%g)", i,
                   got.top[i].id, got.top[i].logit, wanted.top[i].id, wanted.top[i].logit);
    CHECK_THAT(got.noisy_count == wanted.noisy_count, "%u with noise, not %u", got.noisy_count,
               wanted.noisy_count);
    // In any order.
    const auto known = std::min({got.noisy_count, wanted.noisy_count, LogitDigest::noisy_room});
    for (std::uint32_t i = 0; i < known && wanted.noisy_count <= LogitDigest::noisy_room; ++i)
        CHECK_THAT(std::any_of(got.noisy.begin(), got.noisy.end(),
                               [&](const auto& entry) { return same(entry, wanted.noisy[i]); }),
                   "%u is missing with noise", wanted.noisy[i].id);
}

void check_vocabulary(int vocabulary, Random& random) {
    constexpr int most_rows = 70;
    const auto width = static_cast<std::size_t>(vocabulary);
    std::vector<float> host(most_rows * width);
    std::vector<DigestRequest> requests;
    for (std::size_t row = 0; row < most_rows; ++row) {
        fill_row(std::span(host).subspan(row * width, width), row % 5, random);
        requests.push_back(random_request(random));
    }
    // Broken rows, anywhere.
    host[7 * width + random.below(width)] = NAN;
    host[8 * width + random.below(width)] = INFINITY;
    host[9 * width + random.below(width)] = -INFINITY;
    std::vector<bool> excluded(width);
    std::vector<std::uint32_t> bits((width + 31) / 32);
    for (std::size_t v = 0; v < width; ++v) {
        excluded[v] = vocabulary > 1 && random.below(50) == 0;
        if (excluded[v]) bits[v / 32] |= 1u << v % 32;
    }
    const OnDevice<float> logits(host);
    const OnDevice<std::uint32_t> mask(bits);
    const auto whole = digests_of(logits, 0, most_rows, vocabulary, requests, mask);
    for (std::size_t row = 0; row < most_rows; ++row)
        check_digest(whole[row],
                     ops::reference::digest_of(std::span(host).subspan(row * width, width),
                                               requests[row], excluded),
                     row % 5 == 0);
    // Alone and among others: the same sums, to the bit.
    for (const std::size_t row : {std::size_t{0}, std::size_t{3}, std::size_t{69}}) {
        const LogitDigest alone = digests_of(logits, row, 1, vocabulary, requests, mask).front();
        CHECK_THAT(alone.total == whole[row].total && alone.plain_total == whole[row].plain_total &&
                       alone.top_count == whole[row].top_count && alone.best == whole[row].best,
                   "row %zu alone: total %.17g, not %.17g", row, alone.total, whole[row].total);
    }
}

KERNEL_TEST(logit_digests_against_the_reference) {
    Random random(77);
    for (const int vocabulary : {1, 2, 9, 31, 32, 300, 1000, 4096, 20001, 154880})
        check_vocabulary(vocabulary, random);
    CHECK_THAT(ops::cuda::digests_fit(154880) && !ops::cuda::digests_fit(1 << 20), "fits");
}

KERNEL_TEST(logit_digests_of_nobody) {
    const OnDevice<float> logits(std::vector<float>{1, 2, 3});
    const OnDevice<std::uint32_t> mask(std::vector<std::uint32_t>{7});
    DigestRequest request;
    request.wants = everything;
    const auto digest = digests_of(logits, 0, 1, 3, {request}, mask).front();
    CHECK_THAT(digest.best == LogitDigest::nobody && digest.top_count == 0 &&
                   digest.noisy_count == 0 && digest.largest == 3.0f,
               "best %u", digest.best);
}

}  // namespace
}  // namespace percheron
