#include "ops/cuda/weight_ring.h"

#include <algorithm>
#include <string>

#include "ops/cuda/packed_matrix.h"

namespace percheron::ops::cuda {
namespace {

constexpr std::size_t row_step = 128;

Bytes aligned(Bytes bytes) {
    return (bytes + 255) / 256 * 256;
}

}  // namespace

Result<std::unique_ptr<WeightRing>> WeightRing::start(int device, WeightFiles& files) {
    auto ring = std::unique_ptr<WeightRing>(new WeightRing(device, files));
    ring->places_.resize(readers);
    for (Place& place : ring->places_) {
        PERCHERON_ASSIGN(place.pinned, PinnedMemory::allocate(place_bytes, "reading weights"));
        PERCHERON_ASSIGN(place.staged,
                         DeviceMemory::allocate(place_bytes + 512, "uploading weights"));
        PERCHERON_TRY(check(cudaStreamCreateWithFlags(&place.stream, cudaStreamNonBlocking),
                            "creating a CUDA stream"));
    }
    files.start(readers, [to = ring.get()](std::size_t reader) { return to->room(reader); });
    return ring;
}

WeightRing::~WeightRing() {
    files_.stop();
    for (Place& place : places_) {
        if (place.stream == nullptr) continue;
        cudaStreamSynchronize(place.stream);
        cudaStreamDestroy(place.stream);
    }
}

Result<std::byte*> WeightRing::room(std::size_t reader) {
    PERCHERON_TRY(check(cudaSetDevice(device_), "choosing the device of the weights"));
    PERCHERON_TRY(check(cudaStreamSynchronize(places_[reader].stream), "uploading weights"));
    return places_[reader].pinned.data();
}

std::size_t WeightRing::piece_rows(const WeightMatrix& stored) const {
    std::size_t rows = (stored.n + row_step - 1) / row_step * row_step;
    while (rows > 0 &&
           files_.room_for(rows_of(stored, 0, std::min(rows, stored.n))) > place_bytes) {
        rows -= row_step;
    }
    return rows;
}

bool WeightRing::takes(const WeightMatrix& stored) const {
    return stored.n > 0 && files_.holds(stored) && piece_rows(stored) > 0;
}

void WeightRing::pack(const WeightMatrix& stored, std::uint8_t* packed, std::string_view name) {
    const std::size_t step = piece_rows(stored);
    for (std::size_t first = 0; first < stored.n; first += step) {
        std::uint8_t* const to = packed + packed_bytes(stored.format, first, stored.k);
        files_.read(
            rows_of(stored, first, std::min(step, stored.n - first)), std::string(name),
            [this, to](std::size_t reader, const WeightMatrix& rows) -> Status {
                const Place& place = places_[reader];
                WeightMatrix staged = rows;
                staged.data = place.staged.data();
                PERCHERON_TRY(
                    check(cudaMemcpyAsync(place.staged.data(), rows.data, data_bytes(rows),
                                          cudaMemcpyHostToDevice, place.stream),
                          "uploading weights"));
                if (rows.scales != nullptr) {
                    std::byte* const scales = place.staged.data() + aligned(data_bytes(rows));
                    staged.scales = scales;
                    PERCHERON_TRY(check(cudaMemcpyAsync(scales, rows.scales, scale_bytes(rows),
                                                        cudaMemcpyHostToDevice, place.stream),
                                        "uploading scales"));
                }
                const auto done = pack_matrix(staged, to, place.stream);
                return done.ok() ? Status{} : Status(done.error());
            });
    }
}

void WeightRing::copy(const WeightMatrix& stored, std::byte* data, std::byte* scales,
                      std::string_view name) {
    const std::size_t step = piece_rows(stored);
    for (std::size_t first = 0; first < stored.n; first += step) {
        WeightMatrix before = stored;
        before.n = first;
        std::byte* const to = data + data_bytes(before);
        std::byte* const scales_to = scales + scale_bytes(before);
        files_.read(rows_of(stored, first, std::min(step, stored.n - first)), std::string(name),
                    [this, to, scales_to](std::size_t reader, const WeightMatrix& rows) -> Status {
                        const Place& place = places_[reader];
                        PERCHERON_TRY(check(cudaMemcpyAsync(to, rows.data, data_bytes(rows),
                                                            cudaMemcpyHostToDevice, place.stream),
                                            "uploading weights"));
                        if (rows.scales == nullptr) return {};
                        return check(cudaMemcpyAsync(scales_to, rows.scales, scale_bytes(rows),
                                                     cudaMemcpyHostToDevice, place.stream),
                                     "uploading scales");
                    });
    }
}

Status WeightRing::wait() {
    PERCHERON_TRY(files_.wait());
    for (const Place& place : places_)
        PERCHERON_TRY(check(cudaStreamSynchronize(place.stream), "uploading weights"));
    return {};
}

}  // namespace percheron::ops::cuda
