#include "checkpoint/synthetic_source.h"

#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace percheron::checkpoint {
namespace {

constexpr std::align_val_t alignment{64};

std::size_t elements(const Shape& shape) {
    std::size_t count = 1;
    for (const std::size_t extent : shape) {
        count *= extent;
    }
    return count;
}

Error wrong_shape(const SyntheticWeight& weight, const std::string& needed) {
    return Error(ErrorCode::corrupt, "the made-up tensor " + weight.tensor.name + " has shape " +
                                         to_string(weight.tensor.shape) + ", the network needs " +
                                         needed);
}

}  // namespace

void SyntheticSource::Release::operator()(std::byte* memory) const {
    ::operator delete(memory, alignment);
}

SyntheticSource::SyntheticSource(SyntheticModel model, std::size_t threads)
    : model_(std::move(model)), pool_(ThreadPoolOptions{.threads = threads}) {
    for (const SyntheticWeight& weight : model_.weights) {
        by_stem_.emplace(stem_of(weight.tensor.name), &weight);
    }
}

Bytes SyntheticSource::bytes() const {
    Bytes total = 0;
    for (const SyntheticWeight& weight : model_.weights) {
        total += weight.bytes();
    }
    return total;
}

bool SyntheticSource::has(std::string_view stem) const {
    return by_stem_.contains(stem);
}

Result<const SyntheticWeight*> SyntheticSource::find(std::string_view stem) const {
    const auto found = by_stem_.find(stem);
    if (found == by_stem_.end()) {
        return Error(ErrorCode::not_found, "the made-up model has no tensor " + std::string(stem));
    }
    return found->second;
}

Result<const std::byte*> SyntheticSource::made(const SyntheticTensor& tensor) {
    const auto [place, fresh] = memory_.try_emplace(&tensor);
    if (fresh) {
        const Bytes bytes = tensor.header.bytes();
        place->second.reset(
            static_cast<std::byte*>(::operator new(bytes, alignment, std::nothrow)));
        if (place->second == nullptr) {
            memory_.erase(place);
            return Error(ErrorCode::out_of_memory, "no memory for the " + std::to_string(bytes) +
                                                       " bytes of " + tensor.header.name +
                                                       "; make a smaller model");
        }
        make_tensor(tensor, model_.spec.seed, pool_, {place->second.get(), bytes});
    }
    return place->second.get();
}

Result<ops::WeightMatrix> SyntheticSource::matrix(std::string_view stem, std::size_t n,
                                                  std::size_t k) {
    PERCHERON_ASSIGN(const SyntheticWeight* const weight, find(stem));
    const Shape& shape = weight->tensor.shape;
    if (shape.empty() || shape[0] != n || elements(shape) != n * k) {
        return wrong_shape(*weight, to_string(Shape{n, k}));
    }
    ops::WeightMatrix matrix;
    const bool wide = weight->parts[0].header.dtype == DType::f32;
    matrix.format = wide ? ops::WeightFormat::f32 : weight->format;
    matrix.n = n;
    matrix.k = k;
    const std::lock_guard lock(mutex_);
    PERCHERON_ASSIGN(matrix.data, made(weight->parts[0]));
    if (weight->parts.size() > 1) {
        PERCHERON_ASSIGN(matrix.scales, made(weight->parts[1]));
    }
    if (weight->format == ops::WeightFormat::nvfp4) matrix.global_scale = weight->parts[2].offset;
    return matrix;
}

Status SyntheticSource::vector(std::string_view name, std::span<float> out) {
    std::string_view stem = name;
    if (stem.ends_with(".weight")) stem.remove_suffix(7);
    PERCHERON_ASSIGN(const SyntheticWeight* const weight, find(stem));
    if (elements(weight->tensor.shape) != out.size()) {
        return wrong_shape(*weight, std::to_string(out.size()) + " elements");
    }
    const SyntheticTensor& tensor = weight->parts[0];
    if (weight->parts.size() > 1) {
        return Error(ErrorCode::unsupported, "the made-up tensor " + weight->tensor.name +
                                                 " is quantised, this tensor must be BF16 or F32");
    }
    if (tensor.header.dtype == DType::f32) {
        make_values(tensor, model_.spec.seed, 0, std::as_writable_bytes(out));
        return {};
    }
    std::vector<BFloat16> values(out.size());
    make_values(tensor, model_.spec.seed, 0, std::as_writable_bytes(std::span(values)));
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<float>(values[i]);
    }
    return {};
}

}  // namespace percheron::checkpoint
