#include "tools/quality.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "tools/model_source.h"
#include "tools/prompt_reader.h"

namespace percheron::tools {
namespace {

// Logarithms of probabilities, in place of the logits.
void normalise(std::span<const float> logits, std::vector<double>& out) {
    const double normaliser = log_normaliser(logits);
    out.resize(logits.size());
    for (std::size_t v = 0; v < logits.size(); ++v)
        out[v] = logits[v] - normaliser;
}

std::size_t likeliest(std::span<const float> logits) {
    return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) -
                                    logits.begin());
}

// Sums over one text's positions.
struct TextSums {
    std::size_t same = 0;  // number of the first text that has its ids
    std::size_t positions = 0;
    double kl = 0, agreement = 0, source_loss = 0, loss = 0;
    std::size_t control = 0, control_source = 0, control_found = 0;
    std::size_t broken_source = 0, broken = 0;
};

// The bytes of a text so far, as far as the validity of what follows depends on them.
class ByteTail {
  public:
    explicit ByteTail(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    void append(TokenId id) {
        tail_ += tokenizer_.bytes_of(id);
        // Characters have at most four bytes; what is broken before does not concern what follows.
        std::size_t start = tail_.size() > 3 ? tail_.size() - 3 : 0;
        while (start < tail_.size() && (static_cast<unsigned char>(tail_[start]) & 0xc0) == 0x80)
            ++start;
        tail_.erase(0, start);
    }
    bool breaks(TokenId id) const {
        const std::string_view bytes = tokenizer_.bytes_of(id);
        return !may_become_utf8(tail_ + std::string(bytes));
    }

  private:
    const Tokenizer& tokenizer_;
    std::string tail_;
};

Measured measure(const std::vector<TextSums>& texts, double (*value)(const TextSums&)) {
    double sum = 0;
    double positions = 0;
    for (const TextSums& text : texts) {
        sum += value(text);
        positions += static_cast<double>(text.positions);
    }
    Measured measured;
    if (positions == 0) return measured;
    measured.mean = sum / positions;
    std::map<std::size_t, double> off;
    for (const TextSums& text : texts)
        off[text.same] += value(text) - static_cast<double>(text.positions) * measured.mean;
    if (off.size() < 2) return measured;
    double squares = 0;
    for (const auto& [text, by] : off)
        squares += by * by;
    measured.band = 2 * std::sqrt(squares) / positions;
    return measured;
}

KindQuality summarise(const std::string& kind, const std::vector<TextSums>& texts) {
    KindQuality quality;
    quality.kind = kind;
    quality.texts = texts.size();
    for (const TextSums& text : texts) {
        quality.positions += text.positions;
        quality.control += text.control;
        quality.control_source += text.control_source;
        quality.control_found += text.control_found;
        quality.broken_source += text.broken_source;
        quality.broken += text.broken;
        quality.kl_of_text.push_back(text.kl / static_cast<double>(text.positions));
        quality.positions_of_text.push_back(text.positions);
    }
    quality.kl = measure(texts, [](const TextSums& text) { return text.kl; });
    quality.agreement = measure(texts, [](const TextSums& text) { return text.agreement; });
    quality.source_loss = measure(texts, [](const TextSums& text) { return text.source_loss; });
    quality.loss = measure(texts, [](const TextSums& text) { return text.loss; });
    quality.added_loss =
        measure(texts, [](const TextSums& text) { return text.loss - text.source_loss; });
    return quality;
}

class QualityComparison {
  public:
    QualityComparison(PromptReader& source, PromptReader& other, const Tokenizer& tokenizer)
        : source_(source), other_(other), tokenizer_(tokenizer) {}

    Result<TextSums> run(std::span<const TokenId> ids,
                         const std::function<void(std::size_t)>& computed) {
        TextSums sums;
        ByteTail tail(tokenizer_);
        const std::size_t positions = ids.size() - 1;
        const std::size_t width = source_.config().vocabulary;
        const std::size_t rows = PromptReader::step_rows(width);
        for (std::size_t first = 0; first < positions; first += rows) {
            const std::size_t count = std::min(rows, positions - first);
            PERCHERON_ASSIGN(const auto source, source_.step(ids, first, count));
            PERCHERON_ASSIGN(const auto other, other_.step(ids, first, count));
            for (std::size_t row = 0; row < count; ++row) {
                tail.append(ids[first + row]);
                add(source.subspan(row * width, width), other.subspan(row * width, width),
                    ids[first + row + 1], tail, sums);
            }
            computed(count);
        }
        return sums;
    }

  private:
    void add(std::span<const float> source, std::span<const float> other, TokenId next,
             const ByteTail& tail, TextSums& sums) {
        normalise(source, p_);
        normalise(other, q_);
        const auto following = static_cast<std::size_t>(to_int(next));
        double kl = 0;
        for (std::size_t v = 0; v < p_.size(); ++v)
            kl += std::exp(p_[v]) * (p_[v] - q_[v]);
        const std::size_t first = likeliest(source);
        const std::size_t second = likeliest(other);
        ++sums.positions;
        sums.kl += kl;
        sums.agreement += first == second ? 1 : 0;
        sums.source_loss -= p_[following];
        sums.loss -= q_[following];
        if (tokenizer_.is_added(next)) {
            ++sums.control;
            sums.control_source += first == following ? 1 : 0;
            sums.control_found += second == following ? 1 : 0;
        }
        sums.broken_source += tail.breaks(static_cast<TokenId>(first)) ? 1 : 0;
        sums.broken += tail.breaks(static_cast<TokenId>(second)) ? 1 : 0;
    }

    PromptReader& source_;
    PromptReader& other_;
    const Tokenizer& tokenizer_;
    std::vector<double> p_, q_;
};

}  // namespace

bool may_become_utf8(std::string_view bytes) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
    for (std::size_t i = 0; i < bytes.size();) {
        const unsigned lead = byte(i);
        if (lead < 0x80) {
            ++i;
            continue;
        }
        const std::size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                                   : lead >= 0xe0 && lead <= 0xef ? 3
                                   : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                                  : 0;
        if (length == 0) return false;
        for (std::size_t j = 1; j < length && i + j < bytes.size(); ++j) {
            const unsigned next = byte(i + j);
            unsigned least = 0x80;
            unsigned most = 0xbf;
            if (j == 1 && lead == 0xe0) least = 0xa0;  // longer than needed
            if (j == 1 && lead == 0xed) most = 0x9f;   // halves of pairs
            if (j == 1 && lead == 0xf0) least = 0x90;
            if (j == 1 && lead == 0xf4) most = 0x8f;  // above U+10FFFF
            if (next < least || next > most) return false;
        }
        i += length;
    }
    return true;
}

Result<std::vector<KindQuality>> compare_quality(const std::vector<CalibrationText>& texts,
                                                 const Tokenizer& tokenizer,
                                                 const QualityOptions& options) {
    std::size_t longest = 0;
    std::size_t total = 0;
    for (const CalibrationText& text : texts) {
        if (!text.images.empty()) {
            return Error(ErrorCode::invalid_argument,
                         "models are compared on texts without images; leave those with images to "
                         "the calibration and to `percheron eval`");
        }
        longest = std::max(longest, text.ids.size());
        total += text.ids.size() - 1;
    }
    const DeviceOptions device{options.device, options.threads, ops::Arithmetic::standard};
    const auto load = [&](const std::filesystem::path& folder, bool fp4) -> Result<PromptReader> {
        PERCHERON_ASSIGN(ModelSource files, open_model(folder, options.threads, fp4));
        return PromptReader::load(std::move(files), device, longest);
    };
    PERCHERON_ASSIGN(PromptReader source, load(options.source, false));
    PERCHERON_ASSIGN(PromptReader other, load(options.other, options.fp4_activations));
    if (source.config().vocabulary != other.config().vocabulary) {
        return Error(
            ErrorCode::invalid_argument,
            options.other.string() + ": has another vocabulary than " + options.source.string());
    }
    QualityComparison comparison(source, other, tokenizer);
    std::vector<std::string> kinds;
    std::map<std::string, std::vector<TextSums>> sums;
    std::vector<TextSums> all;
    std::size_t done = 0;
    std::map<std::vector<TokenId>, std::size_t> firsts;
    for (const CalibrationText& text : texts) {
        PERCHERON_ASSIGN(TextSums one, comparison.run(text.ids, [&](std::size_t count) {
            done += count;
            if (options.progress) options.progress(done, total);
        }));
        one.same = firsts.emplace(text.ids, firsts.size()).first->second;
        if (!sums.contains(text.kind)) kinds.push_back(text.kind);
        sums[text.kind].push_back(one);
        all.push_back(one);
    }
    std::vector<KindQuality> result;
    for (const std::string& kind : kinds)
        result.push_back(summarise(kind, sums[kind]));
    result.push_back(summarise("all", all));
    return result;
}

}  // namespace percheron::tools
