#include "golden/mtp_check.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "model/mtp_layer.h"
#include "support/host_caches.h"

namespace percheron::tests {
namespace {

// max|ours - golden| / RMS(golden), both around their means if `centred`.
double ratio_of(std::span<const float> ours, const float* golden, bool centred) {
    const std::size_t n = ours.size();
    const auto mean = [n](const float* values) {
        return std::accumulate(values, values + n, 0.0) / static_cast<double>(n);
    };
    const double our_centre = centred ? mean(ours.data()) : 0.0;
    const double golden_centre = centred ? mean(golden) : 0.0;
    double worst = 0;
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const double theirs = golden[i] - golden_centre;
        const double difference = ours[i] - our_centre - theirs;
        // Not max(): a NaN must win.
        if (!(std::fabs(difference) <= worst)) worst = std::fabs(difference);
        squares += theirs * theirs;
    }
    return worst / std::sqrt(squares / static_cast<double>(n));
}

class MtpRun {
  public:
    MtpRun(model::Network& trunk, model::MtpLayer& layer, ops::Backend& backend,
           const GoldenFile& golden, std::string prompt)
        : trunk_(trunk), layer_(layer), backend_(backend), golden_(golden), prompt_(prompt) {
        for (const int id : golden.ids(prompt)) {
            ids_.push_back(TokenId(id));
        }
    }

    Result<MtpFigures> run(MtpInput input, std::size_t chunk) {
        const model::ModelConfig& config = trunk_.config();
        HostCacheOptions options;
        options.pages = static_cast<std::uint32_t>(ids_.size() / ops::page_tokens + 1);
        options.slots = 1;
        options.kv_dtype =
            backend_.arithmetic() == ops::Arithmetic::fp32 ? DType::f32 : DType::bf16;
        const HostCaches caches(config, options);
        std::vector<PageId> pages;
        for (std::uint32_t page = 0; page < options.pages; ++page) {
            pages.push_back(PageId(page));
        }
        const GoldenTensor* const given =
            input == MtpInput::golden ? golden_.find(prompt_ + ".mtp.input_hidden") : nullptr;
        std::vector<float> copied;
        for (std::size_t first = 0; first + 1 < ids_.size(); first += chunk) {
            // Row t needs token t + 1, so the last position has none.
            const std::size_t count = std::min(chunk, ids_.size() - 1 - first);
            ops::SequenceRows rows;
            rows.row_count = rows.commit_rows = static_cast<std::uint32_t>(count);
            rows.first_position = rows.state_position = static_cast<Position>(first);
            rows.pages = pages;
            std::vector<std::uint32_t> logit_rows(count);
            std::iota(logit_rows.begin(), logit_rows.end(), 0u);
            ops::RowBatch batch;
            batch.numeric_class = ops::NumericClass::prefill;
            batch.sequences = {&rows, 1};
            ops::Activations hidden;
            if (given != nullptr) {
                copied.assign(given->row(first), given->row(first) + count * config.hidden);
                hidden = {copied.data(), DType::f32, count, config.hidden};
            } else {
                batch.tokens = std::span(ids_).subspan(first, count);
                PERCHERON_TRY(trunk_.forward(batch, caches.views()));
                hidden = trunk_.hidden();
            }
            batch.tokens = std::span(ids_).subspan(first + 1, count);
            batch.logit_rows = logit_rows;
            PERCHERON_ASSIGN(const auto logits, layer_.forward(batch, hidden, logit_rows,
                                                               caches.views().latent.back()));
            std::vector<float> out(count * config.hidden);
            backend_.read(layer_.hidden(), out.data());
            for (std::size_t row = 0; row < count; ++row) {
                compare(first + row, std::span(out).subspan(row * config.hidden, config.hidden),
                        logits.subspan(row * config.vocabulary, config.vocabulary));
            }
        }
        return figures_;
    }

  private:
    void compare(std::size_t row, std::span<const float> hidden, std::span<const float> logits) {
        const GoldenTensor& last = *golden_.find(prompt_ + ".mtp.last_logits");
        const GoldenTensor& ids = *golden_.find(prompt_ + ".mtp.top8_ids");
        const GoldenTensor& values = *golden_.find(prompt_ + ".mtp.top8_logits");
        ++figures_.rows;
        const auto keep = [](double& worst, double found) {
            if (!(found <= worst)) worst = found;
        };
        keep(figures_.hidden,
             ratio_of(hidden, golden_.find(prompt_ + ".mtp.hidden")->row(row), false));
        if (row + 2 == ids_.size()) {
            keep(figures_.logits, ratio_of(logits, last.values.data(), true));
        }
        const double mean = std::accumulate(last.values.begin(), last.values.end(), 0.0) /
                            static_cast<double>(last.values.size());
        double squares = 0;
        for (const float value : last.values) {
            squares += (value - mean) * (value - mean);
        }
        const double rms = std::sqrt(squares / static_cast<double>(last.values.size()));
        for (std::size_t i = 0; i < ids.row_size(); ++i) {
            const auto id = static_cast<std::size_t>(ids.row(row)[i]);
            keep(figures_.top_logits, std::fabs(logits[id] - values.row(row)[i]) / rms);
        }
        const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
        figures_.top_equal += best == static_cast<std::ptrdiff_t>(ids.row(row)[0]) ? 1 : 0;
    }

    model::Network& trunk_;
    model::MtpLayer& layer_;
    ops::Backend& backend_;
    const GoldenFile& golden_;
    std::string prompt_;
    std::vector<TokenId> ids_;
    MtpFigures figures_;
};

}  // namespace

void MtpFigures::add(const MtpFigures& other) {
    rows += other.rows;
    hidden = std::max(hidden, other.hidden);
    logits = std::max(logits, other.logits);
    top_logits = std::max(top_logits, other.top_logits);
    top_equal += other.top_equal;
}

Result<MtpFigures> check_mtp(checkpoint::Checkpoint& checkpoint, ops::Backend& backend,
                             const GoldenFile& golden, MtpInput input, std::size_t chunk) {
    model::NetworkOptions options;
    options.max_rows = chunk;
    options.max_logit_rows = chunk;
    PERCHERON_ASSIGN(const auto trunk,
                     model::Network::load(checkpoint.config(), checkpoint, backend, options));
    PERCHERON_ASSIGN(const auto layer, model::MtpLayer::load(*trunk, checkpoint, backend, options));
    MtpFigures total;
    for (const std::string& prompt : golden.prompts()) {
        if (golden.find(prompt + ".mtp.hidden") == nullptr) continue;
        MtpRun run(*trunk, *layer, backend, golden, prompt);
        PERCHERON_ASSIGN(const MtpFigures figures, run.run(input, chunk));
        total.add(figures);
    }
    return total;
}

}  // namespace percheron::tests
