#include "checkpoint/weight_reads.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "checkpoint/formats.h"

namespace percheron::checkpoint {
namespace {

// Data and scales so near to each other are read together.
constexpr Bytes joined_gap = 2 * DirectFile::block;
constexpr auto between_progress = std::chrono::seconds(2);

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Result<std::unique_ptr<WeightReads>> WeightReads::open(const ShardSet& shards, Progress progress) {
    auto reads = std::unique_ptr<WeightReads>(new WeightReads(std::move(progress)));
    for (const SafetensorsFile& file : shards.files()) {
        PERCHERON_ASSIGN(DirectFile direct, DirectFile::open(file.path()));
        reads->files_.push_back({&file, std::move(direct)});
        // What is still read through the mapping are small tensors far from each other.
        file.mapping().advise(MappedFile::Access::random);
    }
    return reads;
}

// ---- what lies where

std::optional<WeightReads::Range> WeightReads::range_of(const void* data, Bytes bytes) const {
    const auto* const first = static_cast<const std::byte*>(data);
    for (std::size_t file = 0; file < files_.size(); ++file) {
        const std::span<const std::byte> mapped = files_[file].stored->mapping().bytes();
        if (first >= mapped.data() && first < mapped.data() + mapped.size()) {
            const auto offset = static_cast<Bytes>(first - mapped.data());
            if (bytes > mapped.size() - offset) return std::nullopt;
            return Range{static_cast<std::uint32_t>(file), offset, bytes};
        }
    }
    return std::nullopt;
}

bool WeightReads::holds(const ops::WeightMatrix& matrix) const {
    return range_of(matrix.data, ops::data_bytes(matrix)) &&
           (matrix.scales == nullptr || range_of(matrix.scales, ops::scale_bytes(matrix)));
}

Bytes WeightReads::room_for(const ops::WeightMatrix& rows) const {
    // Two reads, or one of both and the gap between them.
    static_assert(joined_gap <= 2 * DirectFile::block);
    return DirectFile::room_for(ops::data_bytes(rows)) +
           (rows.scales == nullptr ? 0 : DirectFile::room_for(ops::scale_bytes(rows)));
}

// ---- reading

void WeightReads::start(std::size_t readers, Room room) {
    assert(threads_.empty() && readers > 0);
    room_ = std::move(room);
    stopping_ = false;
    figures_ = {};
    begin_ = told_ = std::chrono::steady_clock::now();
    for (std::size_t reader = 0; reader < readers; ++reader) {
        threads_.emplace_back([this, reader] { take_pieces(reader); });
    }
}

void WeightReads::read(const ops::WeightMatrix& rows, std::string name, Arrival arrival) {
    assert(holds(rows));
    {
        const std::lock_guard lock(mutex_);
        if (!fault_.ok()) return;
        pieces_.push_back({rows, std::move(name), std::move(arrival)});
        ++pending_;
    }
    work_.notify_one();
}

Status WeightReads::wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return pending_ == 0; });
    return fault_;
}

void WeightReads::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        pending_ -= pieces_.size();
        pieces_.clear();
    }
    work_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
    threads_.clear();
}

void WeightReads::take_pieces(std::size_t reader) {
    std::unique_lock lock(mutex_);
    while (true) {
        work_.wait(lock, [&] { return stopping_ || !pieces_.empty(); });
        if (stopping_) return;
        const Piece piece = std::move(pieces_.front());
        pieces_.pop_front();
        lock.unlock();
        Status brought = bring(reader, piece);
        lock.lock();
        if (!brought.ok() && fault_.ok()) {
            fault_ = std::move(brought);
            pending_ -= pieces_.size();
            pieces_.clear();
        }
        if (--pending_ == 0) done_.notify_all();
    }
}

Result<std::span<std::byte>> WeightReads::read_range(const Range& range,
                                                     std::span<std::byte> room) const {
    return files_[range.file].direct.read(range.offset, range.bytes, room);
}

Status WeightReads::bring(std::size_t reader, const Piece& piece) {
    ops::WeightMatrix rows = piece.rows;
    const Range data = *range_of(rows.data, ops::data_bytes(rows));
    PERCHERON_ASSIGN(std::byte* const memory, room_(reader));
    const std::span<std::byte> room(memory, room_for(rows));
    if (rows.scales == nullptr) {
        PERCHERON_ASSIGN(const auto bytes, read_range(data, room));
        rows.data = bytes.data();
    } else {
        const Range scales = *range_of(rows.scales, ops::scale_bytes(rows));
        Range both = data;
        both.offset = std::min(data.offset, scales.offset);
        both.bytes = std::max(data.offset + data.bytes, scales.offset + scales.bytes) - both.offset;
        if (scales.file == data.file && both.bytes <= data.bytes + scales.bytes + joined_gap) {
            PERCHERON_ASSIGN(const auto bytes, read_range(both, room));
            rows.data = bytes.data() + (data.offset - both.offset);
            rows.scales = bytes.data() + (scales.offset - both.offset);
        } else {
            const Bytes data_room = DirectFile::room_for(data.bytes);
            PERCHERON_ASSIGN(const auto bytes, read_range(data, room.first(data_room)));
            PERCHERON_ASSIGN(const auto more, read_range(scales, room.subspan(data_room)));
            rows.data = bytes.data();
            rows.scales = more.data();
        }
    }
    count(ops::data_bytes(rows) + ops::scale_bytes(rows));
    if (is_damaged(rows)) {
        return Error(ErrorCode::corrupt,
                     files_[data.file].stored->path().string() + ": " + piece.name +
                         ": codes or scales hold NaN; the file is damaged or badly converted "
                         "(`percheron inspect --values` names the place)");
    }
    return piece.arrival(reader, rows);
}

void WeightReads::count(Bytes bytes) {
    std::optional<Figures> told;
    {
        const std::lock_guard lock(mutex_);
        figures_.bytes += bytes;
        figures_.seconds = seconds_since(begin_);
        const auto now = std::chrono::steady_clock::now();
        if (progress_ && now - told_ >= between_progress) {
            told_ = now;
            told = figures_;
        }
    }
    if (told) progress_(*told);
}

WeightReads::Figures WeightReads::figures() const {
    const std::lock_guard lock(mutex_);
    return figures_;
}

void WeightReads::drop_from_cache() const {
    for (const File& file : files_) {
        file.stored->mapping().advise(MappedFile::Access::dont_need);
        file.direct.drop_from_cache();
    }
}

}  // namespace percheron::checkpoint
