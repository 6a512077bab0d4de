// An ExpertStore over the files of a checkpoint: places in memory for so many experts, and threads
// that read the others into them, past the page cache where the file system allows it.
//
// One expert is one unit: gate, up and down with their scales, as they lie in the files.  When no
// place is free, the unit that was wanted the least often goes; counts are halved now and then, so
// that what was wanted long ago counts little.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "percheron/types.h"

#include "checkpoint/shards.h"
#include "core/status.h"
#include "ops/backend.h"
#include "ops/expert_store.h"

namespace percheron::checkpoint {

class ExpertFiles final : public ops::ExpertStore {
  public:
    static constexpr std::size_t default_readers =
        8;  // several reads at a time fill a disk's queue

    struct Figures {
        std::uint64_t wanted = 0;  // experts, all calls
        std::uint64_t read = 0;    // of them from the disk
        Bytes bytes_read = 0;
    };

    explicit ExpertFiles(const ShardSet& shards, std::size_t readers = default_readers);
    ~ExpertFiles() override;

    // A layer's experts, as views of the mapped files; before start().
    // Errors: unsupported (a copy of a tensor that its file left unaligned).
    Result<ops::StreamedExperts> add_layer(std::span<const ops::FeedForwardWeights> experts);

    std::size_t experts() const { return units_.size(); }
    Bytes place_bytes() const { return place_bytes_; }  // of the largest

    // Reserves the places, fills up to `sample` bytes of them and starts the threads.
    // Errors: out_of_memory; io or corrupt (the files).
    Status start(std::size_t places, Bytes sample);
    std::size_t places() const { return places_.size(); }
    // Bytes a second while start() read its sample; 0: it read nothing.
    double measured_rate() const { return measured_rate_; }

    Figures figures() const;

    void want(std::uint32_t layer, std::span<const std::uint32_t> experts) override;
    std::span<const Present> next() override;
    Status status() const override;

  private:
    static constexpr std::uint32_t nobody = ~std::uint32_t{0};

    // Bytes of one file, aligned for reading past the page cache, and where they go in a place.
    struct Extent {
        std::uint32_t file = 0;
        Bytes offset = 0;
        Bytes bytes = 0;  // aligned; `needed` of them are in the file
        Bytes needed = 0;
        Bytes at = 0;
    };
    // Where a matrix's parts lie in a place.
    struct Part {
        Bytes data = 0, scales = 0;
    };
    struct Unit {
        ops::FeedForwardWeights weights;  // into its place, once it has been read
        std::vector<Extent> extents;
        Part parts[3];
        std::uint32_t place = nobody;
        std::uint32_t uses = 0;
        std::uint32_t chunks = 0;  // still to be read
        bool wanted = false;       // and not given out yet
        bool given = false;        // by the last next()
    };
    struct Place {
        std::byte* memory = nullptr;
        std::uint32_t unit = nobody;
    };
    struct Chunk {
        std::uint32_t unit = 0;
        Extent extent;  // a piece of one of the unit's
    };
    class File;

    Status add_unit(const ops::FeedForwardWeights& weights, Unit& unit) const;
    Result<std::uint32_t> file_of(const std::byte* data) const;
    void read_chunks();
    Status complete(Unit& unit) const;
    // With the lock held.
    std::uint32_t take_place();
    void begin_reading(std::uint32_t number, std::uint32_t place);
    void begin_waiting_ones();
    void take_back();  // what the last next() gave

    const ShardSet& shards_;
    std::size_t readers_;
    std::vector<std::unique_ptr<File>> files_;
    std::vector<Unit> units_;              // layer by layer
    std::vector<std::size_t> first_unit_;  // of each layer
    Bytes place_bytes_ = 0;
    double measured_rate_ = 0;

    std::byte* memory_ = nullptr;
    std::vector<std::thread> threads_;

    mutable std::mutex mutex_;
    std::condition_variable work_;   // for the readers
    std::condition_variable ready_;  // for next()
    std::vector<Place> places_;
    std::vector<std::uint32_t> free_;      // places
    std::deque<Chunk> chunks_;             // to be read
    std::deque<std::uint32_t> waiting_;    // wanted units without a place
    std::vector<std::uint32_t> complete_;  // wanted units in memory, not given out yet
    std::size_t reading_ = 0;              // units with chunks on their way
    std::size_t missing_ = 0;              // of the wanted ones, not given out yet
    std::size_t first_wanted_ = 0;         // unit of the wanted layer's expert 0
    std::vector<Present> present_;
    std::uint64_t reads_since_halving_ = 0;
    Figures figures_;
    Status fault_;
    bool stopping_ = false;
};

}  // namespace percheron::checkpoint
