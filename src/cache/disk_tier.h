// The prefix cache's files behind a thread of their own (C13 to C16 of docs/SCHEDULER.md).
//
// The engine thread hands copies of pages and states over and goes on; it is told what can be read,
// asks for a path and gets it piece by piece.  Between the two threads stand queues without locks.
// All members but open(), start(), status() and the destructor belong to the engine thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "cache/tier_folder.h"
#include "core/handover_queue.h"
#include "core/status.h"

namespace percheron::cache {

struct DiskTierOptions {
    TierOptions folder;
    Bytes queue_bytes = Bytes{32} << 20;      // copies that wait to be written
    std::chrono::milliseconds retry{10'000};  // after a write that failed
};

class DiskTier {
  public:
    // Of pages written as one file, and of pages read at a time.
    static constexpr Bytes piece_bytes = Bytes{8} << 20;

    // Of the host, at most: copies on their way to the disk, pieces on their way back, and the keys
    // of all blocks that the files may hold.
    static Bytes memory(const DiskTierOptions& options, Bytes page_bytes, Bytes state_bytes);

    // Errors: TierFolder::open().
    static Result<std::unique_ptr<DiskTier>> open(DiskTierOptions options);
    // Writes what waits, then ends.
    ~DiskTier();
    DiskTier(const DiskTier&) = delete;
    DiskTier& operator=(const DiskTier&) = delete;

    // `wake` is called on the tier's thread whenever next() has something.
    void start(std::function<void()> wake);

    BlockKeys keys_of(std::string_view salt) const;

    // ---- writing

    // What can be read, or waits to be written.
    bool has_block(const BlockKey& key) const { return blocks_.contains(key); }
    bool has_state(const BlockKey& key) const { return states_.contains(key); }
    // Takes a copy made by `fill`, which gets memory of the page's or the state's size.  False: it
    // does not fit the queue, or writing is paused.
    using Fill = std::function<void(std::span<std::byte>)>;
    // `root`: nothing stands before it.
    bool offer_page(const BlockKey& before, bool root, const BlockKey& key, const Fill& fill);
    bool offer_state(const BlockKey& key, CheckpointKind kind, const Fill& fill);
    void count_dropped(std::uint64_t count) { dropped_.fetch_add(count, relaxed); }

    // ---- reading, one path at a time

    // Asks for the pages of `blocks`, which follow each other, and the state at the end of the
    // last block of the path.  Their pieces come in order.
    // False: too much is asked for.
    bool ask(std::vector<BlockKey> blocks, const BlockKey& state);
    // Nothing more of the path asked for is wanted.
    void give_up();

    struct Piece {
        std::uint64_t asked = 0;       // by which ask(); the tier's own book
        std::vector<std::byte> bytes;  // pages one behind the other, or the state
        std::uint32_t pages = 0;       // 0: it is the state, the last piece ...
        CheckpointKind kind{};         // ... and its kind
        bool failed = false;           // nothing more comes; the path is not there any more
    };
    // The next piece of the path asked for.
    std::optional<Piece> next();
    bool has_news() const { return !news_.empty(); }
    void count_restored(Bytes bytes) { bytes_restored_.fetch_add(bytes, relaxed); }
    void count_restore() { restores_.fetch_add(1, relaxed); }

    PrefixDiskStatus status() const;  // any thread

  private:
    static constexpr auto relaxed = std::memory_order_relaxed;

    struct Write {
        TierFile::Kind kind{};
        CheckpointKind checkpoint{};
        bool root = false;  // nothing stands before it
        BlockKey before{}, key{};
        std::vector<std::byte> bytes;
    };
    struct Question {
        std::uint64_t number = 0;
        std::vector<BlockKey> blocks;
        BlockKey state{};
    };
    struct News {  // a piece, or what is lost
        std::optional<Piece> piece;
        std::vector<TierFolder::Lost> lost;
    };

    DiskTier(DiskTierOptions options, std::unique_ptr<TierFolder> folder);
    bool offer(Write write, Bytes bytes, const Fill& fill);

    // The tier's thread.
    void run();
    void rouse();
    void answer(const Question& question);
    bool send_pages(const Question& question);
    void send_state(const Question& question);
    bool send(Piece piece);
    void write_some();
    void after_write(const Result<bool>& written, std::span<const Write> items, Bytes bytes);
    void report_lost(std::vector<TierFolder::Lost> lost);
    void publish();

    const DiskTierOptions options_;
    std::unique_ptr<TierFolder> folder_;
    std::function<void()> wake_;

    // The engine thread's.
    std::unordered_set<BlockKey, BlockKeyHash> blocks_, states_;
    std::uint64_t asked_ = 0;  // the latest question's number

    // Between the threads.
    HandoverQueue<Write> writes_{4096};
    HandoverQueue<Question> questions_{64};
    HandoverQueue<News> news_{64};
    std::atomic<Bytes> queued_bytes_{0};
    std::atomic<std::uint64_t> wanted_{0};  // the question whose pieces are wanted; 0: none
    std::atomic<std::uint32_t> signal_{0};  // something changed for the tier's thread
    std::atomic<bool> stopping_{false};
    std::atomic<bool> paused_{false};
    std::atomic<std::int64_t> retry_at_{0};  // steady clock, nanoseconds

    // For status().
    std::atomic<std::uint64_t> entries_{0}, bytes_{0}, evictions_{0}, refused_{0};
    std::atomic<std::uint64_t> bytes_written_{0}, bytes_restored_{0}, restores_{0}, dropped_{0};

    std::thread thread_;
};

}  // namespace percheron::cache
