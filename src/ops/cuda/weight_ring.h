// Weights on their way from files to the device: a place of pinned memory for every reader, with as
// much on the device behind it and a stream of its own.  A reader fills its place, copies, packs,
// and begins again when the device is done with it; the others read meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <cuda_runtime.h>

#include "core/status.h"
#include "ops/cuda/device_memory.h"
#include "ops/weight_files.h"

namespace percheron::ops::cuda {

class WeightRing {
  public:
    // Readers and bytes of a place: what is staged at any time is their product, twice.
    static constexpr std::size_t readers = 16;
    static constexpr Bytes place_bytes = (Bytes{8} << 20) + (Bytes{64} << 10);

    // Starts the readers.  `files` outlives the result.  Errors: out_of_memory.
    static Result<std::unique_ptr<WeightRing>> start(int device, WeightFiles& files);
    ~WeightRing();
    WeightRing(const WeightRing&) = delete;
    WeightRing& operator=(const WeightRing&) = delete;

    // Whether the files hold a matrix and 128 rows of it find room in a place.
    bool takes(const WeightMatrix& stored) const;
    // Begin to read a matrix that it takes: to be packed, or as it is stored.  Destinations are
    // device memory; `scales` may be null where the format has none.
    void pack(const WeightMatrix& stored, std::uint8_t* packed, std::string_view name);
    void copy(const WeightMatrix& stored, std::byte* data, std::byte* scales,
              std::string_view name);
    // Until all of it is on the device.  Errors: the first of reading or of the device.
    Status wait();

  private:
    struct Place {
        PinnedMemory pinned;
        DeviceMemory staged;
        cudaStream_t stream = nullptr;
    };

    WeightRing(int device, WeightFiles& files) : device_(device), files_(files) {}
    Result<std::byte*> room(std::size_t reader);
    // Rows of a piece: whole blocks of fp8 scales, 0 if not even one finds room.
    std::size_t piece_rows(const WeightMatrix& stored) const;

    int device_;
    WeightFiles& files_;
    std::vector<Place> places_;
};

}  // namespace percheron::ops::cuda
