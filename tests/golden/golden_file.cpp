#include "golden/golden_file.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "checkpoint/safetensors.h"

namespace percheron::tests {
namespace {

template <class T>
float widened(const std::byte* bytes, std::size_t index) {
    T value;
    std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
    return static_cast<float>(value);
}

// IEEE binary16.
float half_at(const std::byte* bytes, std::size_t index) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes + 2 * index, 2);
    const int exponent = (bits >> 10) & 31;
    const int mantissa = bits & 1023;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
    return (bits & 0x8000) != 0 ? -value : value;
}

Result<float> number_at(const checkpoint::StoredTensor& tensor, std::size_t index) {
    const std::byte* const bytes = tensor.bytes.data();
    switch (tensor.dtype) {
        case DType::f32:
            return widened<float>(bytes, index);
        case DType::i64:
            return widened<std::int64_t>(bytes, index);
        case DType::i32:
            return widened<std::int32_t>(bytes, index);
        case DType::i16:
            return widened<std::int16_t>(bytes, index);
        case DType::u8:
            return widened<std::uint8_t>(bytes, index);
        case DType::f16:
            return half_at(bytes, index);
        default:
            return Error(ErrorCode::unsupported, "Golden tensor " + tensor.name + " has type " +
                                                     std::string(name_of(tensor.dtype)) + ".");
    }
}

}  // namespace

Result<GoldenFile> GoldenFile::open(const std::filesystem::path& folder) {
    PERCHERON_ASSIGN(const auto file,
                     checkpoint::SafetensorsFile::open(folder / "golden.safetensors"));
    GoldenFile golden;
    golden.folder_ = folder;
    for (const checkpoint::StoredTensor& stored : file.tensors()) {
        GoldenTensor& tensor = golden.tensors_[stored.name];
        tensor.shape = stored.shape;
        std::size_t count = 1;
        for (const std::size_t extent : stored.shape) {
            count *= extent;
        }
        tensor.values.resize(count);
        for (std::size_t i = 0; i < count; ++i) {
            PERCHERON_ASSIGN(tensor.values[i], number_at(stored, i));
        }
        constexpr std::string_view suffix = ".ids";
        if (stored.name.ends_with(suffix)) {
            golden.prompts_.push_back(stored.name.substr(0, stored.name.size() - suffix.size()));
        }
    }
    return golden;
}

std::vector<std::string> GoldenFile::names() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) {
        names.push_back(name);
    }
    return names;
}

std::vector<int> GoldenFile::ids(const std::string& prompt) const {
    const GoldenTensor* const tensor = find(prompt + ".ids");
    if (tensor == nullptr) return {};
    return std::vector<int>(tensor->values.begin(), tensor->values.end());
}

const GoldenTensor* GoldenFile::find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace percheron::tests
