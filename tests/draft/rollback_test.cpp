// Whatever is accepted and rejected, round after round, the caches of a sequence end up as those of
// one that was decoded token by token: KDA states, convolution rows, index tails, pooled keys and
// latents, the MTP layer's included, and the contexts of DFlash2 drafters, bit for bit.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_store.h"
#include "draft/context_cache.h"
#include "draft/dflash2_proposer.h"
#include "draft/mtp_proposer.h"
#include "draft/verification.h"
#include "model/dflash2.h"
#include "model/mtp_layer.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "ops/stored_rows.h"
#include "support/random_model.h"

namespace percheron::draft {
namespace {

constexpr std::uint32_t deepest = 7;
constexpr std::uint32_t slots = 3;
constexpr std::uint32_t pages_each = 4;

struct Computer {
    const char* backend;
    ops::Arithmetic arithmetic;
    DType kv_dtype;
};

std::unique_ptr<ops::Backend> backend_of(const Computer& computer) {
    if (computer.backend == std::string("reference")) {
        return ops::reference::make_reference_backend(computer.arithmetic);
    }
    ops::CpuBackendOptions options;
    options.threads = 2;
    options.arithmetic = computer.arithmetic;
    return ops::make_cpu_backend(options).value();
}

// A sequence as an engine would hold it, but with its tokens known before.
struct Timeline {
    std::vector<TokenId> tokens;
    std::uint32_t prompt = 0;
    Position end = 0;  // positions below it are to be computed; tokens[end] exists
    RequestSlot slot{};
    std::vector<PageId> pages;
    Position computed = 0;
    Position folded = 0;

    // The round in hand.
    std::vector<TokenId> drafts;
    std::uint32_t accepted = 0;
    std::uint32_t first_row = 0;
    std::uint32_t rows = 0;
    std::vector<TokenId> proposed;
    std::vector<TokenId> all_proposed;  // of the latest step, by every proposer
    std::vector<float> logits;          // of every generated position
};

class RollbackTest : public testing::TestWithParam<Computer> {
  protected:
    RollbackTest() {
        config_.mtp_layers = 1;
        config_.index_pool = 4;
        backend_ = backend_of(GetParam());
        model::NetworkOptions options;
        options.max_rows = 512;
        options.max_logit_rows = 64;
        for (const bool full : {false, true}) {
            model::Dflash2Config& drafter = drafters_[full];
            drafter.vocabulary = config_.vocabulary;
            drafter.hidden = config_.hidden;
            drafter.intermediate = 24;
            drafter.heads = 4;
            drafter.kv_heads = 2;
            drafter.head_dim = 16;
            drafter.windows =
                full ? std::vector<std::uint32_t>{0, 0} : std::vector<std::uint32_t>{30, 70};
            drafter.target_layers = {0, 2, 3};
            drafter.block = deepest + 1;
            drafter.conv_taps = 2;
            drafter.conv_width = 4;
            drafter.selector_rank = 8;
            drafter.selector_top = 6;
            drafter.mask_token = TokenId(60);
            drafter.own_embedding = drafter.own_head = full;
            drafter.mask.assign(full ? drafter.hidden : 0, 0.3f);
            drafter.context_limit = 4096;
        }
        trunk_ = model::Network::load(config_, weights_, *backend_, options).value();
        kv_dtype_ = GetParam().kv_dtype;
        options_ = options;
    }

    // Caches of their own, and the proposers that belong to them.
    struct Machine {
        std::unique_ptr<cache::CacheStore> store;
        std::unique_ptr<MtpProposer> mtp;
        std::array<std::unique_ptr<Dflash2Proposer>, 2> dflash2;  // windowed, full
    };
    std::unique_ptr<Dflash2Proposer> dflash2(bool full) {
        const model::Dflash2Config& config = drafters_[full];
        model::Dflash2Options options;
        auto drafter = model::Dflash2::load(config, *trunk_, weights_, *backend_, options).value();
        const ContextShape shape = ContextShape::of(config, kv_dtype_);
        // Exactly what is planned for: nobody may need more.
        const std::uint32_t pages = slots * (full ? pages_each : shape.pages_a_slot());
        return std::make_unique<Dflash2Proposer>(
            std::move(drafter), ContextCache::create(shape, pages, slots, *backend_).value(),
            options.block_rows);
    }
    Machine machine() {
        Machine machine;
        const auto shape =
            cache::CacheShape::of(config_, kv_dtype_, uncommitted_rows(deepest), true);
        machine.store =
            cache::CacheStore::create(shape, slots * pages_each, slots, *backend_, 1).value();
        auto layer = model::MtpLayer::load(*trunk_, weights_, *backend_, options_).value();
        machine.mtp = std::make_unique<MtpProposer>(*trunk_, std::move(layer),
                                                    machine.store->views().latent.back(), slots);
        machine.dflash2 = {dflash2(false), dflash2(true)};
        for (std::uint32_t slot = 0; slot < slots; ++slot) {
            machine.store->clear_slot(RequestSlot(slot));
        }
        return machine;
    }

    Timeline timeline(std::uint32_t prompt, std::uint32_t replies, std::uint32_t slot,
                      std::uint64_t seed) const {
        Timeline line;
        line.tokens = tests::random_tokens(prompt + replies + 1, config_.vocabulary, seed);
        line.prompt = prompt;
        line.end = prompt + replies;
        line.slot = RequestSlot(slot);
        for (std::uint32_t page = 0; page < pages_each; ++page) {
            line.pages.push_back(PageId(slots * pages_each - 1 - (slot * pages_each + page)));
        }
        return line;
    }

    // One step over the rows the timelines have in hand, and the proposer's look at them.
    void step(Machine& machine, std::span<Timeline> lines, ops::NumericClass numeric_class) {
        std::vector<ops::SequenceRows> sequences;
        std::vector<TokenId> tokens;
        std::vector<std::uint32_t> logit_rows;
        std::vector<Timeline*> active;
        for (Timeline& line : lines) {
            if (line.rows == 0) continue;
            ops::SequenceRows rows;
            rows.first_row = line.first_row = static_cast<std::uint32_t>(tokens.size());
            rows.row_count = line.rows;
            rows.first_position = line.computed;
            rows.state_position = line.folded;
            rows.commit_rows = line.rows - static_cast<std::uint32_t>(line.drafts.size());
            rows.slot = line.slot;
            rows.pages = line.pages;
            sequences.push_back(rows);
            const auto first = line.tokens.begin() + line.computed;
            tokens.insert(tokens.end(), first, first + rows.commit_rows);
            tokens.insert(tokens.end(), line.drafts.begin(), line.drafts.end());
            if (numeric_class == ops::NumericClass::decode) {
                for (std::uint32_t i = 0; i < line.rows; ++i) {
                    logit_rows.push_back(line.first_row + i);
                }
            }
            active.push_back(&line);
        }
        ops::RowBatch batch;
        batch.numeric_class = numeric_class;
        batch.sequences = sequences;
        batch.tokens = tokens;
        batch.logit_rows = logit_rows;
        const auto logits = trunk_->forward(batch, machine.store->views());
        ASSERT_TRUE(logits.ok()) << logits.error().message();

        std::vector<DraftSequence> seen;
        SamplingParameters greedy;
        greedy.temperature = 0;
        std::size_t logit_row = 0;
        for (Timeline* line : active) {
            const std::uint32_t kept =
                line->rows - static_cast<std::uint32_t>(line->drafts.size()) + line->accepted;
            if (numeric_class == ops::NumericClass::decode) {
                const auto own =
                    logits->subspan(logit_row * config_.vocabulary, kept * config_.vocabulary);
                line->logits.insert(line->logits.end(), own.begin(), own.end());
                logit_row += line->rows;
            }
            DraftSequence sequence;
            sequence.slot = line->slot;
            sequence.pages = line->pages;
            sequence.first = line->computed;
            sequence.rows = kept;
            sequence.first_row = line->first_row;
            line->folded =
                line->computed + line->rows - static_cast<std::uint32_t>(line->drafts.size());
            line->computed += kept;
            // All that an engine would know now.
            sequence.tokens = std::span(line->tokens).first(line->computed + 1);
            line->proposed.clear();
            line->all_proposed.clear();
            sequence.drafts = &line->proposed;
            sequence.drawing.parameters = &greedy;
            const bool ready = line->computed >= line->prompt && line->computed < line->end;
            sequence.most = ready ? 1 + line->computed % deepest : 0;
            seen.push_back(sequence);
        }
        std::vector<std::uint32_t> wanted;
        for (const DraftSequence& sequence : seen) {
            wanted.push_back(sequence.most);
        }
        for (Proposer* const proposer : std::array<Proposer*, 3>{
                 machine.dflash2[0].get(), machine.dflash2[1].get(), machine.mtp.get()}) {
            // A block drafter's pass leaves nothing behind: now and then is enough.
            for (std::size_t i = 0; i < seen.size(); ++i) {
                const Position at = active[i]->computed;
                const bool named =
                    proposer == machine.mtp.get() || at % 16 == 0 || at == active[i]->prompt;
                seen[i].drafts->clear();
                seen[i].most = named ? wanted[i] : 0;
            }
            const Status status = proposer->propose(numeric_class, seen);
            ASSERT_TRUE(status.ok()) << status.error().message();
            for (std::size_t i = 0; i < seen.size(); ++i) {
                EXPECT_EQ(seen[i].drafts->size(), seen[i].most) << proposer->name();
                active[i]->all_proposed.insert(active[i]->all_proposed.end(),
                                               seen[i].drafts->begin(), seen[i].drafts->end());
            }
        }
    }

    void prefill(Machine& machine, std::span<Timeline> lines) {
        for (Timeline& line : lines) {
            machine.mtp->begin(line.slot);
            for (const auto& proposer : machine.dflash2) {
                proposer->begin(line.slot);
            }
            line.rows = line.prompt;
            line.drafts.clear();
            line.accepted = 0;
        }
        step(machine, lines, ops::NumericClass::prefill);
    }

    // Decodes every timeline to its end; `choose` fills drafts and accepted of the next round.
    template <class Choose>
    void decode(Machine& machine, std::span<Timeline> lines, Choose&& choose) {
        const auto unfinished = [](const Timeline& line) { return line.computed < line.end; };
        while (std::any_of(lines.begin(), lines.end(), unfinished)) {
            for (Timeline& line : lines) {
                line.rows = 0;
                line.drafts.clear();
                line.accepted = 0;
                if (!unfinished(line)) continue;
                choose(line);
                line.rows = 1 + static_cast<std::uint32_t>(line.drafts.size());
            }
            step(machine, lines, ops::NumericClass::decode);
            if (HasFatalFailure()) return;
        }
    }

    // The last token is decoded plainly, so that what was kept is folded.
    void draft_at_random(Timeline& line, std::mt19937_64& random, int kind) const {
        const Position left = line.end - line.computed;
        if (left == 1) return;
        const auto depth = static_cast<std::uint32_t>(
            std::min<Position>(kind == 3 ? deepest : random() % (deepest + 1), left - 2));
        switch (kind) {
            case 0:
                line.accepted = 0;
                break;
            case 1:
            case 3:
                line.accepted = depth;
                break;
            default:
                line.accepted = depth == 0 ? 0 : static_cast<std::uint32_t>(random() % (depth + 1));
        }
        for (std::uint32_t i = 0; i < depth; ++i) {
            TokenId token = line.tokens[line.computed + 1 + i];
            if (i >= line.accepted) {
                token = TokenId(
                    static_cast<int>((static_cast<std::size_t>(to_int(token)) + 1 + random() % 50) %
                                     config_.vocabulary));
            }
            line.drafts.push_back(token);
        }
    }

    // Everything that positions below `end` have left in the caches.
    std::vector<std::byte> remains(const Machine& machine, const Timeline& line) const {
        std::vector<std::byte> bytes;
        const auto add = [&](const void* data, std::size_t size) {
            const auto* const first = static_cast<const std::byte*>(data);
            bytes.insert(bytes.end(), first, first + size);
        };
        const std::size_t slot = to_int(line.slot);
        const std::size_t channels = 3 * config_.kda_heads * config_.kda_dim;
        for (const ops::KdaSlots& kda : machine.store->views().kda) {
            add(kda.state + slot * kda.state_stride,
                config_.kda_heads * config_.kda_dim * config_.kda_dim * sizeof(float));
            for (Position p = line.end - std::min<Position>(line.end, 3); p < line.end; ++p) {
                add(kda.conv + slot * kda.conv_stride + p % kda.ring * channels,
                    channels * sizeof(float));
            }
        }
        for (const ops::LatentPages& sparse : machine.store->views().latent) {
            const auto page = [&](void* memory, std::size_t stride, Position p) {
                return static_cast<std::byte*>(memory) +
                       to_int(line.pages[p / ops::page_tokens]) * stride;
            };
            const auto add_row = [&](const ops::StoredRow& row, std::size_t values) {
                add(row.values, values * size_of(kv_dtype_));
                if (row.scale != nullptr) add(row.scale, 1);
            };
            for (Position p = 0; p < line.end; ++p) {
                add_row(
                    ops::stored_row(page(sparse.latents, sparse.latent_page_bytes, p), kv_dtype_,
                                    ops::page_tokens, config_.latent, p % ops::page_tokens),
                    config_.latent);
            }
            const auto pool = static_cast<Position>(config_.index_pool);
            for (Position p = 0; p + pool <= line.end; p += pool) {
                add_row(ops::stored_row(page(sparse.pooled, sparse.pooled_page_bytes, p), kv_dtype_,
                                        ops::page_tokens / pool, config_.index_dim,
                                        p % ops::page_tokens / pool),
                        config_.index_dim);
            }
            for (Position p = line.end / pool * pool; p < line.end; ++p) {
                add(sparse.tails + slot * sparse.tail_stride +
                        p % sparse.tail_ring * 2 * config_.index_dim,
                    2 * config_.index_dim * sizeof(float));
            }
        }
        for (const auto& proposer : machine.dflash2) {
            const ContextCache& cache = proposer->cache();
            const ops::DraftContext context = cache.context(line.slot);
            EXPECT_EQ(context.end, line.end);
            const std::uint32_t window = cache.shape().window;
            const Position seen =
                line.end - std::min(line.end, window == 0 ? line.end : window - 1);
            EXPECT_LE(context.begin, seen);
            for (const ops::ContextPages& layer : cache.views()) {
                for (Position p = seen; p < line.end; ++p) {
                    const auto* const page =
                        static_cast<const std::byte*>(layer.page(context.page_of(p)));
                    const std::size_t row = layer.dim * size_of(layer.dtype);
                    for (std::size_t part = 0; part < 2 * layer.heads; ++part) {
                        add(page + (part * ops::page_tokens + p % ops::page_tokens) * row, row);
                    }
                }
            }
        }
        return bytes;
    }

    std::array<model::Dflash2Config, 2> drafters_;
    model::ModelConfig config_ = tests::small_config();
    tests::RandomWeights weights_{11};
    model::NetworkOptions options_;
    DType kv_dtype_ = DType::bf16;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<model::Network> trunk_;
};

TEST_P(RollbackTest, CachesAreThoseOfSerialDecodingAfterAnyPattern) {
    const bool oracle = GetParam().backend == std::string("reference");
    const int trials = oracle ? 3 : kv_dtype_ == DType::bf16 ? 50 : 10;
    // Prompts that end around pools, pages and the first position that can drop something.
    const std::vector<std::array<std::uint32_t, slots>> prompts = {
        {1, 2, 3},      {4, 17, 20},  {60, 63, 64}, {65, 66, 67},
        {62, 119, 127}, {5, 128, 61}, {29, 30, 59}};
    Machine machine = this->machine();
    std::mt19937_64 random(21);
    std::size_t patterns = 0, rounds = 0, rejected = 0, accepted = 0;
    for (std::size_t group = 0; group < prompts.size(); ++group) {
        std::vector<Timeline> serial;
        for (std::uint32_t slot = 0; slot < slots; ++slot) {
            serial.push_back(timeline(prompts[group][slot], 36, slot, 100 * group + slot));
        }
        const std::vector<Timeline> fresh = serial;
        std::vector<std::vector<std::byte>> expected;
        prefill(machine, serial);
        decode(machine, serial, [](Timeline&) {});
        for (const Timeline& line : serial)
            expected.push_back(remains(machine, line));
        for (int trial = 0; trial < trials; ++trial) {
            std::vector<Timeline> drafted = fresh;
            prefill(machine, drafted);
            decode(machine, drafted, [&](Timeline& line) {
                draft_at_random(line, random, trial % 5);
                ++rounds;
                accepted += line.accepted;
                rejected += line.drafts.size() - line.accepted;
            });
            for (std::uint32_t slot = 0; slot < slots; ++slot) {
                ++patterns;
                ASSERT_TRUE(remains(machine, drafted[slot]) == expected[slot])
                    << "prompt " << drafted[slot].prompt << ", trial " << trial;
                ASSERT_EQ(drafted[slot].logits.size(), serial[slot].logits.size());
                ASSERT_EQ(std::memcmp(drafted[slot].logits.data(), serial[slot].logits.data(),
                                      serial[slot].logits.size() * sizeof(float)),
                          0)
                    << "prompt " << drafted[slot].prompt << ", trial " << trial;
                if (trial > 0) continue;
                EXPECT_EQ(drafted[slot].folded, drafted[slot].end);
            }
        }
    }
    EXPECT_GE(patterns, trials == 50 ? 1000u : 60u);
    EXPECT_GT(rejected, rounds);
    EXPECT_GT(accepted, rounds / 2);
}

// A prompt that goes on from a checkpoint is drafted for with the same bits as one that was
// computed whole: the first drafts behind it are the same, and so is all that is left behind.
TEST_P(RollbackTest, FromACheckpointTheSameIsDrafted) {
    Machine machine = this->machine();
    for (const std::uint32_t prompt : {65u, 130u, 150u, 192u}) {
        std::vector<Timeline> whole = {timeline(prompt, 20, 0, prompt)};
        const std::uint32_t at = (prompt - 1) / 64 * 64;
        std::vector<Timeline> resumed = {timeline(prompt, 20, 1, prompt)};
        resumed[0].pages = whole[0].pages;
        for (std::vector<Timeline>* const lines : {&whole, &resumed}) {
            Timeline& line = lines->front();
            const bool first = lines == &whole;
            machine.mtp->begin(line.slot);
            for (const auto& proposer : machine.dflash2) {
                proposer->begin(line.slot);
                if (!first) proposer->resume(line.slot, at, CheckpointId(0));
            }
            if (first) {
                machine.store->clear_slot(line.slot);
                line.rows = at;
                step(machine, *lines, ops::NumericClass::prefill);
                machine.store->save(line.slot, at, CheckpointId(0));
                for (const auto& proposer : machine.dflash2) {
                    proposer->save(line.slot, at, CheckpointId(0));
                }
            } else {
                machine.store->restore(line.slot, at, CheckpointId(0));
                line.computed = line.folded = at;
            }
            line.rows = prompt - at;
            step(machine, *lines, ops::NumericClass::prefill);
            line.end = prompt;
        }
        for (const auto& proposer : machine.dflash2) {
            const ContextCache& cache = proposer->cache();
            EXPECT_EQ(cache.context(whole[0].slot).begin, cache.context(resumed[0].slot).begin);
        }
        EXPECT_TRUE(remains(machine, whole[0]) == remains(machine, resumed[0])) << prompt;
        EXPECT_EQ(whole[0].all_proposed, resumed[0].all_proposed);
        EXPECT_FALSE(whole[0].all_proposed.empty());
    }
}

INSTANTIATE_TEST_SUITE_P(Computers, RollbackTest,
                         testing::Values(Computer{"cpu", ops::Arithmetic::standard, DType::bf16},
                                         Computer{"cpu", ops::Arithmetic::standard, DType::f8_e4m3},
                                         Computer{"cpu", ops::Arithmetic::fp32, DType::f32},
                                         Computer{"reference", ops::Arithmetic::standard,
                                                  DType::bf16}),
                         [](const auto& info) {
                             return std::string(info.param.backend) +
                                    (info.param.kv_dtype == DType::f32       ? "Fp32"
                                     : info.param.kv_dtype == DType::f8_e4m3 ? "Fp8Caches"
                                                                             : "");
                         });

}  // namespace
}  // namespace percheron::draft
