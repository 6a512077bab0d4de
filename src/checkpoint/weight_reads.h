// A checkpoint's weights read from its files for a backend that has them in memory of its own:
// past the page cache, by several threads, each with one read on its way (ops/weight_files.h).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "percheron/types.h"

#include "checkpoint/shards.h"
#include "core/direct_file.h"
#include "core/status.h"
#include "ops/weight_files.h"

namespace percheron::checkpoint {

class WeightReads final : public ops::WeightFiles {
  public:
    struct Figures {
        Bytes bytes = 0;     // of weights, read
        double seconds = 0;  // from start() to the latest of them
    };
    // Told every two seconds while anything is read, by one of the readers.
    using Progress = std::function<void(const Figures&)>;

    // Errors: not_found, io.
    static Result<std::unique_ptr<WeightReads>> open(const ShardSet& shards, Progress progress);
    ~WeightReads() override { stop(); }

    bool holds(const ops::WeightMatrix& matrix) const override;
    Bytes room_for(const ops::WeightMatrix& rows) const override;
    void start(std::size_t readers, Room room) override;
    void read(const ops::WeightMatrix& rows, std::string name, Arrival arrival) override;
    Status wait() override;
    void stop() override;

    Figures figures() const;
    // What the mappings and the page cache hold of the files is read anew when it is wanted again.
    void drop_from_cache() const;

  private:
    struct Range {
        std::uint32_t file = 0;
        Bytes offset = 0;
        Bytes bytes = 0;
    };
    struct Piece {
        ops::WeightMatrix rows;  // in the mapped files
        std::string name;
        Arrival arrival;
    };
    struct File {
        const SafetensorsFile* stored = nullptr;
        DirectFile direct;
    };

    explicit WeightReads(Progress progress) : progress_(std::move(progress)) {}
    std::optional<Range> range_of(const void* data, Bytes bytes) const;
    void take_pieces(std::size_t reader);
    Result<std::span<std::byte>> read_range(const Range& range, std::span<std::byte> room) const;
    Status bring(std::size_t reader, const Piece& piece);
    void count(Bytes bytes);

    Progress progress_;
    std::vector<File> files_;
    Room room_;
    std::vector<std::thread> threads_;

    mutable std::mutex mutex_;
    std::condition_variable work_;  // for the readers
    std::condition_variable done_;  // for wait()
    std::deque<Piece> pieces_;
    std::size_t pending_ = 0;  // pieces that wait or are being brought
    Status fault_;
    bool stopping_ = false;
    Figures figures_;
    std::chrono::steady_clock::time_point begin_, told_;
};

}  // namespace percheron::checkpoint
