// Promise 3 with the prefix cache's files (C13 to C16 of docs/SCHEDULER.md): what another engine
// has left on disk gives the ids that computing gives, and is really used.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/reply_collector.h"
#include "support/quiet_log.h"
#include "support/temporary_folder.h"

namespace percheron::engine::testing {
namespace {

namespace fs = std::filesystem;
using tests::TemporaryFolder;

constexpr std::uint32_t grid = 64;
constexpr TokenId user_token{43};

LocalEngineOptions disk_options(const fs::path& folder, std::uint32_t pages = 400) {
    LocalEngineOptions options = fake_options(pages, 4);
    options.scheduler.checkpoints = pages;
    options.user_token = user_token;
    options.prefix_disk.emplace();
    options.prefix_disk->folder.folder = folder;
    options.prefix_disk->folder.limit = Bytes{1} << 30;
    options.prefix_disk->folder.identity = "the network of hashes";
    return options;
}

std::vector<TokenId> random_tokens(std::mt19937& random, std::uint32_t count) {
    std::vector<TokenId> tokens;
    for (std::uint32_t i = 0; i < count; ++i)
        tokens.push_back(TokenId(static_cast<int>(random() % 40)));
    return tokens;
}

GenerationRequest request_of(std::vector<TokenId> prompt, std::uint32_t output) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = output;
    request.ignore_eos = true;
    request.sampling.seed = 7;
    return request;
}

// An engine over a folder.
class Served {
  public:
    explicit Served(LocalEngineOptions options) : context_(options.context_tokens) {
        options.on_step = [this, inner = options.on_step](const StepRecord& record) {
            prefill_rows_ +=
                !record.background && record.numeric_class == ops::NumericClass::prefill
                    ? record.rows
                    : 0;
            if (inner) inner(record);
        };
        engine_ = make_fake_engine(std::move(options), {}, true);
    }

    RequestId submit(const GenerationRequest& request) {
        return engine_->submit(request, collector_).value();
    }
    CollectedReply run(const GenerationRequest& request) {
        const RequestId id = submit(request);
        collector_.wait_for(finished_ += request.choices);
        EXPECT_EQ(collector_.complaint(), "");
        const CollectedReply reply = collector_.reply(id);
        EXPECT_EQ(reply.tokens, expected_reply(request, 7, 0, context_).tokens);
        return reply;
    }
    // Replies are in the cache, and all of it is on disk.
    void settle() const {
        while (engine_->status().reprefill_pending > 0 ||
               engine_->status().prefix_disk.queued_bytes > 0) {
            std::this_thread::yield();
        }
    }
    PrefixDiskStatus disk() const { return engine_->status().prefix_disk; }
    Engine& engine() { return *engine_; }
    ReplyCollector& collector() { return collector_; }
    std::uint64_t prefill_rows() const { return prefill_rows_; }

  private:
    std::uint32_t context_;
    std::atomic<std::uint64_t> prefill_rows_ = 0;
    ReplyCollector collector_;
    std::size_t finished_ = 0;
    std::unique_ptr<Engine> engine_;
};

// Prompts that share every number of tokens over the edges of pools, blocks and chunks, each asked
// of an engine that has nothing in memory.
TEST(PrefixDisk, RestoredIsColdAtEverySplit) {
    const TemporaryFolder place;
    std::mt19937 random(1);
    std::uint64_t hits = 0;
    Bytes restored = 0;
    std::vector<std::vector<TokenId>> seen;
    for (std::uint32_t split = 1; split <= 330; split += 1 + split % 3) {
        const std::vector<TokenId> shared = random_tokens(random, split);
        GenerationRequest request = request_of(shared, 3);
        const std::vector<TokenId> own = random_tokens(random, 1 + random() % 150);
        request.prompt.insert(request.prompt.end(), own.begin(), own.end());
        {
            Served first(disk_options(place.path()));
            EXPECT_EQ(first.run(request).cached, 0u);
            first.settle();
        }
        // The same again: all but what lies behind the last edge.
        const auto length = static_cast<std::uint32_t>(request.prompt.size());
        Served second(disk_options(place.path()));
        const CollectedReply again = second.run(request);
        ASSERT_EQ(again.cached, (length - 1) / grid * grid) << split;
        EXPECT_EQ(second.prefill_rows(), length - again.cached);
        EXPECT_EQ(second.disk().bytes_restored > 0, again.cached > 0);
        // Another end behind what is shared: what was seen to part is kept for the third.
        GenerationRequest parted = request_of(shared, 3);
        const std::vector<TokenId> other = random_tokens(random, 1 + random() % 150);
        parted.prompt.insert(parted.prompt.end(), other.begin(), other.end());
        second.run(parted);
        second.settle();
        hits += again.cached > 0 ? 1 : 0;
        restored += second.disk().bytes_restored;
        seen.push_back(parted.prompt);
    }
    EXPECT_GT(hits, 100u);
    EXPECT_GT(restored, 100'000u);
    // All of them from one engine, in another order.
    std::shuffle(seen.begin(), seen.end(), random);
    Served last(disk_options(place.path()));
    for (const auto& prompt : seen) {
        EXPECT_EQ(last.run(request_of(prompt, 2)).cached, (prompt.size() - 1) / grid * grid);
    }
    const EngineStatus status = last.engine().status();
    EXPECT_EQ(status.kv_tokens_free, status.kv_tokens_total);
}

// Conversations with pictures and salts that go on in one engine after another.
TEST(PrefixDisk, ConversationsGoOnAfterEveryEnd) {
    for (unsigned seed = 0; seed < 4; ++seed) {
        const TemporaryFolder place;
        std::mt19937 random(seed);
        const std::vector<TokenId> system = random_tokens(random, 20 + random() % 300);
        std::vector<GenerationRequest> conversations;
        std::uint64_t hits = 0, with_images = 0;
        for (int engine = 0; engine < 12; ++engine) {
            Served served(disk_options(place.path(), 1500));
            for (int turn = 0; turn < 4; ++turn) {
                if (conversations.size() < 3 || random() % 5 == 0) {
                    GenerationRequest fresh = request_of(system, 1);
                    fresh.prompt.push_back(user_token);
                    if (random() % 3 == 0) fresh.cache_salt = "other";
                    conversations.push_back(std::move(fresh));
                }
                GenerationRequest& talk = conversations[random() % conversations.size()];
                if (talk.prompt.size() > 1500) continue;
                const std::size_t before = talk.prompt.size();
                const std::vector<TokenId> more = random_tokens(random, 1 + random() % 120);
                talk.prompt.insert(talk.prompt.end(), more.begin(), more.end());
                if (talk.images.size() < 3 && random() % 3 == 0) {
                    insert_image(talk, fake_image_of(4, 1 + random() % 9, random() % 3 + 1),
                                 static_cast<std::uint32_t>(talk.prompt.size()) - 1);
                }
                talk.max_tokens = 1 + random() % 150;
                const CollectedReply reply = served.run(talk);
                const bool known = before > system.size() + 1;
                // The last reply was made reusable, and so has all before it to be found.
                if (known) {
                    EXPECT_GE(reply.cached + grid, before / grid * grid);
                    ++hits;
                    with_images += talk.images.empty() ? 0 : 1;
                }
                served.settle();
                talk.prompt.insert(talk.prompt.end(), reply.tokens.begin(), reply.tokens.end());
            }
        }
        EXPECT_GT(hits, 12u);
        EXPECT_GT(with_images, 4u);
    }
}

// Whatever is done to the files while nobody looks, ids stay and the engine lives.
TEST(PrefixDisk, DamagedFilesCostTimeAndNothingElse) {
    const tests::QuietLog quiet;
    std::mt19937 random(3);
    std::uint64_t refused = 0, partly = 0, whole = 0;
    for (int round = 0; round < 60; ++round) {
        const TemporaryFolder place;
        const GenerationRequest request = request_of(random_tokens(random, 900), 5);
        {
            Served first(disk_options(place.path()));
            first.run(request);
            GenerationRequest parted = request;
            parted.prompt.resize(500);
            first.run(parted);
            first.settle();
        }
        std::unique_ptr<Served> second;
        if (round % 2 == 0) second = std::make_unique<Served>(disk_options(place.path()));
        std::vector<fs::path> files;
        for (const auto& entry : fs::directory_iterator(place.path())) {
            if (cache::is_tier_name(entry.path())) files.push_back(entry.path());
        }
        const fs::path victim = files[random() % files.size()];
        switch (round % 6) {
            case 0:
            case 1:
                fs::resize_file(victim, random() % fs::file_size(victim));
                break;
            case 2:
            case 3: {
                // In a piece: a header that was read before is not read again.
                const Bytes header = cache::read_tier_file(victim).value().header_bytes();
                const Bytes at = header + random() % (fs::file_size(victim) - header);
                std::fstream file(victim, std::ios::binary | std::ios::in | std::ios::out);
                file.seekg(static_cast<std::streamoff>(at));
                const int byte = file.get();
                file.seekp(static_cast<std::streamoff>(at));
                file.put(static_cast<char>(byte ^ 32));
                break;
            }
            default:
                fs::remove(victim);
        }
        if (!second) second = std::make_unique<Served>(disk_options(place.path()));
        const CollectedReply reply = second->run(request);
        EXPECT_EQ(reply.cached % grid, 0u);
        (reply.cached == 896 ? whole : partly) += 1;
        EXPECT_EQ(second->prefill_rows(), 900 - reply.cached);
        refused += second->disk().refused;
        // What was missing has been written again.
        second->settle();
        second.reset();
        EXPECT_EQ(Served(disk_options(place.path())).run(request).cached, 896u);
    }
    // Which file a number means differs from run to run: about 29, 37 and 23, give or take 3.
    EXPECT_GT(refused, 10u);
    EXPECT_GT(partly, 20u);
    EXPECT_GT(whole, 1u);
}

// A disk that is full: said once, nothing lost but files, and tried again.
TEST(PrefixDisk, SurvivesAFullDisk) {
    class Warnings final : public LogSink {
      public:
        Warnings() : before_(set_log_sink(this)) {}
        ~Warnings() override { set_log_sink(before_); }
        void write(LogLevel level, std::string_view message) override {
            if (message.find("--prefix-disk") == std::string_view::npos) return;
            if (level == LogLevel::warning) ++warnings;
            if (message.find("written again") != std::string_view::npos) ++recoveries;
        }
        std::atomic<int> warnings = 0, recoveries = 0;

      private:
        LogSink* before_;
    };
    Warnings log;
    const TemporaryFolder place;
    std::atomic<bool> full = true;
    std::atomic<int> tried = 0;
    LocalEngineOptions options = disk_options(place.path());
    options.prefix_disk->retry = std::chrono::milliseconds(0);
    options.prefix_disk->folder.write =
        [&](const fs::path& path, std::span<const std::span<const std::byte>> parts) -> Status {
        ++tried;
        if (full) return Error(ErrorCode::io, path.string() + ": cannot write: No space left");
        std::ofstream out(path, std::ios::binary);
        for (const auto part : parts)
            out.write(reinterpret_cast<const char*>(part.data()),
                      static_cast<std::streamsize>(part.size()));
        return {};
    };
    std::mt19937 random(4);
    GenerationRequest request = request_of(random_tokens(random, 700), 5);
    {
        Served served(options);
        for (int i = 0; i < 10; ++i) {
            request.prompt[0] = TokenId(i);
            served.run(request);
            served.settle();
        }
        EXPECT_TRUE(served.disk().paused);
        EXPECT_EQ(served.disk().bytes_written, 0u);
        EXPECT_GT(served.disk().dropped, 50u);
        EXPECT_GE(tried, 10);
        EXPECT_EQ(log.warnings, 1);
        EXPECT_EQ(served.run(request).cached, 640u);  // the memory still has it
        full = false;
        request.prompt[0] = TokenId(30);
        served.run(request);
        served.settle();
        EXPECT_FALSE(served.disk().paused);
        EXPECT_EQ(log.warnings, 1);
        EXPECT_EQ(log.recoveries, 1);
    }
    EXPECT_EQ(Served(disk_options(place.path())).run(request).cached, 640u);
}

// C13: a prompt waits for its files while others run; a cancel or a deadline ends the wait.
TEST(PrefixDisk, OthersRunWhileAPromptIsRead) {
    const TemporaryFolder place;
    std::mt19937 random(5);
    const GenerationRequest request = request_of(random_tokens(random, 2000), 5);
    {
        Served first(disk_options(place.path()));
        first.run(request);
        first.settle();
    }
    // A write that does not end keeps the tier's thread, so nothing can be read meanwhile.
    std::atomic<bool> held = false, go = false;
    LocalEngineOptions options = disk_options(place.path());
    options.prefix_disk->folder.write = [&](const fs::path&,
                                            std::span<const std::span<const std::byte>>) -> Status {
        held = true;
        held.notify_all();
        go.wait(false);
        return {};
    };
    Served served(options);
    const GenerationRequest other = request_of(random_tokens(random, 200), 300);
    served.run(other);
    held.wait(false);
    const RequestId waiting = served.submit(request);
    GenerationRequest cancelled = request, late = request;
    late.deadline = Clock::now() + std::chrono::milliseconds(1);
    const RequestId cancelled_id = served.submit(cancelled);
    const RequestId late_id = served.submit(late);
    GenerationRequest another = other;
    another.prompt[0] = TokenId(1);
    const RequestId running = served.submit(another);
    served.engine().cancel(cancelled_id);
    served.collector().wait_for(4);
    EXPECT_EQ(served.collector().reply(running).tokens.size(), 300u);
    EXPECT_EQ(served.collector().reply(cancelled_id).finished->reason, FinishReason::cancelled);
    EXPECT_EQ(served.collector().reply(late_id).finished->reason, FinishReason::deadline);
    EXPECT_EQ(served.collector().reply(waiting).finished, std::nullopt);
    EXPECT_EQ(served.engine().status().waiting, 1u);
    go = true;
    go.notify_all();
    served.collector().wait_for(5);
    const CollectedReply reply = served.collector().reply(waiting);
    EXPECT_EQ(reply.cached, 1984u);
    EXPECT_EQ(reply.tokens, expected_reply(request, 7, 0, options.context_tokens).tokens);
}

// A queue that is too small: what does not fit is left out and counted, and comes with a later
// turn.
TEST(PrefixDisk, WhatDoesNotFitTheQueueIsLeftOut) {
    const TemporaryFolder place;
    std::mt19937 random(6);
    std::atomic<bool> go = false;
    LocalEngineOptions options = disk_options(place.path());
    options.prefix_disk->queue_bytes = 8'000;
    options.prefix_disk->folder.write =
        [&](const fs::path& path, std::span<const std::span<const std::byte>> parts) -> Status {
        go.wait(false);
        std::ofstream out(path, std::ios::binary);
        for (const auto part : parts)
            out.write(reinterpret_cast<const char*>(part.data()),
                      static_cast<std::streamsize>(part.size()));
        return {};
    };
    GenerationRequest request = request_of(random_tokens(random, 3000), 5);
    {
        Served served(options);
        served.run(request);
        EXPECT_GT(served.disk().dropped, 20u);
        EXPECT_LE(served.disk().queued_bytes, 8'000u);
        go = true;
        go.notify_all();
        served.settle();
        for (int turn = 0; turn < 12; ++turn) {
            const std::vector<TokenId> more = random_tokens(random, 70);
            request.prompt.insert(request.prompt.end(), more.begin(), more.end());
            served.run(request);
            served.settle();
        }
    }
    const auto length = static_cast<std::uint32_t>(request.prompt.size());
    EXPECT_EQ(Served(disk_options(place.path())).run(request).cached, (length - 1) / grid * grid);
}

// A pool too small for what is read, and one that others use up: the prompt is computed then.
TEST(PrefixDisk, RestoresIntoAFullPoolGiveWay) {
    const TemporaryFolder place;
    std::mt19937 random(7);
    std::vector<GenerationRequest> requests;
    {
        Served first(disk_options(place.path()));
        for (int i = 0; i < 12; ++i) {
            requests.push_back(request_of(random_tokens(random, 100 + random() % 500), 60));
            first.run(requests.back());
        }
        first.settle();
    }
    LocalEngineOptions options = disk_options(place.path(), 14);
    options.scheduler.checkpoints = 3;
    Served small(options);
    std::vector<std::pair<RequestId, GenerationRequest>> sent;
    for (int round = 0; round < 10; ++round) {
        for (const GenerationRequest& request : requests) {
            GenerationRequest varied = request;
            varied.choices = 1 + random() % 2;
            sent.emplace_back(small.submit(varied), varied);
        }
    }
    std::size_t choices = 0;
    for (const auto& [id, request] : sent)
        choices += request.choices;
    small.collector().wait_for(choices);
    EXPECT_EQ(small.collector().complaint(), "");
    for (const auto& [id, request] : sent) {
        for (std::uint32_t choice = 0; choice < request.choices; ++choice) {
            ASSERT_EQ(small.collector().reply(id, choice).tokens,
                      expected_reply(request, 7, choice, 14 * 64).tokens);
        }
    }
    EXPECT_GT(small.disk().restores, 12u);
}

TEST(PrefixDisk, IsRefusedWithoutThePrefixCacheOrAFolderOfItsOwn) {
    const TemporaryFolder place;
    LocalEngineOptions options = disk_options(place.path());
    const auto make = [](const LocalEngineOptions& wanted) {
        NetworkParts parts;
        parts.backend = std::make_unique<cache::testing::FakeBackend>();
        parts.network = std::make_unique<FakeNetwork>();
        return make_local_engine(std::move(parts), wanted);
    };
    const auto engine = make(options).value();
    EXPECT_EQ(make(options).error().code(), ErrorCode::unavailable);
    options.scheduler.checkpoints = 0;
    EXPECT_EQ(make(options).error().code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace percheron::engine::testing
