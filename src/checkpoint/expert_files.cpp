#include "checkpoint/expert_files.h"

#include <algorithm>
#include <cassert>
#include <chrono>

#include <sys/mman.h>

#include "checkpoint/formats.h"
#include "core/direct_file.h"

namespace percheron::checkpoint {
namespace {

constexpr Bytes page = DirectFile::block;
constexpr Bytes chunk_bytes = 1u << 20;  // of one read
constexpr Bytes joined_gap = page;       // parts so near to each other are read together
// After so many reads for every place, counts are halved.
constexpr std::uint64_t reads_a_halving = 4;

Bytes round_down(Bytes bytes) {
    return bytes / page * page;
}

Bytes round_up(Bytes bytes) {
    return (bytes + page - 1) / page * page;
}

}  // namespace

class ExpertFiles::File {
  public:
    explicit File(const MappedFile& mapping)
        : mapping_(mapping), direct_(DirectFile::open(mapping.path())) {}

    const MappedFile& mapping() const { return mapping_; }

    // `needed` bytes of the `out.size()` from `offset` on must be in the file.
    Status read(Bytes offset, std::span<std::byte> out, Bytes needed) const {
        return direct_.ok() ? direct_->read_blocks(offset, out, needed) : direct_.error();
    }

  private:
    const MappedFile& mapping_;
    Result<DirectFile> direct_;
};

ExpertFiles::ExpertFiles(const ShardSet& shards, std::size_t readers)
    : shards_(shards), readers_(readers) {
    for (const SafetensorsFile& file : shards_.files()) {
        files_.push_back(std::make_unique<File>(file.mapping()));
    }
}

ExpertFiles::~ExpertFiles() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
    if (memory_ != nullptr) ::munmap(memory_, places_.size() * place_bytes_);
}

// ---- what a unit is

Result<std::uint32_t> ExpertFiles::file_of(const std::byte* data) const {
    for (std::size_t file = 0; file < files_.size(); ++file) {
        const std::span<const std::byte> bytes = files_[file]->mapping().bytes();
        if (data >= bytes.data() && data < bytes.data() + bytes.size()) {
            return static_cast<std::uint32_t>(file);
        }
    }
    return Error(ErrorCode::unsupported,
                 shards_.folder().string() +
                     ": an expert's tensor is not used as it is stored (EXL3, F16, a stack, or not "
                     "aligned in its file); leave out --weights-memory, or write the folder anew "
                     "with `percheron quantize`");
}

Status ExpertFiles::add_unit(const ops::FeedForwardWeights& weights, Unit& unit) const {
    unit.weights = weights;
    const ops::WeightMatrix* const matrices[] = {&weights.gate, &weights.up, &weights.down};
    struct Range {
        std::uint32_t file;
        Bytes offset, bytes;
        Bytes* place;  // of its first byte, to be filled
    };
    std::vector<Range> ranges;
    for (std::size_t i = 0; i < 3; ++i) {
        const ops::WeightMatrix& matrix = *matrices[i];
        const auto add = [&](const void* at, Bytes bytes, Bytes& place) -> Status {
            const auto* const first = static_cast<const std::byte*>(at);
            PERCHERON_ASSIGN(const std::uint32_t file, file_of(first));
            const Bytes offset = static_cast<Bytes>(first - files_[file]->mapping().bytes().data());
            ranges.push_back({file, offset, bytes, &place});
            return {};
        };
        PERCHERON_TRY(add(matrix.data, ops::data_bytes(matrix), unit.parts[i].data));
        if (matrix.scales != nullptr) {
            PERCHERON_TRY(add(matrix.scales, ops::scale_bytes(matrix), unit.parts[i].scales));
        }
    }
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
        return a.file != b.file ? a.file < b.file : a.offset < b.offset;
    });
    Bytes end = 0;
    for (const Range& range : ranges) {
        const bool joins =
            !unit.extents.empty() && unit.extents.back().file == range.file &&
            range.offset <= unit.extents.back().offset + unit.extents.back().needed + joined_gap;
        if (!joins) {
            unit.extents.push_back({range.file, round_down(range.offset), 0, 0, end});
        }
        Extent& extent = unit.extents.back();
        extent.needed = range.offset + range.bytes - extent.offset;
        extent.bytes = round_up(extent.needed);
        *range.place = extent.at + range.offset - extent.offset;
        end = extent.at + extent.bytes;
    }
    return {};
}

Result<ops::StreamedExperts> ExpertFiles::add_layer(
    std::span<const ops::FeedForwardWeights> experts) {
    assert(threads_.empty());
    first_unit_.push_back(units_.size());
    for (const ops::FeedForwardWeights& expert : experts) {
        PERCHERON_TRY(add_unit(expert, units_.emplace_back()));
        const Extent& last = units_.back().extents.back();
        place_bytes_ = std::max(place_bytes_, last.at + last.bytes);
    }
    return ops::StreamedExperts{this, static_cast<std::uint32_t>(first_unit_.size() - 1)};
}

// ---- reading

Status ExpertFiles::start(std::size_t places, Bytes sample) {
    assert(threads_.empty() && places > 0);
    const Bytes bytes = places * place_bytes_;
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return Error(ErrorCode::out_of_memory, "No memory for " + std::to_string(bytes) +
                                                   " bytes of experts: lower --weights-memory.");
    }
    ::madvise(memory, bytes, MADV_HUGEPAGE);
    memory_ = static_cast<std::byte*>(memory);
    places_.resize(places);
    for (std::size_t place = places; place-- > 0;) {
        places_[place].memory = memory_ + place * place_bytes_;
        free_.push_back(static_cast<std::uint32_t>(place));
    }
    for (std::size_t i = 0; i < readers_; ++i) {
        threads_.emplace_back([this] { read_chunks(); });
    }

    // Memory is there once it has been written to, which would be counted as the disk's time.
    const Bytes touched = std::min(bytes, sample + place_bytes_);
    for (Bytes at = 0; at < touched; at += page) {
        memory_[at] = std::byte{0};
    }

    // The first expert of every layer, then the second ones.
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    Bytes begun = 0;
    const std::size_t layers = first_unit_.size();
    for (std::size_t i = 0; i < units_.size() && !free_.empty() && begun < sample; ++i) {
        const std::size_t unit = first_unit_[i % layers] + i / layers;
        const std::uint32_t place = free_.back();
        free_.pop_back();
        begin_reading(static_cast<std::uint32_t>(unit), place);
        begun += place_bytes_;
    }
    ready_.wait(lock, [&] { return reading_ == 0 || !fault_.ok(); });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (begun > 0) measured_rate_ = static_cast<double>(figures_.bytes_read) / seconds;
    figures_ = {};
    return fault_;
}

// The lock is held.
void ExpertFiles::begin_reading(std::uint32_t number, std::uint32_t place) {
    Unit& unit = units_[number];
    unit.place = place;
    places_[place].unit = number;
    for (const Extent& extent : unit.extents) {
        for (Bytes done = 0; done < extent.bytes; done += chunk_bytes) {
            Extent piece = extent;
            piece.offset += done;
            piece.at += done;
            piece.bytes = std::min(chunk_bytes, extent.bytes - done);
            piece.needed = std::min(piece.bytes, extent.needed - done);
            chunks_.push_back({number, piece});
            ++unit.chunks;
        }
    }
    ++reading_;
    ++figures_.read;
    work_.notify_all();
}

void ExpertFiles::read_chunks() {
    std::unique_lock lock(mutex_);
    while (true) {
        work_.wait(lock, [&] { return stopping_ || !chunks_.empty(); });
        if (stopping_) return;
        const Chunk chunk = chunks_.front();
        chunks_.pop_front();
        std::byte* const at = places_[units_[chunk.unit].place].memory + chunk.extent.at;
        lock.unlock();
        Status done = files_[chunk.extent.file]->read(chunk.extent.offset, {at, chunk.extent.bytes},
                                                      chunk.extent.needed);
        lock.lock();
        figures_.bytes_read += chunk.extent.bytes;
        Unit& unit = units_[chunk.unit];
        if (done.ok() && unit.chunks == 1) {
            // The last of its chunks: nobody else looks at the unit until it is counted.
            lock.unlock();
            done = complete(unit);
            lock.lock();
        }
        if (!done.ok() && fault_.ok()) fault_ = done;
        if (--unit.chunks == 0) {
            --reading_;
            if (unit.wanted) complete_.push_back(chunk.unit);
        }
        ready_.notify_all();
    }
}

// The matrices point into the place, and their codes are looked at as loading does.
Status ExpertFiles::complete(Unit& unit) const {
    const std::byte* const memory = places_[unit.place].memory;
    ops::WeightMatrix* const matrices[] = {&unit.weights.gate, &unit.weights.up,
                                           &unit.weights.down};
    for (std::size_t i = 0; i < 3; ++i) {
        ops::WeightMatrix& matrix = *matrices[i];
        matrix.data = memory + unit.parts[i].data;
        if (matrix.scales != nullptr) matrix.scales = memory + unit.parts[i].scales;
        if (is_damaged(matrix)) {
            return Error(ErrorCode::corrupt,
                         files_[unit.extents.front().file]->mapping().path().string() +
                             ": an expert's codes or scales hold NaN; the file is damaged or badly "
                             "converted (`percheron inspect --values` names the tensor)");
        }
    }
    return {};
}

// ---- places

// A free place, or that of the unit wanted the least often; nobody: all are in use.
std::uint32_t ExpertFiles::take_place() {
    if (!free_.empty()) {
        const std::uint32_t place = free_.back();
        free_.pop_back();
        return place;
    }
    std::uint32_t best = nobody;
    for (std::uint32_t place = 0; place < places_.size(); ++place) {
        const Unit& unit = units_[places_[place].unit];
        if (unit.wanted || unit.given || unit.chunks > 0) continue;
        if (best == nobody || unit.uses < units_[places_[best].unit].uses) best = place;
    }
    if (best == nobody) return nobody;
    units_[places_[best].unit].place = nobody;
    if (++reads_since_halving_ >= reads_a_halving * places_.size()) {
        reads_since_halving_ = 0;
        for (Unit& unit : units_) {
            unit.uses /= 2;
        }
    }
    return best;
}

void ExpertFiles::begin_waiting_ones() {
    while (!waiting_.empty()) {
        const std::uint32_t place = take_place();
        if (place == nobody) return;
        begin_reading(waiting_.front(), place);
        waiting_.pop_front();
    }
}

void ExpertFiles::take_back() {
    for (const Present& present : present_) {
        units_[first_wanted_ + present.expert].given = false;
    }
    present_.clear();
}

void ExpertFiles::want(std::uint32_t layer, std::span<const std::uint32_t> experts) {
    const std::lock_guard lock(mutex_);
    assert(missing_ == 0);
    take_back();
    first_wanted_ = first_unit_[layer];
    missing_ = experts.size();
    figures_.wanted += experts.size();
    for (const std::uint32_t expert : experts) {
        const auto number = static_cast<std::uint32_t>(first_wanted_ + expert);
        Unit& unit = units_[number];
        ++unit.uses;
        unit.wanted = true;
        if (unit.place == nobody) {
            waiting_.push_back(number);
        } else if (unit.chunks == 0) {
            complete_.push_back(number);
        }
    }
    begin_waiting_ones();
}

std::span<const ExpertFiles::Present> ExpertFiles::next() {
    std::unique_lock lock(mutex_);
    take_back();
    begin_waiting_ones();
    ready_.wait(lock, [&] { return !complete_.empty() || missing_ == 0 || !fault_.ok(); });
    if (!fault_.ok()) {
        missing_ = 0;
        return {};
    }
    for (const std::uint32_t number : complete_) {
        Unit& unit = units_[number];
        unit.wanted = false;
        unit.given = true;
        present_.push_back({static_cast<std::uint32_t>(number - first_wanted_), &unit.weights});
    }
    missing_ -= complete_.size();
    complete_.clear();
    return present_;
}

Status ExpertFiles::status() const {
    const std::lock_guard lock(mutex_);
    return fault_;
}

ExpertFiles::Figures ExpertFiles::figures() const {
    const std::lock_guard lock(mutex_);
    return figures_;
}

}  // namespace percheron::checkpoint
