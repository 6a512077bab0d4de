// A block drafter on the CUDA backend: against the reference backend, and against itself in other
// company, to the bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "model/dflash2.h"
#include "model/network.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/reference/reference_backend.h"
#include "ops_cuda/check.h"
#include "ops_cuda/formatted_weights.h"

using namespace percheron;
using namespace percheron::check;
using ops::WeightFormat;

namespace {

constexpr std::size_t most_rows = 512, block_rows = 64, pages = 400;

template <class T>
T must(Result<T> result) {
    if (!result.ok()) {
        std::printf("%s\n", result.error().message().c_str());
        std::exit(1);
    }
    return std::move(result).value();
}

// Both published kinds in small, a plain DFlash drafter, and layers that differ.
std::vector<std::pair<const char*, model::Dflash2Config>> drafters() {
    model::Dflash2Config windows;
    windows.vocabulary = cuda_config().vocabulary;
    windows.hidden = cuda_config().hidden;
    windows.intermediate = 384;
    windows.heads = 4;
    windows.kv_heads = 1;
    windows.head_dim = 128;
    windows.windows = {80, 80, 80};
    windows.target_layers = {0, 2, 3};
    windows.block = 8;
    windows.conv_taps = 2;
    windows.conv_width = 16;
    windows.selector_rank = 48;
    windows.selector_top = 5;
    windows.mask_token = TokenId(7);
    windows.context_limit = 1 << 20;

    model::Dflash2Config full = windows;
    full.windows = {0, 0};
    full.target_layers = {3, 1};
    full.heads = 6;
    full.kv_heads = 3;
    full.head_dim = 64;
    full.own_embedding = full.own_head = true;
    full.embedding_scale = 1.5f;
    full.logit_scale = 0.7f;
    full.logit_cap = 9.0f;
    Random random(5);
    full.mask = normals(random, full.hidden);

    model::Dflash2Config plain = full;
    plain.mask.clear();
    plain.own_embedding = plain.own_head = false;
    plain.conv_taps = 0;
    plain.conv_width = 1;
    plain.selector_rank = plain.selector_top = 0;
    plain.windows = {0, 300};
    plain.heads = 8;
    plain.kv_heads = 2;
    plain.head_dim = 128;
    plain.block = 16;
    plain.rope_theta = 1e6f;
    return {{"windows", windows}, {"full", full}, {"plain", plain}};
}

// A text of which positions [begin, length) have keys and values, in pages of its own.
struct Text {
    std::uint32_t number = 0;
    Position begin = 0, length = 0;
    std::vector<PageId> table;

    ops::DraftContext context(Position end) const { return {begin, end, table}; }
};

// A backend with a drafter, pages and a trunk whose inner rows are random.
class Machine {
  public:
    Machine(std::unique_ptr<ops::Backend> backend, const model::Dflash2Config& config,
            model::WeightSource& weights, DType dtype)
        : config_(config), backend_(std::move(backend)) {
        model::NetworkOptions options;
        options.max_rows = most_rows;
        options.max_logit_rows = block_rows;
        trunk_ = must(model::Network::load(cuda_config(), weights, *backend_, options));
        model::Dflash2Options room;
        room.context_rows = most_rows;
        room.block_rows = block_rows;
        drafter_ = must(model::Dflash2::load(config, *trunk_, weights, *backend_, room));
        const Bytes layer =
            2 * ops::page_tokens * config.kv_heads * config.head_dim * size_of(dtype);
        const Bytes page = config.layers() * layer;
        memory_ = must(backend_->allocate(pages * page, "pages"));
        backend_->clear(memory_->data(), pages * page);
        for (std::size_t i = 0; i < config.layers(); ++i) {
            pages_.push_back({static_cast<std::byte*>(memory_->data()) + i * layer, dtype, page,
                              config.kv_heads, config.head_dim});
        }
    }

    // Positions [first, end) of texts, all in one pass; what is known of a position follows from
    // its text and itself.
    void add(const std::vector<const Text*>& texts, Position first, Position end) {
        std::vector<ops::DraftRows> rows;
        std::vector<std::uint32_t> tap_rows;
        std::vector<std::pair<std::uint32_t, Position>> known;
        for (const Text* text : texts) {
            const Position from = std::max(first, text->begin);
            const Position to = std::min(end, text->length);
            if (from >= to) continue;
            ops::DraftRows run;
            run.first_row = static_cast<std::uint32_t>(tap_rows.size());
            run.row_count = to - from;
            run.first_position = from;
            run.context = text->context(to);
            rows.push_back(run);
            for (Position p = from; p < to; ++p) {
                // The trunk's rows need not come in this order.
                tap_rows.push_back(static_cast<std::uint32_t>(most_rows - 1 - tap_rows.size()));
                known.emplace_back(text->number, p);
            }
        }
        if (rows.empty()) return;
        const std::size_t width = config_.hidden;
        for (std::size_t tap = 0; tap < config_.target_layers.size(); ++tap) {
            std::vector<float> values(most_rows * width);
            for (std::size_t i = 0; i < known.size(); ++i) {
                Random random(known[i].first * 1'000'003u + known[i].second * 17u + tap);
                const std::vector<float> row = normals(random, width);
                std::copy(row.begin(), row.end(),
                          values.begin() + std::ptrdiff_t(tap_rows[i] * width));
            }
            backend_->copy_from_host(trunk_->tap(tap).data, values.data(),
                                     values.size() * sizeof(float));
        }
        const Status added =
            drafter_->add_context(ops::NumericClass::decode, rows, tap_rows, pages_);
        CHECK_OK(added);
    }

    struct Block {
        const Text* text;
        Position here;
        std::uint32_t rows;
    };
    // U of every place, then of each the candidates' scores.
    std::vector<float> name(const std::vector<Block>& blocks) {
        std::vector<ops::DraftRows> rows;
        std::vector<TokenId> newest;
        std::uint32_t next = 0;
        for (const Block& block : blocks) {
            rows.push_back({next, block.rows, block.here, block.text->context(block.here)});
            newest.push_back(TokenId(
                static_cast<int>((block.text->number * 31 + block.here) % config_.vocabulary)));
            next += block.rows;
        }
        const auto logits = must(drafter_->name(rows, newest, pages_));
        std::vector<float> all(logits.begin(), logits.end());
        if (!drafter_->selects()) return all;
        std::size_t place = 0;
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            for (std::uint32_t row = 1; row < blocks[i].rows; ++row) {
                // A whole row of them, so that each place has as many numbers.
                for (const auto& candidate : drafter_->candidates(place, newest[i]))
                    scores_.push_back(candidate.score);
                ++place;
            }
        }
        return all;
    }
    std::vector<float> take_scores() { return std::exchange(scores_, {}); }

  private:
    model::Dflash2Config config_;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<model::Network> trunk_;
    std::unique_ptr<model::Dflash2> drafter_;
    std::unique_ptr<ops::BackendBuffer> memory_;
    std::vector<ops::ContextPages> pages_;
    std::vector<float> scores_;
};

// Texts whose contexts begin at the start, inside a page, and on a page; short, and of many parts.
std::vector<Text> texts() {
    std::vector<Text> result;
    std::uint32_t page = 0;
    for (const auto& [begin, length] : {std::pair<Position, Position>{0, 1},
                                        {0, 63},
                                        {17, 65},
                                        {64, 700},
                                        {130, 1001},
                                        {0, 2300}}) {
        Text text{static_cast<std::uint32_t>(result.size()), begin, length, {}};
        const std::uint32_t count =
            (length - 1 + 16) / ops::page_tokens - begin / ops::page_tokens + 1;
        for (std::uint32_t i = 0; i < count; ++i)
            text.table.push_back(PageId((page++ * 37u) % pages));
        result.push_back(std::move(text));
    }
    return result;
}

void fill(Machine& machine, const std::vector<Text>& all, Position chunk) {
    for (const Text& text : all) {
        for (Position first = 0; first < text.length; first += chunk)
            machine.add({&text}, first, first + chunk);
    }
}

std::unique_ptr<ops::Backend> on_cuda() {
    return must(ops::make_cuda_backend({}));
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

KERNEL_TEST(drafter_against_the_reference) {
    for (const auto& [name, config] : drafters()) {
        for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
            FormattedWeights weights(31, all_bf16);
            Machine cuda(on_cuda(), config, weights, dtype);
            Machine reference(ops::reference::make_reference_backend(ops::Arithmetic::standard),
                              config, weights, dtype);
            const std::vector<Text> all = texts();
            for (Machine* machine : {&cuda, &reference})
                fill(*machine, all, 300);
            double worst = 0;
            for (std::uint32_t rows = 2; rows <= config.block; rows += 3) {
                std::vector<Machine::Block> blocks;
                for (const Text& text : all) {
                    if (blocks.size() * rows + rows <= block_rows)
                        blocks.push_back({&text, text.length, rows});
                }
                const auto ours = cuda.name(blocks), expected = reference.name(blocks);
                CHECK_THAT(ours.size() == expected.size() &&
                               ours.size() == blocks.size() * (rows - 1) * config.vocabulary,
                           "%s: %zu logits", name, ours.size());
                double error = 0, norm = 0;
                for (std::size_t i = 0; i < ours.size(); ++i) {
                    const double d = static_cast<double>(ours[i]) - expected[i];
                    error += d * d;
                    norm += static_cast<double>(expected[i]) * expected[i];
                }
                error = std::sqrt(error / norm);
                worst = error > worst || std::isnan(error) ? error : worst;
                // A candidate's place may fall the other way; the largest scores hardly move.
                const auto scores = cuda.take_scores(), scored = reference.take_scores();
                CHECK_THAT(scores.size() == scored.size(), "%s: %zu scores", name, scores.size());
            }
            std::printf("    %s, %s: logits off by %.4f of RMS at most\n", name,
                        dtype == DType::bf16 ? "bf16" : "fp8", worst);
            CHECK_THAT(worst < (dtype == DType::bf16 ? 0.02 : 0.05), "%s: off by %.4f", name,
                       worst);
        }
    }
}

KERNEL_TEST(drafter_blocks_alone_and_together) {
    for (const auto& [name, config] : drafters()) {
        FormattedWeights weights(32, mixed(WeightFormat::w4a16));
        for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
            Machine machine(on_cuda(), config, weights, dtype);
            const std::vector<Text> all = texts();
            fill(machine, all, 512);
            std::vector<std::vector<float>> alone, scores;
            for (const Text& text : all) {
                alone.push_back(machine.name({{&text, text.length, 4}}));
                scores.push_back(machine.take_scores());
            }
            for (const Position chunk : {1u, 7u, 64u}) {
                Machine other(on_cuda(), config, weights, dtype);
                if (chunk == 1) {
                    // Rows of several texts in one pass, a few positions at a time.
                    std::vector<const Text*> together;
                    for (const Text& text : all)
                        together.push_back(&text);
                    for (Position first = 0; first < 2300; first += 80)
                        other.add(together, first, first + 80);
                } else {
                    fill(other, all, chunk == 7 ? 7 * 13 : chunk);
                }
                std::vector<Machine::Block> blocks;
                for (std::size_t i = all.size(); i-- > 0;)
                    blocks.push_back({&all[i], all[i].length, 4});
                const auto together = other.name(blocks);
                const auto together_scores = other.take_scores();
                const std::size_t each = 3 * config.vocabulary;
                const std::size_t each_scores = together_scores.size() / all.size();
                for (std::size_t i = 0; i < all.size(); ++i) {
                    const std::size_t at = all.size() - 1 - i;
                    CHECK_THAT(same_bits(std::span(together).subspan(at * each, each), alone[i]),
                               "%s: text %zu, pieces of %u", name, i, chunk);
                    CHECK_THAT(
                        same_bits(std::span(together_scores).subspan(at * each_scores, each_scores),
                                  scores[i]),
                        "%s: scores of text %zu, pieces of %u", name, i, chunk);
                }
            }
        }
    }
}

// What lies behind a window changes nothing, and pages behind it may be anybody's.
KERNEL_TEST(drafter_windows_hide_what_is_behind_them) {
    const auto config = drafters()[0].second;
    FormattedWeights weights(33, all_bf16);
    Machine machine(on_cuda(), config, weights, DType::bf16);
    const std::vector<Text> all = texts();
    fill(machine, all, 512);
    const Text& whole = all.back();
    Text cut = whole;
    cut.begin = (whole.length - 79) / ops::page_tokens * ops::page_tokens;
    cut.table.erase(cut.table.begin(), cut.table.begin() + cut.begin / ops::page_tokens);
    CHECK_THAT(
        same_bits(machine.name({{&whole, whole.length, 8}}), machine.name({{&cut, cut.length, 8}})),
        "a window that began before");
}

KERNEL_TEST(drafter_shapes_that_do_not_suit_are_named) {
    for (const char* what : {"head dimension", "feed-forward's width", "rows of a block"}) {
        auto config = drafters()[0].second;
        if (what[0] == 'h') config.head_dim = 96;
        if (what[0] == 'f') config.intermediate = 200;
        if (what[0] == 'r') config.block = 33;
        FormattedWeights weights(34, all_bf16);
        const auto backend = on_cuda();
        model::NetworkOptions options;
        options.max_rows = options.max_logit_rows = 64;
        const auto trunk = must(model::Network::load(cuda_config(), weights, *backend, options));
        const auto drafter = model::Dflash2::load(config, *trunk, weights, *backend, {});
        CHECK_THAT(!drafter.ok() && drafter.error().message().find(what) != std::string::npos,
                   "%s: %s", what, drafter.ok() ? "taken" : drafter.error().message().c_str());
    }
}
