// A network of hashes: it keeps its whole memory in the caches it is given, in the way the real one
// does (state and rings by slot, latents and pooled keys by page), and its logits are a hash of all
// of it.  Any mistake in slots, pages, positions or numeric classes changes every later token.
//
// expected_reply() is the same network written without caches, engine or batches.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "percheron/engine.h"

#include "cache/fake_backend.h"
#include "engine/fake_grammar.h"
#include "engine/fake_tower.h"
#include "engine/local_engine.h"
#include "model/network.h"
#include "ops/backend.h"
#include "ops/reference/logit_digest.h"
#include "sampling/sampler.h"

namespace percheron::engine::testing {

inline constexpr std::uint32_t fake_vocabulary = 48;
inline constexpr TokenId fake_stop{45}, fake_second_stop{46}, fake_banned{47};
inline constexpr TokenId fake_think_open{40}, fake_think_close{41};

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    std::uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// What a position leaves behind.
inline std::uint64_t entry_of(TokenId token, Position position, ops::NumericClass numeric_class) {
    return mix(mix(static_cast<std::uint64_t>(to_int(token)) + 1, position),
               static_cast<std::uint64_t>(numeric_class) + 17);
}

// The same where an image's features stand in the token's place.
inline std::uint64_t with_features(std::uint64_t entry, const float* features) {
    for (std::size_t i = 0; i < fake_feature_width; ++i) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, features + i, sizeof bits);
        entry = mix(entry, bits);
    }
    return entry;
}

inline float fake_logit(std::uint64_t history, std::uint32_t token) {
    return static_cast<float>(mix(history, token + 1000u) >> 40) / static_cast<float>(1 << 24) *
           9.0f;
}

// The history a position sees: state of all before and itself, the three positions before it, every
// complete pool and every latent.
class History {
  public:
    void add(TokenId token, ops::NumericClass numeric_class, const float* features = nullptr) {
        const auto position = static_cast<Position>(entries_.size());
        entries_.push_back(entry_of(token, position, numeric_class));
        if (features != nullptr) entries_.back() = with_features(entries_.back(), features);
        state_ = mix(state_, entries_.back());
        latents_ += mix(entries_.back(), position);
        if (position % 4 == 3) {
            std::uint64_t key = position / 4;
            for (std::size_t i = position - 3; i <= position; ++i) {
                key = mix(key, entries_[i]);
            }
            pools_ += key;
        }
    }
    std::uint64_t hash() const {
        std::uint64_t result = state_;
        const std::size_t count = entries_.size();
        for (std::size_t back = 1; back <= 3; ++back) {
            result = mix(result, count > back ? entries_[count - 1 - back] : 0);
        }
        return mix(mix(result, pools_), latents_);
    }

  private:
    std::uint64_t state_ = 0;
    std::uint64_t pools_ = 0;
    std::uint64_t latents_ = 0;
    std::vector<std::uint64_t> entries_;  // by position
};

// Rows of which digests were given, and those that were looked at in spite of it.
struct DigestCounts {
    std::atomic<std::uint64_t> digested = 0, fetched = 0;
};

class FakeNetwork final : public model::Network {
  public:
    // Looks at a batch before it is computed; an error is the network's own.
    std::function<Status(const ops::RowBatch&)> before_forward;
    // May spoil the logits of a row that ends with `token`.
    std::function<void(TokenId token, std::span<float> logits)> spoil;
    // Not null: it gives digests in the place of logits.
    DigestCounts* digest_counts = nullptr;

    FakeNetwork() {
        config_.vocabulary = fake_vocabulary;
        config_.mixers = {model::MixerKind::kda, model::MixerKind::sparse_attention};
        config_.latent = 4;  // 4 bf16: one word a position
        config_.index_dim = 4;
        config_.index_pool = 4;
        config_.kda_heads = 1;
        config_.kda_dim = 4;
        config_.kda_conv = 4;
        config_.image_token = fake_image;
    }

    const model::ModelConfig& config() const override { return config_; }
    Status set_taps(std::vector<std::size_t>) override { return {}; }
    ops::Activations tap(std::size_t) const override { return {}; }
    ops::Activations hidden() const override { return {}; }

    Result<std::span<const float>> forward(const ops::RowBatch& batch,
                                           const model::CacheViews& caches) override {
        if (before_forward) {
            PERCHERON_TRY(before_forward(batch));
        }
        PERCHERON_TRY(check(batch, caches.kda.at(0), caches.latent.at(0)));
        computed_.clear();
        for (const ops::SequenceRows& rows : batch.sequences) {
            std::uint64_t state = folded_state(rows, caches.kda.at(0));
            for (std::uint32_t i = 0; i < rows.row_count; ++i) {
                computed_.push_back({compute_row(batch, rows, i, state, caches), &rows,
                                     rows.first_position + i, &caches.latent.at(0)});
            }
        }
        const std::span<const float> logits = logits_at(batch, batch.logit_rows);
        if (batch.digests.empty()) return logits;
        if (digested_ == nullptr || batch.digests.size() != batch.logit_rows.size())
            return Error(ErrorCode::internal, "nobody prepared such digests");
        return digest(batch);
    }

    Result<std::span<const float>> logits_of(const ops::RowBatch& latest,
                                             std::span<const std::uint32_t> wanted) override {
        if (wanted.size() > max_logit_rows()) {
            return Error(ErrorCode::internal, "too many logits");
        }
        return logits_at(latest, wanted);
    }
    std::size_t max_logit_rows() const override { return 64; }

    Status use_digests(std::span<const TokenId> excluded) override {
        if (digest_counts == nullptr) return Network::use_digests(excluded);
        excluded_.assign(fake_vocabulary, false);
        for (const TokenId token : excluded)
            excluded_[static_cast<std::size_t>(to_int(token))] = true;
        digested_ = std::make_unique<Digested>(*this);
        return {};
    }
    ops::DigestedRows* digested() const override { return digested_.get(); }

  private:
    // Rows are nowhere until they are fetched.
    struct Digested final : ops::DigestedRows {
        explicit Digested(FakeNetwork& network) : network(network) {}
        std::span<const ops::LogitDigest> digests() const override { return network.digests_; }
        Status fetch(std::size_t row) override {
            ++network.digest_counts->fetched;
            std::copy_n(
                network.kept_logits_.begin() + static_cast<std::ptrdiff_t>(row * fake_vocabulary),
                fake_vocabulary,
                network.logits_.begin() + static_cast<std::ptrdiff_t>(row * fake_vocabulary));
            return {};
        }
        FakeNetwork& network;
    };

    std::span<const float> digest(const ops::RowBatch& batch) {
        kept_logits_ = logits_;
        digests_.clear();
        for (std::size_t row = 0; row < batch.digests.size(); ++row) {
            digests_.push_back(ops::reference::digest_of(
                std::span(kept_logits_).subspan(row * fake_vocabulary, fake_vocabulary),
                batch.digests[row], excluded_));
        }
        digest_counts->digested += digests_.size();
        std::fill(logits_.begin(), logits_.end(), std::nanf(""));
        return logits_;
    }

    std::span<const float> logits_at(const ops::RowBatch& latest,
                                     std::span<const std::uint32_t> wanted) {
        logits_.assign(wanted.size() * fake_vocabulary, 0.0f);
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            const Computed& row = computed_.at(wanted[i]);
            const std::uint64_t history =
                look_back(row.recent, *row.rows, row.position, *row.latents);
            const std::span<float> out(&logits_[i * fake_vocabulary], fake_vocabulary);
            for (std::uint32_t token = 0; token < fake_vocabulary; ++token) {
                out[token] = fake_logit(history, token);
            }
            if (spoil) {
                spoil(latest.tokens[wanted[i]], out);
            }
        }
        return logits_;
    }

    // A row of the latest step: its logits are worked out when they are wanted.
    struct Computed {
        std::uint64_t recent = 0;
        const ops::SequenceRows* rows = nullptr;
        Position position = 0;
        const ops::LatentPages* latents = nullptr;
    };

    // The contract of ops/batch.h, as far as the network can see it.
    static Status check(const ops::RowBatch& batch, const ops::KdaSlots& kda,
                        const ops::LatentPages& sparse) {
        const auto broken = [](const char* what) { return Error(ErrorCode::internal, what); };
        std::uint32_t next_row = 0;
        std::set<std::uint32_t> slots;
        std::map<std::uint32_t, std::uint32_t> readers;
        for (const ops::SequenceRows& rows : batch.sequences) {
            if (rows.first_row != next_row || rows.row_count == 0) {
                return broken("rows have gaps");
            }
            next_row += rows.row_count;
            const bool commits = rows.commit_rows == rows.row_count;
            if (rows.state_position > rows.first_position || rows.commit_rows > rows.row_count) {
                return broken("rows that cannot be committed");
            }
            if (batch.numeric_class == ops::NumericClass::prefill &&
                (rows.state_position != rows.first_position || !commits)) {
                return broken("a chunk leaves rows uncommitted");
            }
            const Position open = rows.first_position + rows.row_count - rows.state_position;
            if (!commits && (open + 3 > kda.ring || rows.row_count + 4 > sparse.tail_ring)) {
                return broken("more rows than the rings hold");
            }
            if (!slots.insert(to_int(rows.slot)).second) {
                return broken("two sequences share a slot");
            }
            for (const PageId page : rows.pages) {
                ++readers[to_int(page)];
            }
            if (rows.pages.size() * ops::page_tokens < rows.first_position + rows.row_count) {
                return broken("the page table is too short");
            }
            if (batch.numeric_class == ops::NumericClass::prefill &&
                rows.first_position % ops::page_tokens != 0) {
                return broken("a chunk starts off the grid");
            }
        }
        for (const ops::SequenceRows& rows : batch.sequences) {
            const std::size_t last = (rows.first_position + rows.row_count - 1) / ops::page_tokens;
            for (std::size_t i = rows.first_position / ops::page_tokens; i <= last; ++i) {
                if (readers[to_int(rows.pages[i])] != 1) {
                    return broken("a page is written that another sequence has too");
                }
            }
        }
        return next_row == batch.tokens.size() ? Status() : broken("rows without a sequence");
    }

    // The slot's state with the kept rows folded in, written back.
    static std::uint64_t folded_state(const ops::SequenceRows& rows, const ops::KdaSlots& kda) {
        float* const place = kda.state + to_int(rows.slot) * kda.state_stride;
        std::uint64_t state = read(place);
        for (Position p = rows.state_position; p < rows.first_position; ++p) {
            state = mix(state, read(kept(rows, kda, p)));
        }
        write(place, state);
        return state;
    }
    static float* kept(const ops::SequenceRows& rows, const ops::KdaSlots& kda, Position p) {
        return kda.kept + to_int(rows.slot) * kda.kept_stride +
               p % kda.ring * ops::kda_kept_row(1, 4);
    }

    // Writes what the row leaves behind and returns a hash of the state and the rows just before.
    static std::uint64_t compute_row(const ops::RowBatch& batch, const ops::SequenceRows& rows,
                                     std::uint32_t i, std::uint64_t& state,
                                     const model::CacheViews& caches) {
        const ops::KdaSlots& kda = caches.kda.at(0);
        const ops::LatentPages& sparse = caches.latent.at(0);
        const std::size_t slot = to_int(rows.slot);
        const Position position = rows.first_position + i;
        std::uint64_t entry =
            entry_of(batch.tokens[rows.first_row + i], position, batch.numeric_class);
        for (const ops::EmbeddingOverride& replacement : batch.overrides) {
            if (replacement.row == rows.first_row + i) {
                entry = with_features(entry, replacement.features);
            }
        }

        state = mix(state, entry);
        if (i < rows.commit_rows) {
            write(kda.state + slot * kda.state_stride, state);
        } else {
            write(kept(rows, kda, position), entry);
        }

        float* conv = kda.conv + slot * kda.conv_stride;
        std::uint64_t result = state;
        for (Position back = 1; back <= 3; ++back) {
            result = mix(result,
                         position >= back ? read(conv + (position - back) % kda.ring * 3 * 4) : 0);
        }
        write(conv + position % kda.ring * 3 * 4, entry);

        float* tail = sparse.tails + slot * sparse.tail_stride;
        write(tail + position % sparse.tail_ring * 2 * 4, entry);
        if (position % 4 == 3) {
            std::uint64_t key = position / 4;
            for (Position p = position - 3; p <= position; ++p) {
                key = mix(key, read(tail + p % sparse.tail_ring * 2 * 4));
            }
            write(pooled(sparse, rows, position / 4), key);
        }
        write(latent(sparse, rows, position), entry);
        return result;
    }

    // What attention would see: every complete pool and every latent up to `position`.
    static std::uint64_t look_back(std::uint64_t result, const ops::SequenceRows& rows,
                                   Position position, const ops::LatentPages& sparse) {
        std::uint64_t pools = 0;
        for (Position pool = 0; pool < (position + 1) / 4; ++pool) {
            pools += read(pooled(sparse, rows, pool));
        }
        std::uint64_t latents = 0;
        for (Position p = 0; p <= position; ++p) {
            latents += mix(read(latent(sparse, rows, p)), p);
        }
        return mix(mix(result, pools), latents);
    }

    static std::byte* latent(const ops::LatentPages& sparse, const ops::SequenceRows& rows,
                             Position position) {
        return static_cast<std::byte*>(sparse.latents) +
               to_int(rows.pages[position / 64]) * sparse.latent_page_bytes + position % 64 * 8;
    }
    static std::byte* pooled(const ops::LatentPages& sparse, const ops::SequenceRows& rows,
                             Position pool) {
        return static_cast<std::byte*>(sparse.pooled) +
               to_int(rows.pages[pool / 16]) * sparse.pooled_page_bytes + pool % 16 * 8;
    }
    static std::uint64_t read(const void* place) {
        std::uint64_t value = 0;
        std::memcpy(&value, place, sizeof value);
        return value;
    }
    static void write(void* place, std::uint64_t value) {
        std::memcpy(place, &value, sizeof value);
    }

    model::ModelConfig config_;
    std::vector<Computed> computed_;
    std::vector<float> logits_;
    std::unique_ptr<Digested> digested_;
    std::vector<float> kept_logits_;
    std::vector<ops::LogitDigest> digests_;
    std::vector<bool> excluded_;
};

// The mask of a FakeGrammar after `answer`; without the stops where the reply has to go on and can.
inline std::vector<std::uint32_t> allowed_by(const OutputGrammar& grammar,
                                             std::span<const TokenId> answer,
                                             std::span<const TokenId> stops, bool goes_on) {
    const FakeGrammarRule& rule = dynamic_cast<const FakeGrammar&>(grammar).rule();
    std::vector<std::uint32_t> all((fake_vocabulary + 31) / 32);
    std::vector<std::uint32_t> words = all;
    bool words_left = false;
    for (std::uint32_t v = 0; v < fake_vocabulary; ++v) {
        const auto token = TokenId(static_cast<int>(v));
        if (!rule.allows(answer, token)) continue;
        all[v / 32] |= 1u << v % 32;
        if (std::find(stops.begin(), stops.end(), token) == stops.end()) {
            words[v / 32] |= 1u << v % 32;
            words_left = true;
        }
    }
    return goes_on && words_left ? words : all;
}

inline std::shared_ptr<const OutputGrammar> fake_grammar(std::uint64_t seed, std::size_t length) {
    return std::make_shared<FakeGrammar>(
        FakeGrammarRule{seed, length, fake_vocabulary, {fake_stop, fake_second_stop}});
}

struct ExpectedReply {
    std::vector<TokenId> tokens;
    FinishReason reason = FinishReason::stop_token;
};

// The reply the promises ask for: one request, one choice, computed token by token.
inline ExpectedReply expected_reply(const GenerationRequest& request, std::uint64_t seed,
                                    std::uint32_t choice, std::uint32_t context) {
    History history;
    for (std::uint32_t position = 0; position < request.prompt.size(); ++position) {
        std::optional<std::array<float, fake_feature_width>> features;
        for (const PromptImage& image : request.images) {
            if (position >= image.first && position < image.first + image.count) {
                features = fake_feature(*image.canvas, position - image.first);
            }
        }
        history.add(request.prompt[position], ops::NumericClass::prefill,
                    features ? features->data() : nullptr);
    }
    std::vector<TokenId> stops = {fake_stop, fake_second_stop};
    stops.insert(stops.end(), request.extra_stop_tokens.begin(), request.extra_stop_tokens.end());
    const std::vector<TokenId> banned = {fake_banned};
    bool thinking = false;
    for (const TokenId token : request.prompt) {
        thinking = token == fake_think_open || (thinking && token != fake_think_close);
    }
    std::uint32_t thought = 0;
    std::vector<TokenId> answer;  // what a grammar speaks of
    sampling::TokenCounts counts(fake_vocabulary);
    counts.add(request.prompt);
    sampling::Sampler sampler(fake_vocabulary);
    ExpectedReply reply;
    for (;;) {
        std::array<float, fake_vocabulary> logits{};
        for (std::uint32_t token = 0; token < fake_vocabulary; ++token) {
            logits[token] = fake_logit(history.hash(), token);
        }
        sampling::SamplingRow row;
        row.logits = logits;
        row.parameters = &request.sampling;
        row.counts = &counts;
        row.banned = banned;
        const bool goes_on = request.ignore_eos || reply.tokens.size() < request.min_tokens;
        const std::vector<std::uint32_t> allowed =
            request.grammar == nullptr || thinking
                ? std::vector<std::uint32_t>()
                : allowed_by(*request.grammar, answer, stops, goes_on);
        row.allowed = allowed;
        if (request.grammar ? thinking : goes_on) {
            row.masked = stops;
        }
        row.noise = {seed, choice};
        row.position = static_cast<Position>(request.prompt.size() + reply.tokens.size());
        TokenId token = sampler.choose(row).value();
        if (thinking && request.thinking_budget && thought >= *request.thinking_budget) {
            token = fake_think_close;
        }
        if (!thinking) answer.push_back(token);
        // An opening tag inside the thinking is a token of it like any other.
        if (token == fake_think_close || (token == fake_think_open && !thinking)) {
            thinking = token == fake_think_open;
        } else {
            thought += thinking ? 1 : 0;
        }
        reply.tokens.push_back(token);
        counts.add(token);
        history.add(token, ops::NumericClass::decode);
        if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
            reply.reason = FinishReason::stop_token;
            return reply;
        }
        if (request.max_tokens && reply.tokens.size() == *request.max_tokens) {
            reply.reason = FinishReason::max_tokens;
            return reply;
        }
        if (request.prompt.size() + reply.tokens.size() == context) {
            reply.reason = FinishReason::context;
            return reply;
        }
    }
}

// Options of a small engine over the fake network.
inline LocalEngineOptions fake_options(std::uint32_t pages, std::uint32_t max_running) {
    LocalEngineOptions options;
    options.model_name = "fake";
    options.context_tokens = pages * 64;
    options.scheduler.pages = pages;
    options.scheduler.max_running = max_running;
    options.scheduler.prefill_rows = 128;
    options.scheduler.decode_rows = 64;
    options.stop_tokens = {fake_stop, fake_second_stop};
    options.banned_tokens = {fake_banned};
    options.image_tokens = fake_image_tokens;
    options.image_memory = 3 * fake_image_tokens * fake_feature_width * sizeof(float);
    options.think_tags = ThinkTags{fake_think_open, fake_think_close};
    return options;
}

inline std::unique_ptr<Engine> make_fake_engine(LocalEngineOptions options,
                                                std::unique_ptr<FakeNetwork> network = {},
                                                bool seeing = false,
                                                std::unique_ptr<draft::Proposer> proposer = {}) {
    NetworkParts parts;
    parts.backend = std::make_unique<cache::testing::FakeBackend>();
    parts.network = network ? std::move(network) : std::make_unique<FakeNetwork>();
    parts.proposer = std::move(proposer);
    if (seeing) parts.tower = std::make_unique<FakeTower>();
    return make_local_engine(std::move(parts), std::move(options)).value();
}

}  // namespace percheron::engine::testing
