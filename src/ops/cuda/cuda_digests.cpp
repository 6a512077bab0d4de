#include "ops/cuda/cuda_digests.h"

#include <string>
#include <vector>

#include "ops/cuda/logit_digest.h"

namespace percheron::ops::cuda {
namespace {

std::size_t words_of(std::size_t vocabulary) {
    return (vocabulary + 31) / 32;
}

}  // namespace

Bytes CudaDigests::bytes(std::size_t rows, std::size_t vocabulary) {
    return rows * sizeof(LogitDigest) + words_of(vocabulary) * sizeof(std::uint32_t);
}

Status CudaDigests::reserve(std::size_t rows, std::size_t vocabulary) {
    vocabulary_ = vocabulary;
    const Bytes of_rows = rows * sizeof(LogitDigest);
    PERCHERON_ASSIGN(device_digests_, DeviceMemory::allocate(of_rows, "digests of logits"));
    PERCHERON_ASSIGN(host_, PinnedMemory::allocate(of_rows, "digests of logits"));
    PERCHERON_ASSIGN(excluded_, DeviceMemory::allocate(words_of(vocabulary) * sizeof(std::uint32_t),
                                                       "ids that are never chosen"));
    return {};
}

Status CudaDigests::exclude(std::span<const TokenId> ids, std::size_t vocabulary) {
    if (vocabulary != vocabulary_ || !digests_fit(vocabulary))
        return Error(
            ErrorCode::unsupported,
            "the CUDA digests of logits do not fit a vocabulary of " + std::to_string(vocabulary));
    std::vector<std::uint32_t> bits(words_of(vocabulary));
    for (const TokenId id : ids) {
        const auto v = static_cast<std::size_t>(to_int(id));
        bits[v / 32] |= 1u << v % 32;
    }
    PERCHERON_TRY(check(cudaSetDevice(device_), "choosing the CUDA device"));
    PERCHERON_TRY(
        check(cudaMemcpyAsync(excluded_.data(), bits.data(), bits.size() * sizeof(std::uint32_t),
                              cudaMemcpyHostToDevice, stream_),
              "uploading the ids that are never chosen"));
    return check(cudaStreamSynchronize(stream_), "uploading the ids that are never chosen");
}

Status CudaDigests::launch(const float* logits, std::size_t rows, const DigestRequest* requests,
                           const LaunchContext& context) {
    LogitDigestion op;
    op.logits = logits;
    op.rows = static_cast<int>(rows);
    op.vocabulary = static_cast<int>(vocabulary_);
    op.requests = requests;
    op.excluded = reinterpret_cast<const std::uint32_t*>(excluded_.data());
    op.digests = reinterpret_cast<LogitDigest*>(device_digests_.data());
    PERCHERON_TRY(digest_logits(op, context));
    return check(cudaMemcpyAsync(host_.data(), device_digests_.data(), rows * sizeof(LogitDigest),
                                 cudaMemcpyDeviceToHost, context.stream),
                 "reading digests of logits");
}

Status CudaDigests::fetch(std::size_t row, float* values) {
    PERCHERON_TRY(check(cudaSetDevice(device_), "choosing the CUDA device"));
    PERCHERON_TRY(
        check(cudaMemcpyAsync(values, logits_ + row * vocabulary_, vocabulary_ * sizeof(float),
                              cudaMemcpyDeviceToHost, stream_),
              "reading a row of logits"));
    return check(cudaStreamSynchronize(stream_), "reading a row of logits");
}

}  // namespace percheron::ops::cuda
